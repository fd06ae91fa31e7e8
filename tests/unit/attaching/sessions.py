"""A session and its queries without Spark, for what follows them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ebbtide.attaching.follower import RunningQuery


def progress(batch: int, *, sink: str = "FileSink[/out]", **more: Any) -> str:
    """What Spark tells of a batch of a file source."""
    told = {
        "runId": "run-0",
        "batchId": batch,
        "timestamp": f"2026-01-05T10:{batch % 60:02d}:00.000Z",
        "numInputRows": 3,
        "durationMs": {"addBatch": 1, "triggerExecution": 2},
        "stateOperators": [],
        "sources": [{"startOffset": None, "endOffset": {"logOffset": batch}, "numInputRows": 3}],
        "sink": {"description": sink},
    }
    return json.dumps({**told, **more})


@dataclass
class FakeQuery:
    """One run of a query, as little as is asked of it."""

    location: str
    name: str | None = "copies"
    id: str = "7b3c"
    runId: str = "run-0"  # noqa: N815 - Spark's name
    is_active: bool = True
    recent: list[str] = field(default_factory=list)

    def running(self, **more: Any) -> RunningQuery:
        return RunningQuery(
            self.location,
            self.name,
            lambda: self.is_active,
            lambda: False,
            more.pop("qualify", str),
            lambda _batch: self.recent,
            **more,
        )


@dataclass
class FakeSession:
    """A session whose events a test makes."""

    queries: list[FakeQuery] = field(default_factory=list)
    stopped: bool = False
    key: object = 0
    listeners: list[Any] = field(default_factory=list)

    def prepare(self) -> None: ...

    def add_listener(self, listener: Any) -> None:
        self.listeners.append(listener)

    def keep_listener(self, listener: Any) -> None: ...

    def remove_listener(self, listener: Any) -> None:
        self.listeners.remove(listener)

    def watch_starts(self, on_start: Callable[..., None]) -> None: ...

    def watch_stop(self, before_stop: Callable[[], None]) -> None: ...

    def expect_end(self) -> None: ...

    def active(self) -> list[Any]:
        return [query for query in self.queries if query.is_active]

    def find(self, query_id: str) -> Any:
        return next((query for query in self.active() if query.id == query_id), None)

    def describe(self, query: Any, name: str | None, location: str | None) -> RunningQuery | None:
        del name, location
        running: RunningQuery = query.running()
        return running

    def is_stopped(self) -> bool:
        return self.stopped
