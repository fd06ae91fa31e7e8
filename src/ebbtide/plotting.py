"""The shared look of all plots, and writing them to a file atomically."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from zoneinfo import ZoneInfo

from ebbtide.errors import EbbtideError, MissingExtraError, UsageError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
# distinguishable with red-green colour blindness
INK, GREY, PALE = "#2b2f36", "#8a8f98", "#dfe3e8"
BLUE, ORANGE, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#a5217b"
WIDTH_INCHES, DOTS_PER_INCH = 12.0, 150


def check_plot_file(file: Path) -> None:
    """Reject a file that cannot be written before any work is done."""
    if file.suffix.lower() not in FORMATS:
        raise UsageError(
            f"Cannot tell the image format from the name of {file}.",
            f"Use a name that ends in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}.",
        )
    if file.is_dir():
        raise UsageError(f"{file} is a folder.", "Choose a file with --plot.")
    if not file.parent.is_dir():
        raise UsageError(
            f"There is no folder {file.parent}.", "Create it, or choose another file with --plot."
        )
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise EbbtideError(
            f"Cannot write to {file.parent}: Permission denied.", "Choose another file with --plot."
        )
    if find_spec("matplotlib") is None:
        raise MissingExtraError.for_extra("plot", "--plot")


def make_figure(title: str, height_inches: float) -> Figure:
    """Create an empty figure with a title."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError.for_extra("plot", "--plot") from None

    size = (WIDTH_INCHES, height_inches)
    figure = Figure(figsize=size, dpi=DOTS_PER_INCH, facecolor="white")
    figure.set_layout_engine("constrained", h_pad=0.09)
    figure.suptitle(title, x=0.01, ha="left", fontsize=14, fontweight="bold", color=INK)
    return figure


def write_figure(figure: Figure, file: Path) -> None:
    """Write a figure to a temporary file and rename it into place."""
    check_plot_file(file)
    partial = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        figure.savefig(partial, format=file.suffix.lower()[1:])
        partial.replace(file)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise EbbtideError(
            f"Cannot write the plot to {file}: {error.strerror}.",
            "Choose another file with --plot.",
        ) from None


def dress(panel: Axes, ylabel: str, *, whole: bool) -> None:
    """Style a panel; `whole` restricts its ticks to whole numbers."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    panel.set_ylabel(ylabel, color=INK)
    panel.yaxis.set_major_locator(MaxNLocator(nbins="auto", integer=whole, min_n_ticks=2))
    panel.yaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    panel.grid(axis="y", color=PALE, lw=0.8)
    panel.set_axisbelow(True)
    panel.tick_params(colors=INK, length=3)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        panel.spines[side].set_color(GREY)


def show_times(
    panel: Axes, which: Literal["x", "y"], zone: str, *, at_least: int = 3, at_most: int = 10
) -> None:
    """Format an axis as times in a zone."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    place = ZoneInfo(zone)
    locator = AutoDateLocator(tz=place, minticks=at_least, maxticks=at_most)  # type: ignore[no-untyped-call]
    formatter = ConciseDateFormatter(locator, tz=place)  # type: ignore[no-untyped-call]
    axis = panel.xaxis if which == "x" else panel.yaxis
    axis.set_major_locator(locator)
    axis.set_major_formatter(formatter)


def add_legend(figure: Figure, handles: Sequence[Artist], labels: Sequence[str]) -> None:
    """Add a legend below all panels."""
    place: Any = "outside lower center"
    figure.legend(handles, labels, loc=place, ncols=5, frameon=False, fontsize=10)
