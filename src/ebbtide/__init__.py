"""Ebbtide rewinds and replays Spark Structured Streaming."""

from ebbtide.api import (
    apply_rewind,
    attach,
    check,
    fork,
    observe,
    open_checkpoint,
    plan_rewind,
    read_offsets,
    replay,
    reprocess,
    run,
    undo_rewind,
)
from ebbtide.errors import EbbtideError
from ebbtide.pipeline import Console, Delta, Files, ForeachBatch, Kafka, Pipeline, Sessions
from ebbtide.version import __version__ as __version__

__all__ = [
    "Console",
    "Delta",
    "EbbtideError",
    "Files",
    "ForeachBatch",
    "Kafka",
    "Pipeline",
    "Sessions",
    "apply_rewind",
    "attach",
    "check",
    "fork",
    "observe",
    "open_checkpoint",
    "plan_rewind",
    "read_offsets",
    "replay",
    "reprocess",
    "run",
    "undo_rewind",
]
