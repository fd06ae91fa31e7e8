"""The five systems played end to end: real broker, real job, real output, checked as it comes."""

from __future__ import annotations

from collections.abc import Callable

from ebbtide.config import Settings
from ebbtide.demos import (
    batch_reprocessor,
    browser_stats,
    early_writer,
    micro_batch,
    stream_reprocessor,
)
from ebbtide.demos.stage import Narrator

DEMOS: dict[str, Callable[[Settings, Narrator], dict[str, object]]] = {
    "stream-reprocessor": stream_reprocessor.play,
    "batch-reprocessor": batch_reprocessor.play,
    "micro-batch": micro_batch.play,
    "browser-stats": browser_stats.play,
    "early-writer": early_writer.play,
}
