"""The picture of old and new results: what it draws, what it refuses."""

from __future__ import annotations

import os
import struct
import sys
from datetime import datetime, timedelta, timezone
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from ebbtide.errors import EbbtideError, MissingExtraError, UsageError
from ebbtide.plotting import check_plot_file
from ebbtide.reprocessing.diff import ResultDiff
from ebbtide.reprocessing.plot import Point, compose, draw_diff

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
START = datetime(2025, 9, 4, 7, tzinfo=timezone.utc)


def at(n: int) -> datetime:
    return START + timedelta(minutes=10 * n)


def picture(points: list[Point], zone: str = "UTC") -> Figure:
    return compose(points, title="visits-counter, today", measure="count", zone=zone)


def drawn(figure: Figure, label: str, panel: int = 0) -> list[tuple[datetime, float]]:
    """The marks of one kind, as times and values."""
    lines: list[Any] = [x for x in figure.axes[panel].get_lines() if x.get_label() == label]
    return [
        (EPOCH + timedelta(seconds=round(float(x) * 86_400)), float(y))
        for line in lines
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    ]


MIXED = [
    Point(at(0), 3, 5),
    Point(at(1), 4, 4),
    Point(at(2), None, 7),
    Point(at(3), 6, None),
    Point(at(4), 9, 8),
]


def test_each_window_is_drawn_as_what_became_of_it() -> None:
    figure = picture(list(reversed(MIXED)))
    assert drawn(figure, "changed: old value") == [(at(0), 3), (at(4), 9)]
    assert drawn(figure, "changed: new value") == [(at(0), 5), (at(4), 8)]
    assert drawn(figure, "unchanged") == [(at(1), 4)]
    assert drawn(figure, "new window") == [(at(2), 7)]
    assert drawn(figure, "gone window") == [(at(3), 6)]
    differences: Any = figure.axes[1].collections[0]
    ends = [segment[1][1] for segment in differences.get_segments()]
    assert ends == [2, -1]
    assert figure.axes[0].get_title(loc="left") == (
        "5 windows: 2 changed, 1 new, 1 gone, 1 unchanged"
    )
    assert figure.get_suptitle() == "visits-counter, today"
    labels = [text.get_text() for text in figure.axes[0].texts]
    assert labels == ["3 → 5", "new: 7", "gone: 6", "9 → 8"]


def test_the_axis_is_in_the_zone() -> None:
    figure = picture(MIXED, "Asia/Kolkata")
    assert "Asia/Kolkata" in figure.axes[1].get_xlabel()
    figure.draw_without_rendering()
    shown = [label.get_text() for label in figure.axes[1].get_xticklabels()]
    assert "12:30" in shown  # 07:00 UTC


def test_labels_cover_neither_each_other_nor_the_edge() -> None:
    figure = picture([Point(at(n), 1000 + n % 7, 1004 + n % 5) for n in range(40)])
    figure.draw_without_rendering()
    panel = figure.axes[0]
    boxes = [text.get_window_extent() for text in panel.texts]
    assert boxes
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    assert all(box.y1 <= figure.bbox.y1 and box.y0 >= panel.bbox.y0 - 1 for box in boxes)


def test_thousands_of_windows_are_a_line_with_the_changes_on_it() -> None:
    points = [Point(at(n), n % 90, n % 90 + (5 if n % 100 == 0 else 0)) for n in range(3000)]
    figure = picture(points)
    assert len(drawn(figure, "value now")) == 3000
    assert len(drawn(figure, "changed: new value")) == 30
    assert drawn(figure, "unchanged") == []
    assert len(figure.axes[0].texts) == 0  # no room for words
    bands = [patch for patch in figure.axes[0].patches if patch.get_alpha()]
    assert len(bands) == 30


def test_the_line_breaks_where_windows_are_missing() -> None:
    points = [Point(at(n), 1, 1) for n in [*range(50), *range(70, 120)]]
    values = [y for _, y in drawn(picture(points), "value now")]
    assert sum(y != y for y in values) == 1


def test_neighbours_that_differ_share_one_band() -> None:
    figure = picture([Point(at(n), 1, 2 if n in (3, 4, 5, 9) else 1) for n in range(12)])
    assert len([patch for patch in figure.axes[0].patches if patch.get_alpha()]) == 2


def test_a_range_without_windows_says_so() -> None:
    figure = picture([])
    assert [text.get_text() for text in figure.texts][-1] == "No window in this range."


def test_the_file_is_a_png_of_sane_size(tmp_path: Path) -> None:
    file = tmp_path / "changes.png"
    points = tuple((point.start.isoformat(), point.old, point.new) for point in MIXED)
    draw_diff(ResultDiff(points=points), file, title="visits-counter", zone="UTC")
    content = file.read_bytes()
    assert content.startswith(b"\x89PNG\r\n")
    width, height = struct.unpack(">II", content[16:24])
    assert (width, height) == (1800, 1012)
    assert 10_000 < len(content) < 500_000
    assert os.listdir(tmp_path) == ["changes.png"]  # nothing half-written beside it


@pytest.mark.parametrize(("name", "begins"), [("a.svg", b"<?xml"), ("a.PDF", b"%PDF")])
def test_other_kinds(tmp_path: Path, name: str, begins: bytes) -> None:
    draw_diff(ResultDiff(), tmp_path / name, title="none", zone="UTC")
    assert (tmp_path / name).read_bytes().startswith(begins)


def test_a_bad_file_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    for file, said in (
        (tmp_path / "a.jpg", r"Use a name that ends in \.png, \.svg or \.pdf\."),
        (tmp_path / "plot", "Cannot tell the image format"),
        (tmp_path / "folder.png", "is a folder"),
        (tmp_path / "none" / "a.png", "There is no folder"),
    ):
        with pytest.raises(UsageError, match=said):
            check_plot_file(file)
    with pytest.raises(EbbtideError, match=r"Cannot write (the plot )?to /proc"):
        draw_diff(ResultDiff(), Path("/proc/a.png"), title="", zone="UTC")


def test_a_missing_matplotlib_prints_the_pip_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n == "matplotlib" or n.startswith("matplotlib.")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[plot\]"):
        check_plot_file(tmp_path / "a.png")
    with pytest.raises(MissingExtraError):
        picture(MIXED)
