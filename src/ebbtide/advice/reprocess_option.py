"""Work out what a reprocess of the affected event times from the archive would cost."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from shlex import quote

from ebbtide.advice.affected import AffectedResults
from ebbtide.advice.inputs import FLAGS, PipelineInputs, why_no_range
from ebbtide.advice.options import RecoveryOption, RecoveryStep
from ebbtide.archive import Archive, who_fills
from ebbtide.checkpoint import Checkpoint
from ebbtide.connectors import connector_of
from ebbtide.errors import EbbtideError
from ebbtide.reprocessing import EventTimeRange
from ebbtide.times import EPOCH, in_utc

_SECOND, _HOUR = timedelta(seconds=1), timedelta(hours=1)
_SHOW = "Show the plan. Add --compare to see what would change, --execute to write it."


def cost_reprocess(inputs: PipelineInputs, affected: AffectedResults) -> RecoveryOption:
    """What it takes to reprocess the affected event times."""
    problem, remedy = _problem(inputs, affected)
    connector = connector_of(inputs.pipeline.sink).sink
    sink = connector.check_reprocess(inputs.pipeline.sink, inputs.pipeline).detail
    archive, span = inputs.archive, affected.span
    if isinstance(archive, EbbtideError) or span is None:
        return RecoveryOption("reprocess", problem or affected.origin, remedy, sink=sink)
    cost = archive.cost(span.start, span.end)
    now, later = split(span, affected.closed, whole_hours=connector.is_replaced)
    return RecoveryOption(
        "reprocess",
        problem,
        remedy,
        records=cost.records,
        files=cost.files,
        bytes=cost.bytes,
        retention=_retention(archive, affected),
        state=_state(inputs, affected),
        stream="keeps running; restart it only to load corrected code",
        sink=sink,
        command=_command(inputs, now or span),
        steps=tuple(_steps(inputs, archive, affected.behind, now, later)),
        remarks=tuple(_remarks(archive, affected)),
    )


def refuse_reprocess(location: str) -> RecoveryOption:
    """A query of which only the checkpoint is known cannot be reprocessed."""
    return RecoveryOption(
        "reprocess",
        "It takes a pipeline and its archive, and a checkpoint names neither.",
        "Write the job as a pipeline with an archive, which holds the records from then on. "
        f"If it is one already: ebbtide plan PIPELINE --checkpoint {quote(location)} --since TIME",
    )


def split(
    span: EventTimeRange, closed: datetime | None, *, whole_hours: bool = False
) -> tuple[EventTimeRange | None, EventTimeRange | None]:
    """The part of a range whose results are final, and the part that the stream will still write.

    A Delta table takes no result that the stream will write again, so there the final part ends
    with a whole hour: most windows do.

    >>> at = datetime.fromisoformat("2025-09-04T07:00:00+00:00")
    >>> now, later = split(EventTimeRange(at, at + 3 * _HOUR), at + timedelta(minutes=100))
    >>> now.end == later.start == at + timedelta(minutes=100)
    True
    >>> hour = EventTimeRange(at, at + _HOUR)
    >>> split(hour, at)[0] is None, split(hour, None)[1] is None
    (True, True)
    """
    if closed is None or closed >= span.end:
        return span, None
    cut = closed - (closed - EPOCH) % (_HOUR if whole_hours else _SECOND)
    if cut <= span.start:
        return None, span
    return EventTimeRange(span.start, cut), EventTimeRange(cut, span.end)


def _problem(inputs: PipelineInputs, affected: AffectedResults) -> tuple[str | None, str]:
    checkpoint = inputs.checkpoint if isinstance(inputs.checkpoint, Checkpoint) else None
    # first, because no archive would help
    if why := why_no_range(inputs.pipeline, checkpoint):
        return f"A range of event time would give other results: {why}.", ""
    for error in (inputs.archive, inputs.broker_error):
        if isinstance(error, EbbtideError):
            return error.problem, error.next_step
    return (affected.origin, affected.remedy) if affected.span is None else (None, "")


def _command(inputs: PipelineInputs, span: EventTimeRange) -> str:
    times = f"--event-time-start {_short(span.start)} --event-time-end {_short(span.end)}"
    return inputs.command(f"ebbtide reprocess {inputs.reference} {times}", *FLAGS)


def _short(at: datetime) -> str:
    return in_utc(at).replace(".000Z", "Z")


def _steps(
    inputs: PipelineInputs,
    archive: Archive,
    behind: int,
    now: EventTimeRange | None,
    later: EventTimeRange | None,
) -> Iterator[RecoveryStep]:
    yield from inputs.first_steps
    if behind:
        what, flag = "bring it up to date.", "--available-now"
        if archive.checkpoint and who_fills(archive.checkpoint) is not None:
            what, flag = "wait until it has caught up.", "--status"
        command = inputs.command(f"ebbtide archive {inputs.reference} {flag}", *FLAGS)
        yield RecoveryStep(f"The archive is {behind:,} records behind the stream: {what}", command)
    if now:
        yield RecoveryStep(_SHOW, _command(inputs, now))
    if later:
        yield RecoveryStep(
            "Wait until the stream's watermark has passed the windows up to "
            f"{_short(later.end)}, which are still open. Then reprocess them.",
            _command(inputs, later),
        )


def _retention(archive: Archive, affected: AffectedResults) -> str:
    version = f"archive version {archive.version}"
    if affected.missing:
        return f"{version} lacks {affected.missing:,} of the records"
    if affected.cut:
        return f"{version} holds the records, but no earlier ones"
    if affected.behind:
        return f"{version} is {affected.behind:,} records behind the stream"
    return f"{version} holds the records"


def _state(inputs: PipelineInputs, affected: AffectedResults) -> str:
    if isinstance(inputs.checkpoint, EbbtideError):
        return "is not changed"
    if not inputs.stateful:
        return "the query keeps none"
    if not affected.in_state:
        return "is not changed: it holds nothing wrong"
    return "stays wrong: reprocess the open windows once they are closed"


def _remarks(archive: Archive, affected: AffectedResults) -> Iterator[str]:
    if affected.missing:
        yield (
            f"{affected.missing:,} records that the stream has read are not in the archive, which "
            "was started later."
        )
    if affected.cut:
        yield "The archive begins with these records: earlier windows are incomplete."
    if affected.records.late:
        on_time = affected.records.earliest_on_time
        rest = f" Without them, the range begins at {_short(on_time)}." if on_time else ""
        yield (
            f"Up to {affected.records.late:,} of the records arrived behind the watermark, where "
            f"the stream drops them; a reprocess counts them.{rest}"
        )
    if archive.unreadable:
        yield f"{archive.unreadable:,} archived records have no event time: left out."
