"""The early writer's walk, whole: every report of every batch, and again after a rewind."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import Cli
from tests.e2e.conftest import QUICK_JAVA


def test_the_walk(cli: Cli, tmp_path: Path) -> None:
    demo = ("demo", "early-writer", "--home", tmp_path, "-o", "json")
    answer = cli(*demo, timeout=300, **QUICK_JAVA)
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    ended = {"9": [[1, 5, False]], "10": [[1, 5, True], [2, 1, True]]}
    assert found["batches"] == {
        "0": [[1, 1, False]],
        "1": [],
        "2": [[1, 2, False]],
        "3": [],
        "4": [[1, 3, False]],
        "5": [],
        "6": [[1, 4, False]],
        "7": [[2, 1, False]],
        "8": [],
        **ended,
    }
    # rewound to batch 9 with both visits open: their pages and timers are there again
    assert found["again"] == ended
    # narrated, in Spark's own form
    assert "|1       |5            |true       |" in answer.stderr
