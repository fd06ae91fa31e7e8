"""Plot what a reprocess changed: old and new values per window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ebbtide import plotting
from ebbtide.formatting import find_runs
from ebbtide.plotting import BLUE, GREEN, GREY, INK, ORANGE, PALE, PURPLE
from ebbtide.reprocessing.diff import ResultDiff
from ebbtide.times import EPOCH, parse_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

Fate = Literal["changed", "new", "gone", "unchanged"]

_FEW = 60
"""The maximum number of windows that are drawn as a mark each; more are drawn as a line."""
_MARK_PIXELS = 9
_OLD, _NEW, _TRACE = ORANGE, BLUE, "#f3c9a8"
_MARKS: dict[Fate, dict[str, Any]] = {
    "new": {"marker": "^", "color": GREEN, "mec": "white", "mew": 0.5},
    "gone": {"marker": "X", "color": PURPLE, "mec": "white", "mew": 0.5},
}


@dataclass(frozen=True)
class Point:
    """One window: what the output held before, and what it holds now.

    >>> at = datetime.fromisoformat("2025-09-04T07:00+00:00")
    >>> Point(at, 3, 5).fate, Point(at, None, 5).fate, Point(at, 3, None).fate, Point(at, 3, 3).fate
    ('changed', 'new', 'gone', 'unchanged')
    """

    start: datetime
    old: float | None
    """None if there was no such window."""
    new: float | None
    """None if there is no such window any more."""

    @property
    def fate(self) -> Fate:
        """Whether it changed, and how."""
        if self.old is None:
            return "new"
        if self.new is None:
            return "gone"
        return "unchanged" if self.old == self.new else "changed"

    @property
    def values(self) -> list[float]:
        """The new and the old value, as far as they exist."""
        return [value for value in (self.new, self.old) if value is not None]

    @property
    def value(self) -> float:
        """The new value, or the old one of a window that is gone."""
        return next(iter(self.values), math.nan)


def draw_diff(diff: ResultDiff, file: Path, *, title: str, zone: str) -> None:
    """Draw old against new per window, and the difference below, with times in `zone`.

    `title` names the pipeline and the range. The file is replaced atomically.
    """
    points = [Point(parse_time(start), old, new) for start, old, new in diff.points]
    figure = compose(points, title=title, measure=diff.measure or "rows", zone=zone)
    plotting.write_figure(figure, file)


def compose(points: Sequence[Point], *, title: str, measure: str, zone: str) -> Figure:
    """The figure before it is written: values above, differences below, on one time axis."""
    figure = plotting.make_figure(title, 6.75)
    ordered = sorted(points, key=lambda point: point.start)
    if not ordered:
        figure.text(0.5, 0.5, "No window in this range.", ha="center", fontsize=12, color=INK)
        return figure
    values, changes = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    _mark_changes((values, changes), ordered)
    _draw_values(values, ordered)
    _draw_changes(changes, ordered)
    whole = all(float(value).is_integer() for point in ordered for value in point.values)
    plotting.dress(values, measure, whole=whole)
    plotting.dress(changes, "new − old", whole=whole)  # noqa: RUF001 - a minus sign
    _set_time_axis(changes, ordered, zone)
    counts = ", ".join(f"{len(_of(ordered, fate)):,} {fate}" for fate in get_args(Fate))
    windows = "1 window" if len(ordered) == 1 else f"{len(ordered):,} windows"
    values.set_title(f"{windows}: {counts}", loc="left", fontsize=10.5, color=INK)
    plotting.add_legend(figure, *values.get_legend_handles_labels())
    if len(ordered) <= _FEW:
        _label(figure, values, ordered)
    return figure


def _of(points: Sequence[Point], fate: Fate) -> list[Point]:
    return [point for point in points if point.fate == fate]


def _times(points: Sequence[Point]) -> list[float]:
    """The starts as days since 1970, matplotlib's unit."""
    return [(point.start - EPOCH) / timedelta(days=1) for point in points]


def _step(points: Sequence[Point]) -> float:
    """The smallest distance from one window to the next, in days."""
    gaps = [after - before for before, after in pairwise(_times(points)) if after > before]
    return min(gaps, default=1 / 144)


def _mark_changes(panels: Sequence[Axes], points: Sequence[Point]) -> None:
    """Draw a pale band behind every run of windows that differ."""
    step, differing = _step(points), [point for point in points if point.fate != "unchanged"]
    for first, last in find_runs(_times(differing), step):
        for panel in panels:
            ends = (first - step / 2, last + step / 2)
            panel.axvspan(*ends, color=_OLD, alpha=0.09, linewidth=0, zorder=0)


