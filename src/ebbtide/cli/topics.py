"""The commands `ebbtide produce`, `consume` and `generate visits`."""

from __future__ import annotations

import sys
from datetime import timezone

from ebbtide.cli import options
from ebbtide.cli.commands import argument, command, option
from ebbtide.cli.output import log_line, progress_bar, show_json, with_broker
from ebbtide.config import Settings
from ebbtide.errors import UsageError
from ebbtide.parsing import parse_json
from ebbtide.times import parse_time

_TOPIC = argument("TOPIC", "Name of the topic.")


@command("""echo '{"visit_id": 1, "event_time": "2025-09-04T07:00:00"}' | ebbtide produce visits""")
def produce(
    environment: options.KafkaOptions,
    topic: str = _TOPIC,
    key_field: str | None = option("--key-field NAME", "JSON field whose value becomes the key."),
    output: options.Output = options.OUTPUT,
) -> None:
    """Send each line of stdin to a topic as a record.

    Lines that arrive together are sent together.
    """
    from ebbtide.connectors.kafka import Sender

    settings = with_broker(environment.settings)
    _create_topic(settings, topic)
    with Sender(settings.kafka, topic) as sender:
        for line in sys.stdin.buffer:
            value = line.rstrip(b"\r\n")
            if value:
                sender.send(value, _read_key(value, key_field))
    _show_sent(sender.sent, topic, output)


@command("ebbtide consume visits --from-beginning --max 10 --timeout 5")
def consume(
    environment: options.KafkaOptions,
    topic: str = _TOPIC,
    from_beginning: bool = option("--from-beginning", "Also write records that are there already."),
    max_records: int | None = option("--max N", "Stop after this number of records."),
    timeout: float | None = option("--timeout N", "Stop after this many seconds without a record."),
    output: options.Output = options.OUTPUT,
) -> None:
    """Write the values of a topic to stdout, one per line; with -o json, whole records."""
    from ebbtide.connectors import kafka

    out = sys.stdout.buffer
    for record in kafka.consume(
        with_broker(environment.settings).kafka,
        topic,
        from_beginning=from_beginning,
        max_records=max_records,
        silence_seconds=timeout,
    ):
        line = record.to_json().encode() if output == "json" else (record.value or b"")
        out.write(line + b"\n")
        out.flush()


@command("ebbtide generate visits --count 100000 --late 0.05 --broken 0.01 --seed 7")
def visits(
    environment: options.KafkaOptions,
    topic: str = option("--topic NAME", "Name of the topic.", "visits"),
    count: int = option("--count N", "Number of events.", 10000),
    rate: float | None = option("--rate N", "Events per second (default: as many as possible)."),
    users: int = option("--users N", "Number of concurrent users.", 100),
    pages: int = option("--pages N", "Number of different pages.", 20),
    late: float = option("--late X", "Share of events that are 1 to 3 hours late.", 0.0),
    broken: float = option("--broken X", "Share of records that are broken.", 0.0),
    seed: int = option("--seed N", "The same seed gives the same events.", 1),
    start: str = option("--start TIME", "Event time of the first round.", "2024-01-01T01:00:00Z"),
    text_ids: bool = option("--text-ids", "Visit ids as text, such as 140444734049152_4."),
    output: options.Output = options.OUTPUT,
) -> None:
    """Send page visits with event_id, visit_id, event_time and page, keyed by visit."""
    from ebbtide.connectors.kafka import Sender
    from ebbtide.local import VisitGenerator, pace

    if rate is not None and rate <= 0:
        raise UsageError(f"--rate must be above 0, not {rate}.")
    at = parse_time(start).astimezone(timezone.utc)
    plan = VisitGenerator(count, users, pages, late, broken, seed, at, text_ids)
    settings = with_broker(environment.settings)
    _create_topic(settings, topic)
    with (
        progress_bar(f"Visits to {topic}") as advance,
        Sender(settings.kafka, topic) as sender,
    ):
        for chunk in pace(plan.messages(), rate):
            sender.send_all(chunk)
            advance(sender.sent, count)
    _show_sent(sender.sent, topic, output)


def _create_topic(settings: Settings, topic: str) -> None:
    from ebbtide.connectors.kafka import DEFAULT_PARTITIONS, create_missing_topics

    if create_missing_topics(settings.kafka, [topic]):
        log_line(f"Created topic {topic} with {DEFAULT_PARTITIONS} partitions.")


def _read_key(value: bytes, field: str | None) -> bytes | None:
    if field is None:
        return None
    try:
        return str(parse_json(value)[field]).encode()
    except (ValueError, KeyError, TypeError):
        return None


def _show_sent(sent: int, topic: str, output: options.Output) -> None:
    if output == "json":
        show_json({"topic": topic, "sent": sent})
    else:
        log_line(f"Sent {sent:,} records to {topic}.")
