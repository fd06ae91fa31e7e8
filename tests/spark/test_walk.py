"""Random walks over real checkpoints: runs, kills, rewinds, undos, forks, copies, other writers.

EBBTIDE_WALKS=n walks n seeds from EBBTIDE_WALK_SEED on; without it, a few fixed ones that have each
state format and each sink.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from tests.walk.machine import play, walk
from tests.walk.model import FIXED, case_of
from tests.walk.plants import PLANTS

pytestmark = pytest.mark.usefixtures("fresh_stores")

WALKS = int(os.environ.get("EBBTIDE_WALKS", "0"))
FIRST = int(os.environ.get("EBBTIDE_WALK_SEED", "0"))
SHRINKS = os.environ.get("EBBTIDE_WALK_SHRINKS") != "no"
PLANT = os.environ.get("EBBTIDE_WALK_PLANT", "")
STEPS = 14 if WALKS else 8


def seeds() -> list[int]:
    """The walks to go; with a planted fault, only those in which it does harm."""
    if not WALKS:
        return list(FIXED)
    all_of_them: Iterable[int] = itertools.count(FIRST)
    if PLANT:
        all_of_them = (n for n in all_of_them if PLANTS[PLANT].matters(case_of(n)))
    return list(itertools.islice(all_of_them, WALKS))


@pytest.mark.parametrize("number", seeds())
def test_walk(number: int, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    if PLANT:
        PLANTS[PLANT].plant(monkeypatch)
    with say(f"seed {number}: {case_of(number)}"):
        walk(spark, number, steps=STEPS, shrink=SHRINKS)


@pytest.mark.parametrize("name", [PLANT] if PLANT else PLANTS)
def test_a_planted_fault_is_found(
    name: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant = PLANTS[name]
    plant.plant(monkeypatch)
    with pytest.raises(AssertionError):
        play(spark, plant.case, *plant.steps)


@contextmanager
def say(what: str) -> Iterator[None]:
    """A line for each walk of a campaign."""
    begun = time.monotonic()

    def end(verdict: str) -> None:
        if WALKS:
            sys.stdout.write(f"\n{what}: {verdict}, {time.monotonic() - begun:.0f} s ")

    try:
        yield
    except Exception as error:
        steps = "\n".join(getattr(error, "__notes__", ()))
        end(f"failed: {type(error).__name__}: {error}\n{steps}\n")
        raise
    end("done")
