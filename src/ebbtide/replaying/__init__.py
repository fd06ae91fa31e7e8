"""Run recorded batches again, and compare each with its first run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbtide.lazy import load_on_use
from ebbtide.replaying.verdicts import DIFFERS, IDENTICAL, NOT_COMPARED, ReplayVerdict

if TYPE_CHECKING:
    from ebbtide.replaying.run import ReplayOptions, ReplayResult, replay_pipeline
else:
    __getattr__ = load_on_use(__name__)

__all__ = [
    "DIFFERS",
    "IDENTICAL",
    "NOT_COMPARED",
    "ReplayOptions",
    "ReplayResult",
    "ReplayVerdict",
    "replay_pipeline",
]
