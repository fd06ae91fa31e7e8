"""The browser statistics' walk, whole: every message of both jobs; then the range again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ebbtide.config import Settings
from ebbtide.local.broker import free_port, start_broker, stop_broker
from ebbtide.systems.harness import read_topic
from tests.conftest import Cli
from tests.e2e.conftest import QUICK_JAVA, QUICK_START

STATELESS, STATEFUL = "browser-stats-stateless", "browser-stats-stateful"
DOCUMENT = Path(__file__).parents[3] / "docs" / "systems" / "browser-stats.md"
WINDOW = ("--event-time-start", "2024-10-06T10:00", "--event-time-end", "2024-10-06T10:05")


def said(browser: str, start: str, end: str, count: int, last: str) -> dict[str, Any]:
    def time(clock: str) -> str:
        return f"2024-10-06T{clock}:00.000Z"

    return {
        "browser": browser,
        "window": {"start": time(start), "end": time(end)},
        "count": count,
        "last_event_time_in_window": time(last),
    }


EACH = [
    said("Chrome", "10:00", "10:05", 1, "10:01"),
    said("Firefox", "10:00", "10:05", 1, "10:00"),
    said("Safari", "10:00", "10:05", 1, "10:02"),
]
STEPS = {
    "a": (EACH, EACH),
    "b": (
        [said("Firefox", "10:00", "10:05", 2, "10:03")],
        [said("Firefox", "10:00", "10:05", 3, "10:03")],
    ),
    "c": (
        [said("Firefox", "09:40", "09:45", 1, "09:40")],
        [said("Firefox", "09:40", "09:45", 1, "09:40")],
    ),
    "d": ([said("Firefox", "09:30", "09:35", 1, "09:30")], []),
    "e": (
        [said("Firefox", "10:30", "10:35", 1, "10:30")],
        [said("Firefox", "10:30", "10:35", 1, "10:30")],
    ),
    "f": ([said("Firefox", "10:00", "10:05", 1, "10:00")], []),
}


def by_browser(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(messages, key=lambda message: str(message["browser"]))


@pytest.mark.usefixtures("one_jvm")
def test_the_walk(cli: Cli, inside: Cli, tmp_path: Path) -> None:
    demo = ("demo", "browser-stats", "--home", tmp_path, "-o", "json")
    answer = cli(*demo, timeout=400, **QUICK_JAVA)
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert list(found["steps"]) == list(STEPS)
    for step, (stateless, stateful) in STEPS.items():
        assert by_browser(found["steps"][step][STATELESS]) == stateless, step
        assert by_browser(found["steps"][step][STATEFUL]) == stateful, step
    # the document shows a message as it came, and the table
    _code, message, table, _command = DOCUMENT.read_text("utf-8").split("```")[1::2]
    assert message.strip() in [message["value"] for message in found["messages"][STATEFUL]]
    assert table in answer.stderr
    # how many records each batch read: the stateful one has empty ones, where the watermark moved
    assert list(found["batches"][STATELESS].values()) == [0, 3, 2, 1, 1, 1, 1]
    assert list(found["batches"][STATEFUL].values()) == [0, 3, 0, 2, 0, 1, 1, 1, 0, 1]
    # and nothing else has come
    for number, job in enumerate((STATELESS, STATEFUL)):
        messages = found["messages"][job]
        assert len(messages) == sum(len(due[number]) for due in STEPS.values())
        for message in messages:
            value = json.loads(message["value"])
            assert list(value) == ["browser", "window", "count", "last_event_time_in_window"]
            key = {"browser": value["browser"], "start": value["window"]["start"]}
            assert json.loads(message["key"]) == key

    home = Path(found["home"])
    broker = start_broker(home / "broker", port=free_port())
    settings = Settings(home=home, bootstrap_servers=broker.bootstrap_servers)
    try:
        the_window_again(inside, settings)
    finally:
        stop_broker(home / "broker")


def the_window_again(inside: Cli, settings: Settings) -> None:
    """The visit of step f came when its window was gone; a reprocess counts it."""
    where = ("--home", settings.home, "--bootstrap-servers", settings.kafka.address, *QUICK_START)
    answer = inside("archive", STATEFUL, "--available-now", *where)
    assert answer.returncode == 0, answer.stderr
    held = len(read_topic(settings, STATEFUL))
    answer = inside(
        "reprocess", STATEFUL, *WINDOW, "--execute", "--only-changed", "--yes", "-o", "json", *where
    )
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["counts"] == {
        "unchanged": 2, "changed": 1, "new": 0, "gone": 0
    }  # fmt: skip
    (record,) = read_topic(settings, STATEFUL)[held:]
    assert json.loads(record.value or b"") == said("Firefox", "10:00", "10:05", 4, "10:03")
    assert json.loads(record.key or b"") == {
        "browser": "Firefox", "start": "2024-10-06T10:00:00.000Z"
    }  # fmt: skip
