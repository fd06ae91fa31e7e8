"""Whatever lies in a checkpoint: a result or one line, in time, and nothing outside is touched."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile import Case, Damage, copy_case, make_case, run_commands, warm_up
from tests.inside import MEMORY
from tests.trees import LAYOUTS, Shape

CASES = int(os.environ.get("EBBTIDE_FUZZ", "10"))
FIRST = int(os.environ.get("EBBTIDE_FUZZ_SEED", "0"))
"""`make fuzz` tries thousands; a seed that failed is tried again by its number."""


@pytest.fixture(scope="module")
def originals() -> Iterator[list[Case]]:
    """A good checkpoint of every layout."""
    home = Path(tempfile.mkdtemp(prefix="ebbtide-", dir=MEMORY))
    cases = [
        make_case(home / name, Shape(name, batches=6, operator_metadata=metadata))
        for name, metadata in zip(LAYOUTS, (None, "v1", "v2", None, "v1", None), strict=True)
    ]
    warm_up(copy_case(cases[1], home / "warm"))
    yield cases
    shutil.rmtree(home)


def test_no_damage_is_a_traceback_a_hang_or_an_escape(
    originals: list[Case], tmp_path: Path
) -> None:
    failed = []
    for seed in range(FIRST, FIRST + CASES):
        chosen = random.Random(seed)
        home = tmp_path / str(seed)
        case = copy_case(chosen.choice(originals), home)
        damage = Damage(case, seed)
        damage.apply()
        commands = case.commands()
        if CASES <= 100:
            commands = sorted(chosen.sample(commands, 3), key=commands.index)
        if problem := run_commands(case, commands):
            failed.append(f"seed {seed}: {', '.join(damage.done)}: {problem}")
        shutil.rmtree(home, ignore_errors=True)
    assert not failed, f"{len(failed)} of {CASES}\n" + "\n\n".join(failed[:8])
