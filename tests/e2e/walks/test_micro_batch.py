"""The micro-batch consumer's walk, whole: every printed line, across a stop and a failed batch."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ebbtide.local.visits import VisitGenerator
from tests.conftest import Cli
from tests.e2e.conftest import QUICK_JAVA

DOCUMENT = Path(__file__).parents[3] / "docs" / "systems" / "micro-batch.md"


def line(task: int, visit: str, clock: str, page: str) -> str:
    row = f"Row(visit_id='{visit}', event_time=datetime.datetime({clock}), page='{page}')"
    return f"Partition[{task}] > Printing visit={row}"


FIRST = [
    line(0, "155564639800631_4", "2024, 1, 1, 1, 0, 4", "page_4"),
    line(0, "155564639800631_5", "2024, 1, 1, 1, 0, 5", "category_1"),
    line(0, "155564639800631_6", "2024, 1, 1, 1, 0, 6", "main"),
    line(0, "155564639800631_7", "2024, 1, 1, 1, 0, 7", "page_4"),
    line(0, "155564639800631_4", "2024, 1, 1, 1, 1, 4", "main"),
    line(1, "155564639800631_0", "2024, 1, 1, 1, 0", "page_0"),
    line(1, "155564639800631_1", "2024, 1, 1, 1, 0, 1", "about"),
    line(1, "155564639800631_2", "2024, 1, 1, 1, 0, 2", "category_7"),
    line(1, "155564639800631_3", "2024, 1, 1, 1, 0, 3", "main"),
    line(1, "155564639800631_0", "2024, 1, 1, 1, 1", "main"),
]


def fed(seed: int) -> list[str]:
    """The rows that the generator gives, as they are to be printed."""
    plan = VisitGenerator(count=40, users=8, seed=seed, text_ids=True)
    visits = [json.loads(message["value"]) for chunk in plan.messages() for message in chunk]
    return [
        row(line(0, visit["visit_id"], clock(visit["event_time"]), visit["page"]))
        for visit in visits
    ]


def row(printed: str) -> str:
    return printed.partition(" > ")[2]


def clock(time: str) -> str:
    """`2024-01-01T01:00:04Z` as Python prints it: `2024, 1, 1, 1, 0, 4`, without a last zero."""
    numbers = [int(part) for part in time.strip("Z").replace("T", "-").replace(":", "-").split("-")]
    return ", ".join(map(str, numbers if numbers[-1] else numbers[:-1]))


def rows(batches: list[dict[str, Any]]) -> list[str]:
    return sorted(row(printed) for batch in batches for printed in batch["lines"])


def test_the_walk(cli: Cli, tmp_path: Path) -> None:
    # a clock of this machine that is not the session's
    demo = ("demo", "micro-batch", "--home", tmp_path, "-o", "json")
    answer = cli(*demo, timeout=400, TZ="America/New_York", **QUICK_JAVA)
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    first, failed, again = found["first"], found["failed"], found["again"]

    assert first[0]["lines"] == FIRST
    text = "\n".join(["✍️ Printing visits", *FIRST])
    assert text in answer.stderr
    assert f"```\n{text}\n```" in DOCUMENT.read_text("utf-8")
    assert [batch["id"] for batch in first + failed + again] == list(range(8))
    assert {len(batch["lines"]) for batch in first + failed + again} == {10}
    # each batch begins where the one before it ended
    ends = [batch["end"] for batch in first + failed + again]
    assert [batch["start"] for batch in first + failed + again] == [{"0": 0, "1": 0}, *ends[:-1]]
    assert ends[-1] == {"0": 40, "1": 40}

    # stopped and started again: nothing twice, nothing missed
    assert rows(first) == sorted(fed(7))
    assert rows(failed + again) == sorted(fed(8))
    assert "✓ none of the 40 visits that were set aside came again" in answer.stderr
    # no command is broken, however narrow the terminal is
    (typed,) = re.findall(r"^\$ ebbtide run visits-micro-batch .*$", answer.stderr, re.MULTILINE)
    assert typed.endswith("--trigger '1 second' --max-offsets-per-trigger 10")

    # failed in the middle, and run again whole, with the same offsets
    assert found["error"].startswith(
        "Error: Batch 5 of visits-micro-batch failed: RuntimeError: the printer is out of paper. "
        "The next start runs it again. Details: "
    )
    (before,) = failed
    assert before["id"] == 4
    partly = set(map(row, found["printed_before"]))
    assert len(partly) == 2
    assert again[0]["id"] == 5
    assert partly < set(rows(again[:1]))
    assert json.loads(found["planned"].splitlines()[-1]) == {"visits": again[0]["end"]}
    planned = Path(found["checkpoint"]) / "offsets" / "5"
    assert planned.read_text("utf-8") == found["planned"]
