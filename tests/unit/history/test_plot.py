"""The picture of a history: what it draws, from one batch to ten thousand, and what it refuses."""

from __future__ import annotations

import os
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from ebbtide.checkpoint import Timeline, layout
from ebbtide.history import Entry, plot
from ebbtide.history.plot import compose
from ebbtide.history.store import write_entry
from ebbtide.history.time_axis import fit_time_axis
from ebbtide.notes import write_note
from ebbtide.rewind import RewindRequest, apply_rewind, plan_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import open_folder
from tests.conftest import Cli
from tests.histories import believable
from tests.trees import Shape, make

PICTURE = Path(__file__).parents[3] / "docs" / "images" / "history.png"
"""Drawn anew with EBBTIDE_SHOTS=1."""


def drawn(figure: Figure, label: str) -> list[Any]:
    """What stands in the legend under a name."""
    found = []
    for panel in figure.axes:
        handles, labels = panel.get_legend_handles_labels()
        found += [handle for handle, name in zip(handles, labels, strict=True) if name == label]
    return found


def labels(figure: Figure) -> list[str]:
    return [panel.get_ylabel() for panel in figure.axes]


def said(figure: Figure) -> list[str]:
    return [title for panel in figure.axes if (title := panel.get_title(loc="left"))]


def test_a_panel_for_each_measure() -> None:
    entries = believable(100)
    figure = compose(entries, title="visits", again=range(40, 100), marks={70: "rewind"})
    assert labels(figure) == ["rows", "seconds", "event time", "lag", "state rows", "KiB"]
    rows, broken = sum(e.rows for e in entries), sum(e.broken for e in entries)
    took, batch = max((entry.durations["triggerExecution"], entry.batch) for entry in entries)
    state = entries[-1].state[0]
    mark, lag = entries[-1].watermark, max(entries, key=lambda entry: entry.lag or 0)
    assert mark is not None
    assert said(figure) == [
        f"100 batches: {rows:,} rows, {broken:,} of them broken",
        f"median 1.4 s, longest {took / 1000:.1f} s (batch {batch})",
        f"watermark at the end {mark[:19].replace('T', ' ')}",
        f"at the end 0 records behind, at most {lag.lag:,} (batch {lag.batch})",
        f"at the end {state['rows']:,} rows, {int(state['bytes']) / 1024:.1f} KiB",
    ]
    (bars,) = drawn(figure, "rows")
    assert [bar.get_height() for bar in bars] == [entry.rows for entry in entries]
    bands = drawn(figure, "can run again")
    assert len(bands) == 5
    assert {(band.get_x(), band.get_x() + band.get_width()) for band in bands} == {(39.5, 99.5)}
    assert [text.get_text() for text in figure.axes[0].texts] == ["rewind"]
    assert figure.get_suptitle() == "visits"
    tick = figure.axes[4].xaxis.get_major_formatter()
    assert (tick(10), tick(100)) == ("10\n06:03:20", "")
    assert figure.axes[4].get_xlabel() == "batch, and when it began on 2026-01-05 (UTC)"


def test_a_batch_is_a_name_and_no_amount() -> None:
    entries = [replace(entry, batch=1000 + entry.batch) for entry in believable(100)]
    figure = compose(entries, title="visits")
    named = [text for text in said(figure) if "(batch " in text]
    assert [re.search(r"\(batch 10\d\d\)$", text) is not None for text in named] == [True, True]
    assert figure.axes[4].xaxis.get_major_formatter()(1010).startswith("1010\n")


def test_of_thousands_some_share_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot, "_PLACES", 100)
    entries = believable(400)
    figure = compose(entries, title="visits", marks={20_000: "beyond"})
    (line,) = drawn(figure, "rows")
    ys = list(line.get_ydata())
    assert len(ys) == 100
    assert ys[0] == pytest.approx(sum(entry.rows for entry in entries[:4]) / 4)
    assert labels(figure)[2] == "behind clock (min)", "as times, a line"
    assert figure.axes[4].get_xlabel().endswith("4 to a place: their mean, and pale their most")
    assert not figure.axes[0].texts


def test_what_is_not_known_has_no_panel() -> None:
    rebuilt = [
        replace(entry, durations={}, state=(), lag=None, broken=0, output=None, rebuilt=True)
        for entry in believable(12)
    ]
    assert labels(compose(rebuilt, title="")) == ["rows", "event time"]
    bare = [Entry(n, "origin", "", "", (), rows=0) for n in (3, 4)]
    figure = compose(bare, title="")
    assert labels(figure) == ["rows"]
    assert said(figure) == ["2 batches: 0 rows, none of them broken"]
    figure.draw_without_rendering()
    never = compose(believable(5)[:2], title="")
    assert said(never)[3] == "never behind"


def test_lines_break_where_batches_are_missing() -> None:
    entries = believable(20)
    figure = compose([*entries[:5], *entries[8:]], title="")
    (line,) = drawn(figure, "rows in the state")
    assert sum(y != y for y in line.get_ydata()) == 1


