"""The metrics of a checkpoint as tiles that stay up to date, and as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ebbtide.formatting import say_bytes
from ebbtide.history import Entry, metrics
from ebbtide.times import say_age
from ebbtide.web.context import WebContext
from ebbtide.web.filters import format_ago, format_duration, format_number, format_time
from ebbtide.web.snapshots import PerSnapshot, Snapshot

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
    """A description for screen readers."""


@dataclass(frozen=True)
class MetricTile:
    """One metric at a glance."""

    label: str
    value: str
    hint: str
    line: Sparkline


@dataclass(frozen=True)
class RawMetric:
    """One value as Prometheus writes it."""

    name: str
    value: str
    help: str


def routes(context: WebContext) -> list[Route]:
    """The metrics of one checkpoint: the whole page, then only what changes."""
    tallies = PerSnapshot(lambda snapshot: metrics.count(list(snapshot.entries.values())))

    async def show(request: Request) -> Response:
        def read() -> tuple[Snapshot, list[MetricTile], list[RawMetric]]:
            found = context.snapshots.read(request.path_params["key"])
            tally = tallies.get(found)
            return found, list(tiles(list(found.entries.values()), tally)), list(raw(found, tally))

        found, shown, values = await run_in_threadpool(read)
        live = "live" in request.query_params
        return context.render(
            request, "metrics.html", snapshot=found, tiles=shown, raw=values, live=live
        )

    return [Route("/checkpoints/{key}/metrics", show)]


def tiles(entries: Sequence[Entry], tally: metrics.BatchTotals) -> Iterator[MetricTile]:
    """The tiles of the last batches; a metric without any value has none."""
    if tally.last is None:
        return
    last, recent = tally.last, entries[-_SHOWN:]

    def tile(
        label: str,
        value: str,
        hint: str,
        of: Callable[[Entry], float | None],
        format_value: Callable[[float], str] = format_number,
    ) -> MetricTile:
        return MetricTile(
            label, value, hint, draw_sparkline([of(entry) for entry in recent], format_value)
        )

    paced = entries[-_PACED:]
    pace = metrics.rate(paced)
    yield tile(
        "Rows per second",
        "-" if pace is None else f"{pace:,.1f}",
        f"of work in the last {len(paced)} batches" if len(paced) > 1 else "of work in one batch",
        lambda entry: entry.rows,
    )
    if any(entry.lag is not None for entry in recent):
        hint = f"records behind when batch {last.batch:,} was planned"
        yield tile("Lag", format_number(last.lag), hint, lambda entry: entry.lag)
    took = metrics.duration(last)
    yield tile(
        "Last batch took",
        format_duration(None if took is None else took * 1000),
        f"batch {last.batch:,}, {format_ago(last.ended)}",
        metrics.duration,
        lambda seconds: format_duration(seconds * 1000),
    )
    if any(entry.watermark for entry in recent):
        delay = metrics.watermark_delay(last)
        yield tile(
            "Watermark delay",
            "-" if delay is None else say_age(delay),
            f"behind the clock, at {format_time(last.watermark)}",
            metrics.watermark_delay,
            say_age,
        )
    hint = f"of {tally.rows:,} rows in {tally.batches:,} batches"
    yield tile(
        "Broken in the history", format_number(tally.broken), hint, lambda entry: entry.broken
    )
    if last.state:
        late = [sample for sample in tally.samples() if sample.measure is metrics.LATE]
        hint = f"{sum(sample.value for sample in late):,.0f} late rows dropped in the history"
        rows, size = metrics.state_size(last, "rows"), metrics.state_size(last, "bytes")
        yield tile("State rows", format_number(rows), hint, lambda e: metrics.state_size(e, "rows"))
        if size is not None:
            hint = f"in {len(last.state)} operators" if len(last.state) > 1 else "in memory"
            yield tile(
                "State size",
                say_bytes(size),
                hint,
                lambda e: metrics.state_size(e, "bytes"),
                say_bytes,
            )


def draw_sparkline(
    values: Sequence[float | None], format_value: Callable[[float], str] = format_number
) -> Sparkline:
    """Draw values from left to right, with zero at the bottom unless all are far from it.

    >>> draw_sparkline([0, 5, None, 10])
    Sparkline(path='M0 26h0L40 14M120 2h0', words='4 batches, between 0 and 10')
    """
    known = [value for value in values if value is not None]
    if not known:
        return Sparkline("", "no values")
    low, high = min(known), max(known)
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
    batches = "1 batch" if len(values) == 1 else f"{len(values)} batches"
    return Sparkline(path, f"{batches}, between {format_value(low)} and {format_value(high)}")


def raw(snapshot: Snapshot, tally: metrics.BatchTotals) -> Iterator[RawMetric]:
    """Names and values as in Prometheus, without the buckets of histograms."""
    pipeline = str(snapshot.owner.pipeline or snapshot.name)
    for sample in (*_about(snapshot, tally), *tally.samples()):
        if sample.suffix != "_bucket":
            labels = {"pipeline": pipeline, **sample.labels}
            written = ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())
            yield RawMetric(
                f"{sample.name}{{{written}}}", f"{sample.value:.16g}", sample.measure.help
            )


def _about(snapshot: Snapshot, tally: metrics.BatchTotals) -> Iterator[metrics.Sample]:
    versions = tally.last.versions if tally.last else {}
    if versions:
        known = {"version": versions.get("ebbtide", ""), "spark": versions.get("spark", "")}
        yield metrics.Sample(metrics.INFO, 1, known)
    yield metrics.Sample(metrics.RUNNING, int(snapshot.running is not None))


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
