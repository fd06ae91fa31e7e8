"""The micro-batch job with a bug: it fails in the middle of a batch."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame

from ebbtide.pipeline import ForeachBatch
from ebbtide.systems.micro_batch import pipeline as visits_micro_batch

FAILS_AT = 5
"""The batch that fails."""
PRINTED_BEFORE = 2
"""How many of its visits are printed before it fails."""


def print_until_it_fails(visits: DataFrame, number: int) -> None:
    """Print as the job does, until a batch fails in the middle."""
    if number < FAILS_AT:
        visits_micro_batch.print_visits(visits, number)
        return
    visits_micro_batch.print_visits(visits.limit(PRINTED_BEFORE), number)
    raise RuntimeError("the printer is out of paper")


pipeline = replace(visits_micro_batch.pipeline, sink=ForeachBatch(print_until_it_fails))
