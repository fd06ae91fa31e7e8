"""The demos: each plays a system end to end on a real broker and checks its real output."""

from __future__ import annotations

from collections.abc import Callable

from ebbtide.config import Settings
from ebbtide.systems.batch_reprocessor import demo as batch_reprocessor
from ebbtide.systems.browser_stats import demo as browser_stats
from ebbtide.systems.early_writer import demo as early_writer
from ebbtide.systems.harness import Narrator
from ebbtide.systems.micro_batch import demo as micro_batch
from ebbtide.systems.stream_reprocessor import demo as stream_reprocessor

DEMOS: dict[str, Callable[[Settings, Narrator], dict[str, object]]] = {
    "stream-reprocessor": stream_reprocessor.play,
    "batch-reprocessor": batch_reprocessor.play,
    "micro-batch": micro_batch.play,
    "browser-stats": browser_stats.play,
    "early-writer": early_writer.play,
}
