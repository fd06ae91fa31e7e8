"""What set-up plays once, so that later JVMs start from what it loads: not among the ready jobs.

It touches what jobs need: Kafka both ways, state in RocksDB, a watermark, and a Delta table.
"""

from __future__ import annotations

from dataclasses import replace

from ebbtide.pipeline import Delta
from ebbtide.systems.batch_reprocessor.pipeline import pipeline as counter

pipeline = replace(
    counter,
    name="rehearsal",
    output_mode="update",
    dead_letters=Delta("rehearsal-letters"),  # its broken records go to a table
)
