"""How long each batch can still be replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbtide.lazy import load_on_use
from ebbtide.retention.window import CHECKPOINT, Window

if TYPE_CHECKING:
    from ebbtide.retention.limits import Retained, Windows, read_windows, restorable

__all__ = ["CHECKPOINT", "Retained", "Window", "Windows", "read_windows", "restorable"]

if not TYPE_CHECKING:  # so that the type checker sees which names there are
    # it loads the clients of Kafka and Delta
    __getattr__ = load_on_use(__name__, limits="Retained Windows read_windows restorable")
