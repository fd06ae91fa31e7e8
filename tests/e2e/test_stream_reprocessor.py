"""The stream reprocessor's walk up to batch 6, on the real broker, every row of every batch."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import Cli


def test_the_walk(cli: Cli, tmp_path: Path) -> None:
    answer = cli("demo", "stream-reprocessor", "--home", tmp_path, "-o", "json", timeout=300)
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

    inspected = json.loads(cli("inspect", found["checkpoint"], "-o", "json").stdout)
    assert [batch["id"] for batch in inspected["batches"]] == list(range(7))
    assert all(batch["committed"] for batch in inspected["batches"])
    last = inspected["batches"][6]
    assert sum(last["sources"][0]["visits"].values()) == 8
    assert last["watermark"] == "2025-09-04T07:15:00.000Z"

    # again, over the home that the first play left
    again = cli("demo", "--home", tmp_path, timeout=300)
    assert again.returncode == 0, again.stderr
    assert "✓ batch 5 and 6 as expected" in again.stdout
