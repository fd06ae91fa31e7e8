"""The stream reprocessor's walk, whole: every row of every batch, before and after the rewind."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import Cli
from tests.e2e.conftest import QUICK_JAVA


def test_the_walk(cli: Cli, inside: Cli, tmp_path: Path) -> None:
    # over a home that an earlier play left
    left = tmp_path / "demos" / "stream-reprocessor"
    (left / "checkpoints").mkdir(parents=True)
    (left / ".ebbtide-demo").touch()
    demo = ("demo", "stream-reprocessor", "--home", tmp_path, "-o", "json")
    answer = cli(*demo, timeout=300, **QUICK_JAVA)
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert found["batches"] == {
        "0": {},
        "1": {"07:00": 3},
        "2": {},
        "3": {"07:00": 4, "07:10": 1, "07:20": 1},
        "4": {},
        "5": {"07:20": 2, "07:30": 1},
        "6": {},
    }
    files = set(found["files"])
    numbers = {f"{log}/{n}" for log in ("offsets", "commits") for n in range(7)}
    zips = {f"state/0/{part}/{n}.zip" for part in (0, 1) for n in range(1, 8)}
    assert numbers | zips | {"metadata", "sources/0/0"} <= files
    assert not [f for f in files if f.startswith(("offsets/7", "commits/7"))]
    # narrated, in Spark's own form
    assert "|{2025-09-04 07:20:00, 2025-09-04 07:30:00}|2    |" in answer.stderr

    assert "\n├── offsets/  0 1 2 3 4 5 6\n" in answer.stderr

    # rewound to batch 5, and run again
    zips = {f"state/0/{part}/{n}.zip" for part in (0, 1) for n in (6, 7)}
    assert set(found["gone"]) == {"commits/5", "commits/6", "offsets/6"} | zips
    assert found["again"] == {"5": {"07:20": 2, "07:30": 1}, "6": {}}
    assert "Batch: 5" in answer.stderr.partition("The job again")[2]

    inspected = json.loads(inside("inspect", found["checkpoint"], "-o", "json").stdout)
    assert [batch["id"] for batch in inspected["batches"]] == list(range(7))
    assert all(batch["committed"] and batch["restorable"] for batch in inspected["batches"])
    assert [batch["records"] for batch in inspected["batches"]] == [0, 3, 0, 3, 0, 2, 0]
    last = inspected["batches"][6]
    assert sum(last["sources"][0]["visits"].values()) == 8
    assert last["watermark"] == "2025-09-04T07:15:00.000Z"
    (operator,) = inspected["operators"]
    assert (operator["partitions"], operator["newest_version"]) == (2, 7)
    assert operator["bytes"] > 0

    # and back to before the rewind
    undone = inside("undo", found["checkpoint"], "--yes")
    assert undone.returncode == 0, undone.stderr
    assert inside("verify", found["checkpoint"]).returncode == 0
