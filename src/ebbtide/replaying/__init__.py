"""Run recorded batches again, and compare each with its first run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbtide.lazy import load_on_use
from ebbtide.replaying.verdicts import DIFFERS, IDENTICAL, NOT_COMPARED, ReplayVerdict

if TYPE_CHECKING:
    from ebbtide.replaying.functions import replay_function
    from ebbtide.replaying.pipelines import replay_pipeline
    from ebbtide.replaying.run import ReplayOptions, ReplayResult

__all__ = [
    "DIFFERS",
    "IDENTICAL",
    "NOT_COMPARED",
    "ReplayOptions",
    "ReplayResult",
    "ReplayVerdict",
    "replay_function",
    "replay_pipeline",
]
if not TYPE_CHECKING:  # so that the type checker sees which names there are
    __getattr__ = load_on_use(
        __name__,
        functions="replay_function",
        pipelines="replay_pipeline",
        run="ReplayOptions ReplayResult",
    )
