"""The command `ebbtide plan`, which compares the ways to correct wrong results."""

from __future__ import annotations

from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ebbtide.cli import options
from ebbtide.cli.commands import argument, command, option
from ebbtide.cli.output import log_line, progress_bar, show_json, show_table, show_text
from ebbtide.errors import UsageError
from ebbtide.formatting import format_bytes, wrap
from ebbtide.registry import absolute, is_remote, note_use
from ebbtide.times import echo, parse_time

if TYPE_CHECKING:
    from ebbtide.advice import Advice, RecoveryOption

_WIDTH = 80
_UNKNOWN = "?"
_COMMAND = ": ebbtide "
"""What precedes the command at the end of a remedy."""


def _record_use(query: str) -> str:
    from ebbtide.systems import names_pipeline

    if not names_pipeline(query):
        note_use(query)
    return query


@command(
    "ebbtide plan visits-counter --since 2026-01-05T02:00",
    "ebbtide plan visits-counter --since 2025-09-04T07:00 --event-time",
    "ebbtide plan /data/checkpoints/my-job --since 2026-01-05T02:00",
)
def plan(
    environment: options.Environment,
    query: str = argument(
        "QUERY",
        "Built-in job, module:attr or path.py:attr; or the path or URL of a checkpoint.",
        callback=_record_use,
    ),
    since: str = option("--since TIME", "Time since which results are wrong.", ...),
    event_time: bool = option(
        "--event-time", "Read --since as an event time, not as a processing time."
    ),
    event_time_field: str | None = option(
        "--event-time-field NAME",
        "JSON field with the event time, for what the history does not have.",
        panel="With a checkpoint",
    ),
    checkpoint: str | None = options.QUERY_CHECKPOINT,
    output: options.Output = options.OUTPUT,
) -> None:
    """Compare the cost of a rewind and of a reprocess, and recommend one.

    QUERY is a pipeline, or the checkpoint of any Spark job: then only a rewind
    is possible, because a reprocess takes a pipeline and its archive. Nothing
    is changed. Exit 0 if at least one of them is possible.
    """
    from ebbtide.advice import advise_on_checkpoint, compare_options
    from ebbtide.systems import find_pipeline, names_pipeline

    settings = environment.settings
    at = parse_time(since, settings.timezone)
    named = {"checkpoint": checkpoint, **asdict(environment)}
    flags = {f"--{name.replace('_', '-')}": value for name, value in named.items() if value}
    with progress_bar("Reading event times", unit="records", hidden=not event_time) as advance:
        shared = {"event_time": event_time, "flags": flags, "on_read": advance}
        if names_pipeline(query):
            _require_none(event_time_field, "--event-time-field", "a pipeline names the field.")
            pipeline = find_pipeline(query)
            advice = compare_options(
                pipeline, settings, at, checkpoint=checkpoint, reference=query, **shared
            )
        else:
            _require_place(query)
            _require_none(checkpoint, "--checkpoint", f"{query} is taken for a checkpoint itself.")
            advice = advise_on_checkpoint(
                query, settings, at, event_time_field=event_time_field, **shared
            )
    if output == "json":
        show_json(advice.to_dict())
    else:
        _show(advice)
    if not advice.possible:
        raise typer.Exit(1)


def _require_none(value: str | None, flag: str, why: str) -> None:
    if value is not None:
        raise UsageError(f"{flag} cannot be used here: {why}", "Leave it out.")


def _require_place(location: str) -> None:
    """Refuse what is neither a pipeline nor a folder."""
    from ebbtide.systems import READY

    if is_remote(location) or Path(absolute(location)).is_dir():
        return
    similar = get_close_matches(location, READY, 1)
    hint = f" Did you mean {similar[0]}?" if similar else ""
    raise UsageError(
        f"There is no job {location!r}, and no folder of that name that could be a checkpoint."
        f"{hint}",
        f"Ready jobs: {', '.join(READY)}. Name a pipeline of your own as module:attr or "
        "path.py:attr, a checkpoint by its path or URL.",
    )


def _show(advice: Advice) -> None:
    since = echo(advice.since, advice.zone)
    log_line(f"{advice.name}: wrong since {since}, read as {advice.clock}.")
    log_line(f"Times without a zone are read in {advice.zone}; times shown are UTC.")
    if advice.first_batch is not None:
        log_line(f"First batch to replay: {advice.first_batch} ({advice.first_batch_reason}).")
    if advice.span is not None:
        log_line(f"Event times to reprocess: {advice.span} ({advice.span_origin}).")
    rewind, reprocess = advice.rewind, advice.reprocess
    size = format_bytes(rewind.bytes) if rewind.bytes else ""
    rows = [
        ("possible", _possible(rewind), _possible(reprocess)),
        ("reads", _reads(rewind), _reads(reprocess)),
        ("source", rewind.retention, reprocess.retention),
        ("state", f"{size} {rewind.state}".strip(), reprocess.state),
        ("stream", rewind.stream, reprocess.stream),
        ("output", rewind.sink, reprocess.sink),
    ]
    if advice.pipeline is None:  # then nothing is known of a reprocess
        first = ("possible", "yes" if rewind.possible else f"no: {rewind.problem}")
        others = [row[:2] for row in rows[1:] if row[1] != _UNKNOWN]
        show_table(("", "rewind"), [first, *others], folds="rewind")
    else:
        show_table(("", "rewind", "reprocess"), rows, folds=("rewind", "reprocess"))
    show_text(_fill(f"Recommended: {advice.recommended or 'none'}. {advice.reason}"))
    for caveat in advice.caveats:
        show_text(_fill(f"  But: {caveat}", indent=7))
    for chosen in (rewind, reprocess):
        if chosen.possible:
            _show_steps(chosen)
        elif advice.pipeline is None and chosen.remedy:
            _show_remedy(chosen)


def _show_remedy(option: RecoveryOption) -> None:
    text, found, command = f"For a {option.name}: {option.remedy}".rpartition(_COMMAND)
    show_text("\n" + _fill(f"{text}:" if found else command))
    if found:
        show_text(f"     ebbtide {command}")


def _fill(text: str, indent: int = 0) -> str:
    """Break a text into lines, but no path and no option."""
    return f"\n{' ' * indent}".join(wrap(text, _WIDTH - indent))


def _possible(option: RecoveryOption) -> str:
    return "yes" if option.problem is None else f"no: {option.problem} {option.remedy}".rstrip()


def _reads(option: RecoveryOption) -> str:
    if option.name == "rewind" and option.batches is not None:
        records = "? records" if option.records is None else _count(option.records, "records")
        return f"{_count(option.batches, 'batches')}, {records}"
    if option.records is None:
        return _UNKNOWN
    read = f"{_count(option.records, 'records')} in {_count(option.files, 'files')}"
    return f"up to {read}, {format_bytes(option.bytes or 0)}"


def _count(number: int | None, what: str) -> str:
    singular = {"batches": "batch"}.get(what, what[:-1])
    return f"{number or 0:,} {singular if number == 1 else what}"


def _show_steps(option: RecoveryOption) -> None:
    show_text(f"\nTo {option.name}:")
    for number, step in enumerate(option.steps, 1):
        show_text(_fill(f"  {number}. {step.what}", indent=5))
        if step.command:
            show_text(f"     {step.command}")