def _draw_values(panel: Axes, points: Sequence[Point]) -> None:
    few = len(points) <= _FEW
    same, changed = _of(points, "unchanged"), _of(points, "changed")
    _draw_line(panel, points)
    if few and same:
        _dots(panel, same, [p.value for p in same], "unchanged", color=GREY, ms=6, zorder=2)
    if changed:
        olds, news = [p.old or 0.0 for p in changed], [p.value for p in changed]
        colour, width = (INK, 1.4) if few else (_TRACE, 1.0)
        panel.vlines(_times(changed), olds, news, color=colour, lw=width, zorder=3)
        hollow = {"mfc": "white", "mew": 1.8, "ms": 8} if few else {"ms": 2.5}
        _dots(panel, changed, olds, "changed: old value", color=_OLD, zorder=4, **hollow)
        size = 8 if few else 2.5
        _dots(panel, changed, news, "changed: new value", color=_NEW, ms=size, zorder=5)
    for fate, look in _MARKS.items():
        if some := _of(points, fate):
            ys = [point.value for point in some]
            _dots(panel, some, ys, f"{fate} window", ms=9 if few else 6.5, zorder=6, **look)


def _dots(
    panel: Axes, points: Sequence[Point], ys: Sequence[float], label: str, **look: Any
) -> None:
    panel.plot(_times(points), ys, **{"marker": "o", "ls": "", "label": label, **look})


def _draw_line(panel: Axes, points: Sequence[Point]) -> None:
    """Draw the new values as one line that breaks where windows are missing."""
    present = [point for point in points if point.new is not None]
    xs, ys = _times(present), [point.value for point in present]
    step = _step(points)
    gaps = [n for n in range(1, len(xs)) if xs[n] - xs[n - 1] > 1.5 * step]
    for gap in reversed(gaps):
        xs.insert(gap, xs[gap])
        ys.insert(gap, math.nan)
    look: dict[str, Any] = {"color": PALE, "lw": 2}
    if len(points) > _FEW:
        look = {"color": GREY, "lw": 0.9, "label": "value now"}
    panel.plot(xs, ys, zorder=1, **look)


def _draw_changes(panel: Axes, points: Sequence[Point]) -> None:
    """Draw what each changed window gained or lost, and new and gone ones on the zero line."""
    few = len(points) <= _FEW
    changed = _of(points, "changed")
    by = [point.value - (point.old or 0.0) for point in changed]
    panel.axhline(0, color=GREY, lw=0.8, zorder=1)
    if changed:
        colours = [_NEW if change > 0 else _OLD for change in by]
        panel.vlines(_times(changed), 0, by, colors=colours, lw=9 if few else 1.2, zorder=2)
    for fate, look in _MARKS.items():
        if some := _of(points, fate):
            _dots(panel, some, [0.0] * len(some), "", ms=8 if few else 6, zorder=3, **look)
    panel.margins(y=0.2)
    if not changed:
        panel.set_ylim(-1, 1)


def _set_time_axis(panel: Axes, points: Sequence[Point], zone: str) -> None:
    plotting.show_times(panel, "x", zone)
    panel.set_xlabel(f"start of the window ({zone})", color=INK)
    first, last = _times([points[0], points[-1]])
    margin = max(_step(points), (last - first) * 0.02)
    panel.set_xlim(first - margin, last + margin)


def _label(figure: Figure, panel: Axes, points: Sequence[Point]) -> None:
    """Write `3 → 5` above or below windows that differ, where it covers neither mark nor label."""
    panel.margins(y=0.16)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # what is placed now stays where it is
    taken = [_extent(panel, point) for point in points]
    look: dict[str, Any] = {"ha": "center", "fontsize": 9, "color": INK, "zorder": 7}
    for point in (point for point in points if point.fate != "unchanged"):
        for y, away in ((max(point.values), 9), (min(point.values), -17)):
            at, shift = (_times([point])[0], y), (0, away)
            text = panel.annotate(
                _describe(point), at, xytext=shift, textcoords="offset points", **look
            )
            box = text.get_window_extent()
            inside = panel.bbox.y0 <= box.y0 and box.y1 <= panel.bbox.y1
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            text.remove()


def _extent(panel: Axes, point: Point) -> Bbox:
    """The pixels of a window's marks and the line between them."""
    from matplotlib.transforms import Bbox

    (x,), values = _times([point]), point.values
    corners = panel.transData.transform([(x, min(values)), (x, max(values))])
    return Bbox(corners).padded(_MARK_PIXELS)


def _describe(point: Point) -> str:
    if point.old is None:
        return f"new: {point.value:,.10g}"
    if point.new is None:
        return f"gone: {point.old:,.10g}"
    return f"{point.old:,.10g} → {point.new:,.10g}"
