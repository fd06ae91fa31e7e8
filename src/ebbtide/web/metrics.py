"""A checkpoint's history in, out: what Prometheus would be told, as tiles that stay up to date."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ebbtide.formatting import say_bytes
from ebbtide.history import Entry, metrics
from ebbtide.times import say_age
from ebbtide.web.context import Context
from ebbtide.web.filters import say_ago, say_duration, say_moment, say_number
from ebbtide.web.snapshots import Snapshot

_SHOWN = 60
"""So many batches are in a line."""
_PACED = 10
"""So many of the last batches tell the pace."""
_WIDTH, _HEIGHT, _EDGE = 120.0, 28.0, 2.0


@dataclass(frozen=True)
class Line:
    """Values as a line in a box of 120 by 28."""

    path: str
    words: str
    """The same for those who do not see it."""


@dataclass(frozen=True)
class Tile:
    """One measure at a glance."""

    label: str
    value: str
    hint: str
    line: Line


@dataclass(frozen=True)
class Raw:
    """One value as Prometheus writes it."""

    name: str
    value: str
    help: str


def routes(context: Context) -> list[Route]:
    """The metrics of one checkpoint: all at first, then again and again what changes."""
    tallies = _Tallies()

    async def show(request: Request) -> Response:
        def read() -> tuple[Snapshot, list[Tile], list[Raw]]:
            found = context.catalogue.snapshot(request.path_params["key"])
            tally = tallies.of(found)
            return found, list(tiles(list(found.entries.values()), tally)), list(raw(found, tally))

        found, shown, values = await run_in_threadpool(read)
        live = "live" in request.query_params
        return context.render(
            request, "metrics.html", snapshot=found, tiles=shown, raw=values, live=live
        )

    return [Route("/checkpoints/{key}/metrics", show)]


class _Tallies:
    """What the batches of each checkpoint did together, counted once for each of its stamps."""

    def __init__(self) -> None:
        self._counted: dict[str, tuple[str, metrics.BatchTotals]] = {}
        self._lock = threading.Lock()

    def of(self, snapshot: Snapshot) -> metrics.BatchTotals:
        """Of a snapshot's batches."""
        with self._lock:
            stamp, tally = self._counted.get(snapshot.key, ("", metrics.BatchTotals()))
            if stamp != snapshot.stamp:
                tally = metrics.count(list(snapshot.entries.values()))
                self._counted[snapshot.key] = (snapshot.stamp, tally)
            return tally


def tiles(entries: Sequence[Entry], tally: metrics.BatchTotals) -> Iterator[Tile]:
    """What is known of the last batches; a measure of which nothing is known has no tile."""
    if tally.last is None:
        return
    last, recent = tally.last, entries[-_SHOWN:]

    def tile(
        label: str,
        value: str,
        hint: str,
        of: Callable[[Entry], float | None],
        say: Callable[[float], str] = say_number,
    ) -> Tile:
        return Tile(label, value, hint, draw_line([of(entry) for entry in recent], say))

    paced = entries[-_PACED:]
    pace = metrics.rate(paced)
    yield tile(
        "Rows a second",
        "-" if pace is None else f"{pace:,.1f}",
        f"of work in the last {len(paced)} batches" if len(paced) > 1 else "of work in one batch",
        lambda entry: entry.rows,
    )
    if any(entry.lag is not None for entry in recent):
        hint = f"records behind when batch {last.batch:,} was planned"
        yield tile("Lag", say_number(last.lag), hint, lambda entry: entry.lag)
    took = metrics.duration(last)
    yield tile(
        "Last batch took",
        say_duration(None if took is None else took * 1000),
        f"batch {last.batch:,}, {say_ago(last.ended)}",
        metrics.duration,
        lambda seconds: say_duration(seconds * 1000),
    )
    if any(entry.watermark for entry in recent):
        delay = metrics.watermark_delay(last)
        yield tile(
            "Watermark delay",
            "-" if delay is None else say_age(delay),
            f"behind the clock, at {say_moment(last.watermark)}",
            metrics.watermark_delay,
            say_age,
        )
    hint = f"of {tally.rows:,} rows in {tally.batches:,} batches"
    yield tile("Broken in the history", say_number(tally.broken), hint, lambda entry: entry.broken)
    if last.state:
        late = [sample for sample in tally.samples() if sample.measure is metrics.LATE]
        hint = f"{sum(sample.value for sample in late):,.0f} late rows dropped in the history"
        rows, size = metrics.state_size(last, "rows"), metrics.state_size(last, "bytes")
        yield tile("State rows", say_number(rows), hint, lambda e: metrics.state_size(e, "rows"))
        if size is not None:
            hint = f"in {len(last.state)} operators" if len(last.state) > 1 else "in memory"
            yield tile(
                "State size",
                say_bytes(size),
                hint,
                lambda e: metrics.state_size(e, "bytes"),
                say_bytes,
            )


def draw_line(values: Sequence[float | None], say: Callable[[float], str] = say_number) -> Line:
    """Values from left to right, zero at the bottom unless all are far from it.

    >>> draw_line([0, 5, None, 10])
    Line(path='M0 26h0L40 14M120 2h0', words='4 batches, between 0 and 10')
    """
    known = [value for value in values if value is not None]
    if not known:
        return Line("", "nothing is known")
    low, high = min(known), max(known)
    floor = low if low < 0 or 0.9 * high < low < high else 0.0
    step = _WIDTH / max(1, len(values) - 1)
    height = _HEIGHT - 2 * _EDGE
    path, drawing = "", False
    for at, value in enumerate(values):
        if value is not None:
            y = _HEIGHT - _EDGE - height * ((value - floor) / ((high - floor) or 1.0))
            # a point of its own is seen only as a line of no length
            path += f"{'L' if drawing else 'M'}{at * step:.4g} {y:.4g}{'' if drawing else 'h0'}"
        drawing = value is not None
    batches = "1 batch" if len(values) == 1 else f"{len(values)} batches"
    return Line(path, f"{batches}, between {say(low)} and {say(high)}")


def raw(snapshot: Snapshot, tally: metrics.BatchTotals) -> Iterator[Raw]:
    """Names and values as Prometheus has them; how batches spread over the buckets is left out."""
    pipeline = str(snapshot.owner.pipeline or snapshot.name)
    for sample in (*_about(snapshot, tally), *tally.samples()):
        if sample.suffix != "_bucket":
            labels = {"pipeline": pipeline, **sample.labels}
            written = ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())
            yield Raw(f"{sample.name}{{{written}}}", f"{sample.value:.16g}", sample.measure.help)


def _about(snapshot: Snapshot, tally: metrics.BatchTotals) -> Iterator[metrics.Sample]:
    versions = tally.last.versions if tally.last else {}
    if versions:
        known = {"version": versions.get("ebbtide", ""), "spark": versions.get("spark", "")}
        yield metrics.Sample(metrics.INFO, 1, known)
    yield metrics.Sample(metrics.RUNNING, int(snapshot.running is not None))


def _escape(value: str) -> str:
    """As the text format has it."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
