"""Draw a history: rows, durations, event times, lag and state by batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from ebbtide import plotting
from ebbtide.formatting import find_runs
from ebbtide.history.metrics import duration, state_size, to_seconds
from ebbtide.history.store import Entry
from ebbtide.history.time_axis import fit_time_axis
from ebbtide.times import format_age

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Value = Callable[[Entry], float | None]

_PLACES = 600
"""Up to this many batches have a place of their own; otherwise neighbours share one."""
_APART = 150
"""Up to this many batches have a gap between their bars."""
_LEAST = 8
"""The axis has room for this many at least, so that one bar does not fill it."""
_PAUSES = 4
"""The maximum number of pauses shown, the longest ones."""
_DAY_SECONDS = 86_400.0
_TIMES = (("days", _DAY_SECONDS), ("h", 3600.0), ("min", 60.0), ("s", 1.0))
_SIZES = (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0))


def draw_history(
    entries: Sequence[Entry],
    file: Path,
    *,
    title: str,
    again: Collection[int] = (),
    marks: Mapping[int, str] = {},
) -> None:
    """Draw entries, oldest first, to a file, which is written whole and renamed into place.

    `again` are the batches that can still run again, `marks` events before a batch.
    """
    plotting.write_figure(compose(entries, title=title, again=again, marks=marks), file)


def compose(
    entries: Sequence[Entry],
    *,
    title: str,
    again: Collection[int] = (),
    marks: Mapping[int, str] = {},
) -> Figure:
    """The picture: one panel for each measure that is known of some batch."""
    groups = _Groups(entries)
    panels = [panel for panel in _PANELS if any(panel.of(entry) is not None for entry in entries)]
    figure = plotting.make_figure(title, 1.6 + 1.75 * len(panels))
    axes: list[Axes] = list(figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0])
    _shade(axes, again, entries)
    for place, panel in zip(axes, panels, strict=True):
        plotting.dress(place, panel.label, whole=panel.whole)
        place.tick_params(axis="x", length=0)
        title_ = panel.draw(place, groups)
        place.set_title(title_, loc="left", fontsize=10.5, color=plotting.INK)
    _mark(axes, _pauses(entries), entries, plotting.GREY, ":")
    _mark(axes, marks, entries, plotting.PURPLE, "--")
    _number_batches(axes[-1], groups)
    figure.align_ylabels(axes)
    handles = {
        label: handle
        for place in figure.axes
        for handle, label in zip(*place.get_legend_handles_labels(), strict=True)
    }
    plotting.add_legend(figure, list(handles.values()), list(handles))
    return figure


class _Groups:
    """Batches by their place on the axis, which neighbours may share."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self.size = math.ceil(len(entries) / _PLACES)
        self.groups = [entries[at : at + self.size] for at in range(0, len(entries), self.size)]
        self.apart = len(entries) <= _APART

    def read(
        self, of: Value, pick: Callable[[list[float]], float]
    ) -> tuple[list[float], list[float]]:
        """Places and values; NaN breaks the line where batches are missing."""
        xs, ys = [], []
        last: int | None = None
        for group in self.groups:
            if last is not None and group[0].batch - last > 1:
                xs.append((group[0].batch + last) / 2)
                ys.append(math.nan)
            values = [value for entry in group if (value := of(entry)) is not None]
            xs.append(fmean(entry.batch for entry in group))
            ys.append(pick(values) if values else math.nan)
            last = group[-1].batch
        return xs, ys


def _draw_bars(panel: Axes, groups: _Groups, of: Value, colour: str, label: str) -> None:
    """Bars from zero; if batches share a place, a pale maximum and a line for the mean."""
    xs, highest = groups.read(of, max)
    if groups.size > 1:
        panel.fill_between(xs, highest, step="mid", color=colour, alpha=0.3, lw=0)
        panel.plot(*groups.read(of, fmean), color=colour, lw=1.1, label=label)
    elif groups.apart:
        panel.bar(xs, highest, width=0.8, color=colour, label=label, lw=0)
    else:
        panel.fill_between(xs, highest, step="mid", color=colour, label=label, lw=0)
    panel.set_ylim(0, max(y for y in highest if not math.isnan(y)) * 1.08 or 1)


def _draw_line(
    panel: Axes, groups: _Groups, of: Value, colour: str, label: str, room: float
) -> None:
    dots: dict[str, Any] = {"marker": "o", "ms": 3.5} if len(groups.groups) <= 60 else {}
    xs, ys = groups.read(of, fmean)
    panel.plot(xs, ys, color=colour, lw=1.5, label=label, **dots)
    panel.set_ylim(0, max(y for y in ys if not math.isnan(y)) * room or 1)


