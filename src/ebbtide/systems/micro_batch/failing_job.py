"""Visits in, some of one batch printed out, then an error: the micro-batch job with a bug in it."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame

from ebbtide.pipeline import ForeachBatch
from ebbtide.systems.micro_batch import pipeline as visits_micro_batch

FAILS_AT = 5
"""The batch that fails."""
PRINTED_BEFORE = 2
"""So many of its visits are printed by then."""


def print_until_it_fails(visits: DataFrame, number: int) -> None:
    """As the job prints, until a batch fails in the middle."""
    if number < FAILS_AT:
        visits_micro_batch.print_visits(visits, number)
        return
    visits_micro_batch.print_visits(visits.limit(PRINTED_BEFORE), number)
    raise RuntimeError("the printer is out of paper")


pipeline = replace(visits_micro_batch.pipeline, sink=ForeachBatch(print_until_it_fails))