def test_pauses_are_marked_and_wild_times_left_out() -> None:
    entries = believable(40, pause_at=12)
    wild = replace(entries[30], event_times=("2001-01-01T00:00:00Z", entries[30].ended))
    figure = compose([*entries[:30], wild, *entries[31:]], title="")
    assert [text.get_text() for text in figure.axes[0].texts] == ["3 h pause"]
    assert said(figure)[2].endswith("; event times beyond the panel: 1")
    low, high = figure.axes[2].get_ylim()
    assert high - low < 60, "minutes behind the clock, not years"


@pytest.mark.parametrize("batches", [10, 26, 51, 120])
@pytest.mark.parametrize("wrong", ["1970-01-01T00:00:00Z", "9998-12-31T23:59:59Z"])
def test_one_wrong_clock_does_not_hide_the_others(batches: int, wrong: str) -> None:
    entries = believable(batches)
    entries[4] = replace(entries[4], event_times=(wrong, wrong))
    spans = fit_time_axis(entries)
    assert spans is not None
    assert spans.beyond == 2
    assert spans.high - spans.low < 3600 + batches * 20


def test_what_many_batches_have_is_not_left_out() -> None:
    """A stream that paused for a year: both sides of the pause are seen."""
    entries = believable(30)
    for number in range(26):
        times = f"2025-01-05T06:{number:02d}", f"2025-01-05T06:{number:02d}:59"
        entries[number] = replace(entries[number], event_times=times, watermark=None)
    spans = fit_time_axis(entries)
    assert spans is not None
    assert (spans.behind, spans.beyond) == (False, 0)


@pytest.mark.parametrize("far", ["9998-12-31T23:59:59Z", "0002-01-01T00:00:00Z"])
def test_the_ends_of_the_calendar(far: str) -> None:
    """The room around them must not leave it."""
    entries = [replace(entry, event_times=(far, entry.ended)) for entry in believable(2)]
    figure = compose(entries, title="")
    assert labels(figure)[2] == "event time"
    figure.draw_without_rendering()


def test_old_records_read_at_once_are_drawn_as_times() -> None:
    """Behind the clock they would be as long a line, of years."""
    entries = [
        replace(entry, event_times=(f"2024-01-{day:02d}", f"2024-01-{day:02d}T06"), watermark=None)
        for day, entry in enumerate(believable(31)[1:], start=1)
    ]
    assert labels(compose(entries, title=""))[2] == "event time"


def ran(folder: Path, batches: int, logged: int) -> Path:
    """A checkpoint with a history longer than its logs, rewound once and run on."""
    shape = Shape("hdfs", batches=logged, first=batches - logged)
    make(folder, shape)
    opened, entries = open_folder(str(folder)), believable(batches, pause_at=batches // 4)
    write_note(opened, layout.OWNER, {"pipeline": "visits-counter"})
    again = batches - logged // 3
    for entry in entries:
        write_entry(opened, entry)
    apply_rewind(
        plan_rewind(RewindRequest(str(folder), ToBatch(again), assume_stopped=True, remedy="none")),
        assume_stopped=True,
    )
    name = Timeline.read(opened).name
    make(folder, shape)
    for entry in entries[again:]:
        write_entry(opened, replace(entry, timeline=name))
    return folder


def test_the_command(inside: Cli, tmp_path: Path) -> None:
    if shots := "EBBTIDE_SHOTS" in os.environ:
        PICTURE.parent.mkdir(exist_ok=True)
    folder = ran(tmp_path / "c", 120 if shots else 12, 60 if shots else 9)
    file = PICTURE if shots else tmp_path / "history.png"
    answer = inside("history", folder, "--plot", file, "--home", tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert f"Drawn: {file}" in answer.stderr.replace("\n", "")
    assert "batch" in answer.stdout
    content = file.read_bytes()
    assert content.startswith(b"\x89PNG\r\n")
    assert struct.unpack(">II", content[16:24]) == (1800, 1552)
    assert 50_000 < len(content) < 500_000
    assert [name for name in os.listdir(file.parent) if name.startswith(".")] == []


def test_what_cannot_be_drawn(inside: Cli, tmp_path: Path) -> None:
    bare = make(tmp_path / "c", Shape(batches=3))
    for file, code, words in (
        (tmp_path / "a.jpg", 2, "Use a name that ends in .png, .svg or .pdf."),
        (tmp_path / "none" / "a.png", 2, f"There is no folder {tmp_path / 'none'}."),
        (tmp_path / "a.png", 1, f"{bare} has no history to draw. ebbtide run keeps one;"),
    ):
        answer = inside("history", bare, "--plot", file, "--home", tmp_path)
        assert (answer.returncode, answer.stdout) == (code, "")
        assert words in answer.stderr.replace("\n", "")
        assert not file.exists()
