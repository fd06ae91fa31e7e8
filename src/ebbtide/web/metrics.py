"""The metrics of a checkpoint as tiles that stay up to date, and as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from starlette.responses import Response
from starlette.routing import Route

from ebbtide.formatting import format_bytes
from ebbtide.history import Entry, metrics
from ebbtide.times import format_age
from ebbtide.web import filters
from ebbtide.web.context import WebContext
from ebbtide.web.pages import CheckpointPage, checkpoint_route
from ebbtide.web.per_snapshot import PerSnapshot
from ebbtide.web.snapshots import Snapshot

_SHOWN = 60
"""Number of batches in a sparkline."""
_PACED = 10
"""Number of batches that the rate is computed from."""
_WIDTH, _HEIGHT, _EDGE = 120.0, 28.0, 2.0


@dataclass(frozen=True)
class Sparkline:
    """Values as a line in a box of 120 by 28."""

    path: str
    words: str
    """Its scale, which the line itself does not show."""


@dataclass(frozen=True)
class MetricTile:
    """One metric at a glance."""

    label: str
    value: str
    hint: str
    line: Sparkline
    alarm: bool = False
    """Whether somebody should look at it."""


def routes(context: WebContext) -> list[Route]:
    """The metrics of one checkpoint: the whole page, then only what changes."""
    totals = PerSnapshot(lambda snapshot: metrics.count(list(snapshot.entries.values())))

    def show(page: CheckpointPage) -> Response:
        snapshot, tally = page.snapshot, totals.get(page.snapshot)
        return page.render(
            "metrics.html",
            tiles=list(tiles(list(snapshot.entries.values()), tally)),
            raw=list(list_raw(snapshot, tally)),
            live="live" in page.sent,
        )

    return [checkpoint_route(context, "/metrics", show)]


def tiles(entries: Sequence[Entry], tally: metrics.BatchTotals) -> Iterator[MetricTile]:
    """The tiles of the last batches; a metric without any value has none."""
    if tally.last is None:
        return
    last, recent = tally.last, entries[-_SHOWN:]

    def tile(
        label: str,
        hint: str,
        of: Callable[[Entry], float | None],
        format_value: Callable[[float], str] = filters.format_number,
        value: str = "",
        alarm: bool = False,
    ) -> MetricTile:
        now, line = of(last), draw_sparkline([of(entry) for entry in recent], format_value)
        value = value or (filters.NOTHING if now is None else format_value(now))
        return MetricTile(label, value, hint, line, alarm)

    paced = entries[-_PACED:]
    pace = metrics.rate(paced)
    hint = f"of work in the last {len(paced)} batches" if len(paced) > 1 else "of work in one batch"
    to_text = "{:,.1f}".format
    value = filters.NOTHING if pace is None else to_text(pace)
    yield tile("Rows per second", hint, lambda entry: metrics.rate([entry]), to_text, value)
    if any(entry.lag is not None for entry in recent):
        hint = f"records behind when batch {last.batch} was planned"
        yield tile("Lag", hint, lambda entry: entry.lag)
    hint = f"batch {last.batch}, {filters.format_ago(last.ended)}"
    yield tile(
        "Last batch took", hint, metrics.duration, lambda s: filters.format_duration(s * 1000)
    )
    if any(entry.watermark for entry in recent):
        hint = f"behind the clock, at {filters.format_time(last.watermark)}"
        yield tile("Watermark delay", hint, metrics.watermark_delay, format_age)
    hint = f"of {tally.rows:,} in all {tally.batches:,} batches of the history"
    value, alarm = filters.format_number(tally.broken), any(entry.broken for entry in recent)
    yield tile("Broken records", hint, lambda entry: entry.broken, value=value, alarm=alarm)
    if tally.late is not None:
        hint, value = "after the watermark, in the history", filters.format_number(tally.late)
        yield tile("Late records", hint, _late, value=value)
    if last.state:
        hint = f"in {len(last.state)} operators" if len(last.state) > 1 else "in one operator"
        yield tile("State rows", hint, lambda entry: metrics.state_size(entry, "rows"))
    if metrics.state_size(last, "bytes") is not None:
        hint = f"in {len(last.state)} operators" if len(last.state) > 1 else "in memory"
        yield tile(
            "State size", hint, lambda entry: metrics.state_size(entry, "bytes"), format_bytes
        )


def _late(entry: Entry) -> int | None:
    return None if entry.late is None else entry.late.records


def draw_sparkline(
    values: Sequence[float | None], format_value: Callable[[float], str] = filters.format_number
) -> Sparkline:
    """Draw values from left to right, with zero at the bottom unless all are far from it.

    >>> draw_sparkline([0, 5, None, 10])
    Sparkline(path='M0 26h0L40 14M120 2h0', words='0 to 10 in 4 batches')
    """
    numbers = [value for value in values if value is not None]
    if not numbers:
        return Sparkline("", "no values")
    low, high = min(numbers), max(numbers)
    floor = low if low < 0 or 0.9 * high < low < high else 0.0
    step = _WIDTH / max(1, len(values) - 1)
    height = _HEIGHT - 2 * _EDGE
    path, drawing = "", False
    for at, value in enumerate(values):
        if value is not None:
            y = _HEIGHT - _EDGE - height * ((value - floor) / ((high - floor) or 1.0))
            # an isolated point is visible only as a line of no length
            path += f"{'L' if drawing else 'M'}{at * step:.4g} {y:.4g}{'' if drawing else 'h0'}"
        drawing = value is not None
    batches = filters.format_count(len(values), "batch", "batches")
    ends = dict.fromkeys((format_value(low), format_value(high)))
    return Sparkline(path, f"{' to '.join(ends)} in {batches}")


def list_raw(snapshot: Snapshot, tally: metrics.BatchTotals) -> Iterator[tuple[str, str, str]]:
    """Name, value and help of each metric in Prometheus, without the buckets of histograms."""
    pipeline = str(snapshot.owner.pipeline or snapshot.name)
    for sample in (*_about(snapshot, tally), *tally.samples()):
        if sample.suffix != "_bucket":
            labels = {"pipeline": pipeline, **sample.labels}
            text = ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())
            yield f"{sample.name}{{{text}}}", f"{sample.value:.16g}", sample.measure.help


def _about(snapshot: Snapshot, tally: metrics.BatchTotals) -> Iterator[metrics.Sample]:
    versions = tally.last.versions if tally.last else {}
    if versions:
        labels = {"version": versions.get("ebbtide", ""), "spark": versions.get("spark", "")}
        yield metrics.Sample(metrics.INFO, 1, labels)
    yield metrics.Sample(metrics.RUNNING, int(snapshot.running is not None))


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
