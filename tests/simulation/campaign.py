"""Play many seeds on all cores, and say what was found and how to play one again."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from tests.simulation.plants import PLANTS, planted
from tests.simulation.run import PROFILES, Outcome, judged, play, simulation

_SHARE = 50
_SAY_SECONDS = 20.0
_SHOWN = 10


@dataclass
class Tally:
    """What a campaign has seen so far."""

    runs: int = 0
    requests: int = 0
    faults: int = 0
    states: int = 0
    failures: list[Outcome] = field(default_factory=list)

    def add(self, runs: int, requests: int, faults: int, failures: list[Outcome]) -> None:
        """Count a share."""
        self.runs += runs
        self.requests += requests
        self.faults += faults
        self.failures += failures

    def __str__(self) -> str:
        return (
            f"{self.runs:,} runs, {self.requests:,} requests to stores, {self.faults:,} faults, "
            f"{self.states:,} different ends, {len(self.failures)} failures"
        )


Share = tuple[int, int, int, list[Outcome], set[int]]


def play_share(seeds: Sequence[int], store: str | None = None, plant: str | None = None) -> Share:
    """Play some seeds in this process."""
    requests, faults, failures = 0, 0, list[Outcome]()
    before = set(judged())
    with simulation(), planted(plant):
        for seed in seeds:
            outcome = play(seed, only=store)
            requests += outcome.steps
            faults += outcome.faults
            if outcome.problems:
                failures.append(outcome)
    gc.collect()
    return len(seeds), requests, faults, failures, judged() - before


def run_campaign(runs: int, first: int, store: str | None, plant: str | None, jobs: int) -> Tally:
    """Play so many seeds; say how it goes."""
    tally, states, said = Tally(), set[int](), time.monotonic()
    shares = [
        range(at, min(at + _SHARE, first + runs)) for at in range(first, first + runs, _SHARE)
    ]
    for share in _play_shares(shares, store, plant, jobs):
        number, requests, faults, failures, ends = share
        states |= ends
        tally.add(number, requests, faults, failures)
        tally.states = len(states)
        for outcome in failures:
            _say(f"  seed {outcome.seed} fails: {outcome.problems[0]}")
        if time.monotonic() - said > _SAY_SECONDS:
            said = time.monotonic()
            _say(f"  {tally}")
        if plant and tally.failures:
            break
    return tally


def _play_shares(
    shares: Sequence[range], store: str | None, plant: str | None, jobs: int
) -> Iterator[Share]:
    one = partial(play_share, store=store, plant=plant)
    if jobs == 1:
        yield from map(one, shares)
        return
    with multiprocessing.get_context("fork").Pool(jobs, _prepare) as pool:
        yield from pool.imap_unordered(one, shares)


def _prepare() -> None:
    gc.freeze()
    gc.set_threshold(100_000)


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def _report(tally: Tally, seconds: float, tail: str) -> None:
    kinds: Counter[str] = Counter()
    for outcome in sorted(tally.failures, key=lambda one: one.seed):
        kind = re.sub(r"[0-9a-f]{8,}|\d+", "N", outcome.problems[0])
        kinds[kind] += 1
        if kinds[kind] == 1 and len(kinds) <= _SHOWN:
            _say(f"seed {outcome.seed} ({outcome.about})")
            for problem in outcome.problems:
                _say(f"    {problem}")
            _say(f"    Play it again: python -m tests.simulation --replay {outcome.seed}{tail}")
    for kind, count in kinds.most_common(_SHOWN):
        _say(f"{count} times: {kind}")
    _say(f"{tally} in {seconds:.0f} s")


def _replay(seed: int, store: str | None, plant: str | None) -> int:
    with simulation(), planted(plant):
        outcome = play(seed, trace=True, only=store)
    _say(f"seed {seed}: {outcome.about}")
    _say("\n".join(outcome.trace or []))
    _say("\n".join(outcome.problems) or "no problem")
    return bool(outcome.problems)


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("runs", type=int, nargs="?", default=2_000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--store", choices=sorted(PROFILES), help="only this kind of store")
    parser.add_argument("--plant", choices=sorted(PLANTS), help="plant a fault that it must find")
    parser.add_argument("--replay", type=int, metavar="SEED", help="play one seed, with a trace")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(arguments)
    tail = f" --store '{given.store}'" if given.store else ""
    tail += f" --plant {given.plant}" if given.plant else ""
    if given.replay is not None:
        return _replay(given.replay, given.store, given.plant)
    begun = time.monotonic()
    tally = run_campaign(given.runs, given.seed, given.store, given.plant, given.jobs)
    _report(tally, time.monotonic() - begun, tail)
    if given.plant:
        _say("found" if tally.failures else f"{given.plant} was not found")
        return not tally.failures
    return bool(tally.failures)


def same_everywhere() -> None:
    """Have sets in the same order in every process, so that a seed means one run."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