def _draw_rows(panel: Axes, groups: _Groups) -> str:
    entries = groups.entries
    rows, broken = sum(entry.rows for entry in entries), sum(entry.broken for entry in entries)
    _draw_bars(panel, groups, lambda entry: entry.rows, plotting.BLUE, "rows")
    if broken:
        _draw_broken(panel, groups)
    batches = "1 batch" if len(entries) == 1 else f"{len(entries):,} batches"
    return f"{batches}: {rows:,} rows, {f'{broken:,}' if broken else 'none'} of them broken"


def _draw_broken(panel: Axes, groups: _Groups) -> None:
    """Bars, and marks below the axis: a few among many rows would be invisible."""
    xs, most = groups.read(lambda entry: entry.broken, max)
    width = 0.8 if groups.apart else groups.size
    panel.bar(xs, most, width=width, color=plotting.ORANGE, lw=0, zorder=3)
    runs = find_runs([x for x, y in zip(xs, most, strict=True) if y > 0], groups.size)
    below: dict[str, Any] = {"transform": panel.get_xaxis_transform(), "clip_on": False}
    for first, last in runs:
        ends = (first - width / 2, last + width / 2)
        panel.plot(
            ends, (-0.045, -0.045), color=plotting.ORANGE, lw=3.5, solid_capstyle="butt", **below
        )
    # a single batch among thousands would be narrower than a dot
    look: dict[str, Any] = {"marker": "s", "ms": 3, "mew": 0, "ls": "", "label": "broken"}
    middles = [(first + last) / 2 for first, last in runs]
    panel.plot(middles, [-0.045] * len(runs), color=plotting.ORANGE, **look, **below)


def _draw_durations(panel: Axes, groups: _Groups) -> str:
    _draw_bars(panel, groups, duration, plotting.GREY, "time taken")
    taken = [(t, entry.batch) for entry in groups.entries if (t := duration(entry)) is not None]
    longest, batch = max(taken)
    middle = median(t for t, _ in taken)
    return f"median {middle:,.1f} s, longest {longest:,.1f} s (batch {batch})"


def _draw_event_times(panel: Axes, groups: _Groups) -> str:
    """Earliest to latest, and the watermark: as times or, if that shows more, behind the clock."""
    axis = fit_time_axis(groups.entries)
    assert axis is not None, "else there is no such panel"
    unit, scale = _unit(_TIMES, axis.high - axis.low) if axis.behind else ("", _DAY_SECONDS)

    def of(name: str) -> Value:
        times = {id_: getattr(span, name) for id_, span in axis.by_batch.items()}
        return lambda entry: None if (time := times[entry.batch]) is None else time / scale

    _draw_spans(panel, groups, of("earliest"), of("latest"))
    marks = [entry.watermark for entry in groups.entries if entry.watermark]
    if marks:
        xs, ys = groups.read(of("watermark"), max)
        panel.plot(xs, ys, color=plotting.ORANGE, lw=1.6, label="watermark", drawstyle="steps-mid")
    panel.set_ylim(axis.low / scale, axis.high / scale)
    if axis.behind:
        panel.set_ylabel(f"behind clock ({unit})")
        panel.yaxis.set_major_formatter(lambda value, _at: f"{-value or 0:,.10g}")
    else:
        plotting.show_times(panel, "y", "UTC", at_least=2, at_most=6)
        panel.yaxis.get_offset_text().set_visible(False)
    text = f"watermark at the end {marks[-1][:19].replace('T', ' ')}" if marks else "no watermark"
    return f"{text}; event times beyond the panel: {axis.beyond:,}" if axis.beyond else text


def _draw_spans(panel: Axes, groups: _Groups, earliest: Value, latest: Value) -> None:
    xs, lows = groups.read(earliest, min)
    _, highs = groups.read(latest, max)
    look: dict[str, Any] = {"color": plotting.BLUE, "label": "event times"}
    if groups.apart:
        heights = [high - low for low, high in zip(lows, highs, strict=True)]
        # the edge makes a single moment visible
        panel.bar(xs, heights, width=0.8, bottom=lows, alpha=0.55, lw=1.2, ec=plotting.BLUE, **look)
    else:
        panel.fill_between(xs, lows, highs, step="mid", alpha=0.5, lw=0.6, **look)


def _draw_lag(panel: Axes, groups: _Groups) -> str:
    _draw_bars(panel, groups, lambda entry: entry.lag, plotting.PURPLE, "lag")
    lags = [(entry.lag, entry.batch) for entry in groups.entries if entry.lag is not None]
    most, batch = max(lags)
    if not most:
        return "never behind"
    return f"at the end {lags[-1][0]:,} records behind, at most {most:,} (batch {batch})"


def _state_rows(entry: Entry) -> int | None:
    return state_size(entry, "rows")


