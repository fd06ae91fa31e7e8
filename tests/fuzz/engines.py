"""Ways to find cases: Hypothesis draws damage, and Atheris follows what reaches new code."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz import edits
from tests.fuzz.watch import Watch

Tell = Callable[[Watch], None]
_EVERY = 2000
"""After so many cases the campaign is told how far a target is."""
_CHUNK = 5000
"""Hypothesis remembers every case of a run; a new run begins after so many."""
_STUCK_SECONDS = 120
_LARGEST = 4096
"""The longest input for Atheris, which keeps what is new and changes it again and again; long ones,
which show what takes the square of the size, are drawn."""


def play_seeds(watch: Watch, most: int | None = None) -> list[bytes]:
    """Run a target's seeds as they are: valid values, which must not fail either."""
    seeds = watch.target.values()
    for data in seeds[:: 1 if most is None else -(-len(seeds) // most)]:
        watch.run(data)
    return seeds


def draw(
    watch: Watch,
    cases: int,
    seed: int,
    tell: Tell = lambda _: None,
    most_seeds: int | None = None,
) -> None:
    """Damage valid values as Hypothesis draws it; `most_seeds` of them are run as they are."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as with_seed
    from hypothesis import strategies as st

    seeds, target = play_seeds(watch, most_seeds), watch.target
    number = st.integers(0, (1 << 16) - 1)
    changes = st.lists(st.builds(edits.Edit, number, number, number), min_size=1, max_size=4)

    def run(chosen: bytes, changed: list[edits.Edit]) -> None:
        watch.run(edits.apply(chosen, changed, seeds, target.largest))
        if watch.cases % _EVERY == 0:
            tell(watch)

    for at, first in enumerate(range(0, cases, _CHUNK)):
        limits = settings(
            max_examples=min(_CHUNK, cases - first),
            phases=[Phase.generate],
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        test = given(st.sampled_from(seeds), changes)(run)
        with_seed(f"{seed} {at} {target.name}")(limits(test))()


def roll(watch: Watch, cases: int, seed: int, tell: Tell = lambda _: None) -> None:
    """Damage valid values at random, without Hypothesis: the same edits, many times as fast."""
    seeds, target = play_seeds(watch), watch.target
    chosen = random.Random(f"{seed} {target.name}")
    for _ in range(cases):
        watch.run(edits.apply(chosen.choice(seeds), edits.draw(chosen), seeds, target.largest))
        if watch.cases % _EVERY == 0:
            tell(watch)


def follow(watch: Watch, cases: int, seed: int, tell: Tell = lambda _: None) -> None:
    """Change what has reached new code, with Atheris; ends the process's use of libFuzzer."""
    import atheris

    seeds, largest = play_seeds(watch), min(watch.target.largest, _LARGEST)

    def run(data: bytes) -> None:
        watch.run(data)
        if watch.cases % _EVERY == 0:
            tell(watch)

    def mutate(data: bytes, most: int, number: int) -> bytes:
        chosen = random.Random(number)
        if chosen.random() < 0.4:
            return bytes(atheris.Mutate(data, most))
        return edits.apply(data, edits.draw(chosen), seeds, most)

    with TemporaryDirectory(prefix="ebbtide-fuzz-") as corpus:
        for number, data in enumerate(seeds):
            Path(corpus, str(number)).write_bytes(data)
        arguments = [
            *(sys.argv[0], corpus, f"-atheris_runs={cases}", f"-seed={seed % (1 << 31) + 1}"),
            *(
                f"-max_len={largest}",
                "-mutate_depth=2",
                f"-timeout={_STUCK_SECONDS}",
                "-rss_limit_mb=0",
            ),
            f"-artifact_prefix={corpus}-",
        ]
        atheris.Setup(arguments, run, custom_mutator=mutate)
        try:
            atheris.Fuzz()
        except SystemExit:
            return


ENGINES: Mapping[str, Callable[[Watch, int, int, Tell], None]] = {
    "hypothesis": draw,
    "random": roll,
    "atheris": follow,
}
