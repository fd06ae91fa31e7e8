"""The job that setup runs once so that later JVMs start faster; it is not one of the ready jobs."""

from __future__ import annotations

from dataclasses import replace

from ebbtide.pipeline import Delta
from ebbtide.systems.batch_reprocessor.pipeline import pipeline as counter

# uses what jobs need: Kafka both ways, state in RocksDB, a watermark, and a Delta table
pipeline = replace(
    counter,
    name="warmup",
    output_mode="update",
    dead_letters=Delta("warmup-letters"),  # its broken records go to a table
)
