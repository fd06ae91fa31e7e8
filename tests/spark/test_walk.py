"""Random walks over real checkpoints: runs, kills, rewinds, undos, forks, copies, other writers.

EBBTIDE_WALKS=n walks n seeds from EBBTIDE_WALK_SEED on; without it, a few fixed ones that have each
state format and each sink.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from tests.walk.machine import case_of, walk

pytestmark = pytest.mark.usefixtures("fresh_stores")

WALKS = int(os.environ.get("EBBTIDE_WALKS", "0"))
FIRST = int(os.environ.get("EBBTIDE_WALK_SEED", "0"))
SHRINKS = os.environ.get("EBBTIDE_WALK_SHRINKS") != "no"
FIXED = (0, 1, 2, 3)
STEPS = 14 if WALKS else 8


@pytest.mark.parametrize("number", range(FIRST, FIRST + WALKS) if WALKS else FIXED)
def test_walk(number: int, spark: SparkSession) -> None:
    with say(f"seed {number}: {case_of(number)}"):
        walk(spark, number, steps=STEPS, shrink=SHRINKS)


@contextmanager
def say(what: str) -> Iterator[None]:
    """A line for each walk of a campaign."""
    begun, verdict = time.monotonic(), "failed"
    try:
        yield
        verdict = "done"
    finally:
        if WALKS:
            sys.stdout.write(f"\n{what}: {verdict}, {time.monotonic() - begun:.0f} s ")
