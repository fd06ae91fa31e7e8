"""A short simulation; `make simulate` plays many more runs. See docs/reliability.md."""

from __future__ import annotations

import subprocess
import sys

import pytest

FOUND = {
    "late-barrier": ("s3", 0, "was changed without a barrier"),
    "unchecked-copy": ("azure", 0, "is lost when all had ended"),
    "any-token": ("gcs", 100, "both have the checkpoint"),
}
"""By planted fault: on which store, from which seed on, and what must be said."""


def simulate(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_no_run_of_a_short_simulation_fails() -> None:
    done = simulate("48", "--jobs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n48 runs, " in f"\n{done.stdout}"
    assert ", 0 failures in " in done.stdout


@pytest.mark.parametrize("plant", FOUND)
def test_a_planted_fault_is_found(plant: str) -> None:
    store, seed, problem = FOUND[plant]
    words = ["--plant", plant, "--store", store, "--seed", str(seed), "--jobs", "1"]
    done = simulate("50", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert problem in done.stdout
    assert "python -m tests.simulation --replay" in done.stdout
    assert done.stdout.endswith("found\n")


def test_a_seed_means_the_same_run_again() -> None:
    first, second = simulate("--replay", "21"), simulate("--replay", "21")
    assert first.returncode == second.returncode == 0, first.stdout + first.stderr
    assert first.stdout == second.stdout
    assert first.stdout.endswith("no problem\n")