def _draw_state(panel: Axes, groups: _Groups) -> str:
    _draw_line(panel, groups, _state_rows, plotting.GREEN, "rows in the state", 1.1)
    rows = [count for entry in groups.entries if (count := _state_rows(entry)) is not None]
    sizes = [size for e in groups.entries if (size := state_size(e, "bytes")) is not None]
    text = f"at the end {rows[-1]:,} rows"
    if not sizes:
        return text
    unit, scale = _unit(_SIZES, max(sizes))

    def scaled(entry: Entry) -> float | None:
        return None if (size := state_size(entry, "bytes")) is None else size / scale

    beside = panel.twinx()
    plotting.dress(beside, unit, whole=False)
    beside.grid(visible=False)
    beside.spines["right"].set(visible=True, color=plotting.GREY)
    _draw_line(beside, groups, scaled, plotting.GREY, "its size", 1.35)  # apart from the other
    return f"{text}, {sizes[-1] / scale:,.1f} {unit}"


def _unit(units: Sequence[tuple[str, float]], value: float) -> tuple[str, float]:
    """The largest unit in which the value is at least 1.5."""
    return next((unit for unit in units if value >= 1.5 * unit[1]), units[-1])


@dataclass(frozen=True)
class _Panel:
    label: str
    draw: Callable[[Axes, _Groups], str]
    """Draws the panel and returns its title."""
    of: Value
    """What must be known of at least one batch."""
    whole: bool = True


_PANELS = (
    _Panel("rows", _draw_rows, lambda entry: entry.rows),
    _Panel("seconds", _draw_durations, duration, whole=False),
    _Panel(
        "event time",
        _draw_event_times,
        lambda entry: to_seconds(entry.event_times[0] if entry.event_times else entry.watermark),
    ),
    _Panel("lag", _draw_lag, lambda entry: entry.lag),
    _Panel("state rows", _draw_state, _state_rows),
)


def _shade(axes: Sequence[Axes], again: Collection[int], entries: Sequence[Entry]) -> None:
    """A pale band behind the batches that can still run again."""
    there = sorted({entry.batch for entry in entries} & set(again))
    for panel in axes:
        for first, last in find_runs(there):
            look: dict[str, Any] = {"color": plotting.GREEN, "alpha": 0.11, "lw": 0, "zorder": 0}
            panel.axvspan(first - 0.5, last + 0.5, label="can run again", **look)


def _pauses(entries: Sequence[Entry]) -> dict[int, str]:
    """Long pauses by the batch that follows, as the axis of batches does not show them."""
    times = [(to_seconds(e.started), to_seconds(e.ended), e.batch) for e in entries]
    gaps = [
        (start - end, batch)
        for (_, end, _), (start, _, batch) in pairwise(times)
        if start is not None and end is not None
    ]
    usual = median(gap for gap, _ in gaps) if gaps else 0
    long = [(gap, batch) for gap, batch in gaps if gap > max(60.0, 30 * usual)]
    return {batch: f"{format_age(gap)} pause" for gap, batch in sorted(long)[-_PAUSES:]}


def _mark(
    axes: Sequence[Axes],
    marks: Mapping[int, str],
    entries: Sequence[Entry],
    colour: str,
    style: str,
) -> None:
    """A line through all panels where something happened, with its label in the first."""
    first, last = entries[0].batch, entries[-1].batch
    for batch, text in marks.items():
        if not first <= batch <= last:
            continue
        for panel in axes:
            panel.axvline(batch - 0.5, color=colour, ls=style, lw=1.2, zorder=4)
        right = batch < first + 0.85 * (last - first)
        axes[0].annotate(
            text,
            (batch - 0.5, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(3 if right else -3, -2),
            textcoords="offset points",
            ha="left" if right else "right",
            va="top",
            fontsize=8.5,
            color=colour,
            bbox={"facecolor": "white", "alpha": 0.8, "lw": 0, "pad": 1},
            zorder=6,
        )


def _number_batches(panel: Axes, groups: _Groups) -> None:
    """Batches along the axis, each with the time at which it began."""
    from matplotlib.ticker import MaxNLocator

    entries = groups.entries
    began = {entry.batch: entry.started for entry in entries}
    dates = {time[:10] for time in began.values()}
    start, end = (11, 19) if len(dates) == 1 else (5, 16)

    def label(batch: float, _at: float) -> str:
        time = began.get(round(batch))
        return f"{batch:.0f}\n{time[start:end].replace('T', ' ')}" if time else ""

    first, last = entries[0].batch, entries[-1].batch
    margin = max(0.7, (last - first) * 0.005)
    panel.set_xlim(first - margin, max(last, first + _LEAST - 1) + margin)
    panel.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True, min_n_ticks=1))
    panel.xaxis.set_major_formatter(label)
    day = f" on {dates.pop()}" if len(dates) == 1 else ""
    more = f"; {groups.size} to a place: their mean, and pale their most" if groups.size > 1 else ""
    panel.set_xlabel(f"batch, and when it began{day} (UTC){more}", color=plotting.INK)
