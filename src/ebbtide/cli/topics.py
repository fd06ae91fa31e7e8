"""`ebbtide produce`, `consume`, `generate visits`: records into a topic and out of it."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timezone
from typing import Annotated

import typer

from ebbtide.cli.output import (
    Format,
    Home,
    Output,
    Servers,
    example,
    note,
    progress_bar,
    show_json,
    with_broker,
)
from ebbtide.config import Settings, load_settings
from ebbtide.errors import UsageError

generate = typer.Typer(help="Make test data, seeded.", no_args_is_help=True)
Topic = Annotated[str, typer.Argument(help="The topic.")]


def register(root: typer.Typer) -> None:
    """Add the commands to the root."""
    root.command(
        epilog=example(
            'echo \'{"visit_id": 1, "event_time": "2025-09-04T07:00:00"}\' | ebbtide produce visits'
        )
    )(produce)
    root.command(epilog=example("ebbtide consume visits --from-beginning --max 10 --timeout 5"))(
        consume
    )
    root.add_typer(generate, name="generate")


def produce(
    topic: Topic,
    key_field: Annotated[
        str | None, typer.Option(help="Field of the JSON whose value becomes the key.")
    ] = None,
    home: Home = None,
    bootstrap_servers: Servers = None,
    output: Output = Format.table,
) -> None:
    """Send lines from stdin to a topic, one record each; lines that come together stay together."""
    from ebbtide.connectors.kafka import Sender

    settings = with_broker(load_settings(home=home, bootstrap_servers=bootstrap_servers))
    _create(settings, topic)
    with Sender(settings.kafka, topic) as sender:
        for line in sys.stdin.buffer:
            value = line.rstrip(b"\r\n")
            if value:
                sender.send(value, _key(value, key_field))
    _show_sent(sender.sent, topic, output)


def consume(
    topic: Topic,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Also what is there already.")
    ] = False,
    max_records: Annotated[
        int | None, typer.Option("--max", help="Stop after so many records.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Stop after so many seconds without a record.")
    ] = None,
    home: Home = None,
    bootstrap_servers: Servers = None,
    output: Output = Format.table,
) -> None:
    """Write a topic's values to stdout, a line each; with -o json whole records."""
    from ebbtide.connectors import kafka

    settings = with_broker(load_settings(home=home, bootstrap_servers=bootstrap_servers))
    out = sys.stdout.buffer
    for record in kafka.consume(
        settings.kafka,
        topic,
        from_beginning=from_beginning,
        max_records=max_records,
        silence_seconds=timeout,
    ):
        line = record.to_json().encode() if output is Format.json else (record.value or b"")
        out.write(line + b"\n")
        out.flush()


@generate.command(
    epilog=example("ebbtide generate visits --count 100000 --late 0.05 --broken 0.01 --seed 7")
)
def visits(
    topic: Annotated[str, typer.Option(help="The topic.")] = "visits",
    count: Annotated[int, typer.Option(help="How many events.")] = 10_000,
    rate: Annotated[
        float | None, typer.Option(help="Events per second; as fast as it goes if not given.")
    ] = None,
    users: Annotated[int, typer.Option(help="Users who visit at the same time.")] = 100,
    pages: Annotated[int, typer.Option(help="Different pages.")] = 20,
    late: Annotated[float, typer.Option(help="Share of events that are 1 to 3 hours late.")] = 0.0,
    broken: Annotated[float, typer.Option(help="Share of records that are broken.")] = 0.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same events.")] = 1,
    start: Annotated[
        str, typer.Option(help="Event time of the first round.")
    ] = "2024-01-01T01:00:00Z",
    text_ids: Annotated[
        bool, typer.Option("--text-ids", help="Visit ids as text: 140444734049152_4.")
    ] = False,
    home: Home = None,
    bootstrap_servers: Servers = None,
    output: Output = Format.table,
) -> None:
    """Send page visits: event_id, visit_id, event_time, page, keyed by visit."""
    from ebbtide.connectors.kafka import Sender
    from ebbtide.local.visits import Visits, pace

    if rate is not None and rate <= 0:
        raise UsageError(f"--rate must be above 0, not {rate}.")
    plan = Visits(count, users, pages, late, broken, seed, _parse_time(start), text_ids)
    settings = with_broker(load_settings(home=home, bootstrap_servers=bootstrap_servers))
    _create(settings, topic)
    with (
        progress_bar(f"Visits to {topic}") as advance,
        Sender(settings.kafka, topic) as sender,
    ):
        for chunk in pace(plan.messages(), rate):
            sender.send_all(chunk)
            advance(sender.sent, count)
    _show_sent(sender.sent, topic, output)


def _create(settings: Settings, topic: str) -> None:
    from ebbtide.connectors.kafka import DEFAULT_PARTITIONS, create_missing_topics

    if create_missing_topics(settings.kafka, [topic]):
        note(f"Created topic {topic} with {DEFAULT_PARTITIONS} partitions.")


def _key(value: bytes, field: str | None) -> bytes | None:
    if field is None:
        return None
    try:
        return str(json.loads(value)[field]).encode()
    except (ValueError, KeyError, TypeError):
        return None


def _parse_time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise UsageError(f"--start {text} is not a time.", "Write 2024-01-01T01:00:00Z.") from None
    return found.astimezone(timezone.utc) if found.tzinfo else found.replace(tzinfo=timezone.utc)


def _show_sent(sent: int, topic: str, output: Format) -> None:
    if output is Format.json:
        show_json({"topic": topic, "sent": sent})
    else:
        note(f"Sent {sent:,} records to {topic}.")
