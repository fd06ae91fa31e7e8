"""Write docs/performance.md and its plots from the file with results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from benchmarks.contenders import OURS
from benchmarks.goals import GOALS
from benchmarks.measure import Result
from benchmarks.records import Entry, read_entries
from ebbtide.config import write_whole
from ebbtide.plotting import BLUE, GREY, INK, dress, make_figure, write_figure

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = DOCS / "performance.json"

_HEAD = """\
# Performance

<!-- Written by `make bench` from performance.json. Do not edit. -->

Ebbtide side by side with what else a team could run: the same events, one broker, one run, by
turns. A wrong total disqualifies. The figure to compare is **CPU µs** of the whole process tree per
event, because what else runs on the machine disturbs it least
([how we measure](adr/026-benchmarks.md)). `make bench` repeats all of it; `make bench-quick` takes
five minutes, with sizes that only show that it works.
"""


def write_report(file: Path = RESULTS, folder: Path = DOCS) -> Path:
    """The page in a folder, with plots in its folder `images`."""
    entries = read_entries(file)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    page = folder / "performance.md"
    write_whole(page, "\n".join(_lines(entries, folder)) + "\n")
    return page


def _lines(entries: Sequence[Entry], folder: Path) -> Iterable[str]:
    yield _HEAD
    if any(entry.quick for entry in entries):
        yield "**Some of these figures are of quick runs: they show that the benchmarks work.**\n"
    if not entries:
        yield "No results are kept here yet: `make bench` writes them.\n"
        return
    yield from _goals(entries)
    for entry in entries:
        for work, group in groupby(entry.results, key=lambda result: result.work):
            yield from _work(work, list(group), folder)
        if entry.lines:
            yield f"## {entry.title}\n"
            yield "```\n" + "\n".join(entry.lines) + "\n```\n"
    yield from _circumstances(entries)


def _goals(entries: Sequence[Entry]) -> Iterable[str]:
    results = {(each.work, each.contender): each for entry in entries for each in entry.results}
    works = {work for work, _ in results}
    judged = [goal.judge(results) for goal in GOALS if goal.work in works]
    judged += [ratio for entry in entries for ratio in entry.ratios]
    if judged:
        yield "## Goals\n"
        head = ("work", "Ebbtide's", "goal", "found", "")
        rows = [(each.work, each.text, each.bound, each.value, each.verdict) for each in judged]
        yield from _table(head, rows)
        yield "[Why goals are missed, and what the limit is](adr/032-limits.md).\n"


def _work(work: str, results: list[Result], folder: Path) -> Iterable[str]:
    yield f"## {work[0].upper()}{work[1:]}\n"
    measured = [result for result in results if result.counts]
    if measured:
        name = f"performance-{re.sub(r'[^a-z0-9]+', '-', work.lower())}.svg"
        _plot(work, measured, folder / "images" / name)
        yield f"![CPU time per {results[0].unit} of each contender](images/{name})\n"
    yield f"{max(result.count for result in results):,} {results[0].unit}s.\n"
    unit = results[0].unit
    others = list(dict.fromkeys(name for result in results for name in result.figures))
    usual = (f"CPU µs/{unit}", "spread", f"{unit}s/s", "peak MB", "first output")
    head = ("", *(usual if measured or not others else ()), *others)
    rows = [(_name(result), *_cells(result, others)[1 - len(head) :]) for result in results]
    yield from _table(head, rows)
    remarks = [
        f"- {result.contender}: {text}."
        for result in results
        for text in (result.problem, result.note)
        if text
    ]
    if remarks:
        yield "\n".join(remarks) + "\n"


def _name(result: Result) -> str:
    ours = result.contender.startswith(OURS)  # "Ebbtide, profile latency" is ours, too
    return f"**{result.contender}**" if ours else result.contender


def _cells(result: Result, others: Sequence[str]) -> tuple[str, ...]:
    more = [f"{result.figures[each]:,.4g}" if each in result.figures else "–" for each in others]
    if not result.counts:
        return (*["–"] * 5, *more)
    first = result.first_output_seconds
    return (
        f"{result.cpu_us:,.2f}",
        f"{result.spread:.0%}" if len(result.runs) > 1 else "one run",
        f"{result.per_second:,.0f}",
        f"{result.peak_bytes / 1e6:,.0f}",
        "–" if first is None else f"{first:.1f} s",
        *more,
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'|'.join(['---', *['--:'] * (len(head) - 1)])}|"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _plot(work: str, results: Sequence[Result], file: Path) -> None:
    """Horizontal bars, ours in colour, with the number beside each."""
    figure = make_figure(f"{work}: CPU µs per {results[0].unit}", 0.9 + 0.42 * len(results))
    panel = figure.subplots()
    names = [result.contender for result in results]
    values = [result.cpu_us for result in results]
    colours = [BLUE if name.startswith(OURS) else GREY for name in names]
    bars = panel.barh(names, values, color=colours, height=0.62)
    panel.bar_label(bars, [f"{value:,.2f}" for value in values], padding=4, color=INK)
    dress(panel, "", whole=False)
    panel.set_yticks(range(len(names)), names)
    panel.invert_yaxis()
    panel.grid(visible=False)
    panel.margins(x=0.1)
    panel.set_xticks([])
    panel.spines["bottom"].set_visible(False)
    write_figure(figure, file)


def _circumstances(entries: Sequence[Entry]) -> Iterable[str]:
    yield "## Machine and versions\n"
    for entry in entries:
        machine = entry.machine
        yield (
            f"- `{entry.command}`, {entry.made}, {entry.seconds / 60:.1f} minutes: "
            f"{machine['cores']} cores ({machine['processor']}), "
            f"{machine['memory_bytes'] / 1e9:.0f} GB, {machine['system']}, "
            f"load average {machine['load_average']:.1f} at the end"
        )
    versions = dict(pair for entry in entries for pair in entry.versions.items())
    yield "\n" + " · ".join(f"{name} {number}" for name, number in versions.items())
