"""What each batch did, as recorded in the checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbtide.connectors import Output
from ebbtide.history import metrics, store
from ebbtide.history.store import Entry, History, kept_entries, read_history
from ebbtide.lazy import load_on_use

if TYPE_CHECKING:
    from ebbtide.history.event_times import find_first_batch
    from ebbtide.history.plot import draw_history
    from ebbtide.history.rebuilding import fill_gaps, rebuild_history
    from ebbtide.history.recorder import Recorder

__all__ = [
    "Entry",
    "History",
    "Output",
    "Recorder",
    "draw_history",
    "fill_gaps",
    "find_first_batch",
    "kept_entries",
    "metrics",
    "read_history",
    "rebuild_history",
    "store",
]

if not TYPE_CHECKING:  # so that the type checker sees which names there are
    __getattr__ = load_on_use(
        __name__,
        event_times="find_first_batch",
        plot="draw_history",
        rebuilding="fill_gaps rebuild_history",
        recorder="Recorder",
    )
