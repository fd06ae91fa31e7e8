"""The event times that are wrong in, what it takes to reprocess them from the archive out."""

from __future__ import annotations

from datetime import datetime, timedelta

from ebbtide.advice.affected import Wrong
from ebbtide.advice.inputs import Scene, why_no_range
from ebbtide.advice.options import Step, Way
from ebbtide.archive.facts import Archive
from ebbtide.checkpoint import Checkpoint
from ebbtide.connectors import connector_of
from ebbtide.errors import EbbtideError
from ebbtide.reprocess.ranges import Span
from ebbtide.rewind import lease
from ebbtide.storage import open_folder
from ebbtide.times import EPOCH, in_utc

_SECOND, _HOUR = timedelta(seconds=1), timedelta(hours=1)
_SEE = "See what it will do; --compare shows what would change, --execute writes it."


def cost_reprocess(scene: Scene, wrong: Wrong) -> Way:
    """What a reprocess of these event times takes."""
    problem, remedy = _problem(scene, wrong)
    archive, span, connector = scene.archive, wrong.span, connector_of(scene.pipeline.sink).sink
    sink = connector.check_reprocess(scene.pipeline.sink, scene.pipeline).detail
    if isinstance(archive, EbbtideError) or span is None:
        return Way.closed("reprocess", problem or wrong.found, remedy, sink)
    cost = archive.cost(span.start, span.end)
    now, later = split(span, wrong.closed, whole_hours=connector.is_replaced)
    command = _command(scene, now or span)
    return Way(
        "reprocess",
        problem,
        remedy,
        batches=None,
        records=cost.records,
        files=cost.files,
        bytes=cost.bytes,
        retention=_retention(archive, wrong),
        state=_state(scene, wrong),
        stream="runs on; only to load mended code must it be started again",
        sink=sink,
        command=command,
        steps=(
            *scene.first_steps,
            *_catch_up(scene, archive, wrong),
            *([Step(_SEE, command)] if now else []),
            *([_wait(scene, later)] if later else []),
        ),
        remarks=_remarks(archive, wrong),
    )


def split(
    span: Span, closed: datetime | None, *, whole_hours: bool = False
) -> tuple[Span | None, Span | None]:
    """The part of a range whose results are final, and the part that the stream will still write.

    A Delta table takes no result that the stream will write again, so there the final part ends
    with a whole hour: most windows do.

    >>> at = datetime.fromisoformat("2025-09-04T07:00:00+00:00")
    >>> now, later = split(Span(at, at + 3 * _HOUR), at + timedelta(minutes=100))
    >>> now.end == later.start == at + timedelta(minutes=100)
    True
    >>> split(Span(at, at + _HOUR), at)[0] is None, split(Span(at, at + _HOUR), None)[1] is None
    (True, True)
    """
    if closed is None or closed >= span.end:
        return span, None
    cut = closed - (closed - EPOCH) % (_HOUR if whole_hours else _SECOND)
    if cut <= span.start:
        return None, span
    return Span(span.start, cut), Span(cut, span.end)


def _problem(scene: Scene, wrong: Wrong) -> tuple[str | None, str]:
    checkpoint = scene.checkpoint if isinstance(scene.checkpoint, Checkpoint) else None
    # first of all: an archive would not help
    if why := why_no_range(scene.pipeline, checkpoint):
        return f"A range of event time would give other results: {why}.", ""
    if isinstance(scene.archive, EbbtideError):
        return scene.archive.problem, scene.archive.next_step
    if scene.broker.error is not None:
        return scene.broker.error.problem, scene.broker.error.next_step
    return (wrong.found, wrong.remedy) if wrong.span is None else (None, "")


def _command(scene: Scene, span: Span) -> str:
    return scene.command(
        f"ebbtide reprocess {scene.reference} --event-time-start {_short(span.start)} "
        f"--event-time-end {_short(span.end)}",
        *("--home", "--bootstrap-servers", "--timezone"),
    )


def _short(at: datetime) -> str:
    return in_utc(at).replace(".000Z", "Z")


def _catch_up(scene: Scene, archive: Archive, wrong: Wrong) -> tuple[Step, ...]:
    if not wrong.behind:
        return ()
    using = lease.read_lease(open_folder(archive.checkpoint)) if archive.checkpoint else None
    runs = using is not None and using.holder() is not None
    line = f"ebbtide archive {scene.reference} " + ("--status" if runs else "--available-now")
    return (
        Step(
            f"The archive is {wrong.behind:,} records behind the stream: "
            + ("wait until it has caught up." if runs else "bring it up to date."),
            scene.command(line, "--home", "--bootstrap-servers", "--timezone"),
        ),
    )


def _wait(scene: Scene, later: Span) -> Step:
    return Step(
        f"Once the stream's watermark has passed the windows up to {_short(later.end)}, open now.",
        _command(scene, later),
    )


def _retention(archive: Archive, wrong: Wrong) -> str:
    if wrong.lacking:
        return f"version {archive.version} lacks {wrong.lacking:,} of the records"
    if wrong.cut:
        return f"version {archive.version} holds it, and nothing from before"
    if wrong.behind:
        return f"version {archive.version} is {wrong.behind:,} records behind the stream"
    return f"version {archive.version} of the archive holds it"


def _state(scene: Scene, wrong: Wrong) -> str:
    if isinstance(scene.checkpoint, EbbtideError):
        return "stays as it is"
    if not scene.stateful:
        return "the query keeps none"
    if not wrong.open:
        return "stays as it is: nothing wrong is in it"
    return "stays wrong: open windows come out wrong, and are reprocessed once closed"


def _remarks(archive: Archive, wrong: Wrong) -> tuple[str, ...]:
    said = []
    if wrong.lacking:
        said.append(
            f"{wrong.lacking:,} records that the stream has read are not in the archive, which was "
            "begun later."
        )
    if wrong.cut:
        said.append("The archive begins with these records: windows begun before lack some.")
    if wrong.records.late:
        on_time = wrong.records.earliest_on_time
        rest = f" Without them the range begins at {_short(on_time)}." if on_time else ""
        said.append(
            f"Up to {wrong.records.late:,} of the records came behind the watermark, where the "
            f"stream drops them; a reprocess counts them.{rest}"
        )
    if archive.unreadable:
        said.append(f"{archive.unreadable:,} archived records have no event time and stay out.")
    return tuple(said)
