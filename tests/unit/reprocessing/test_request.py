"""A request is what the flags say, and the line to type says the same again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ebbtide.config import Settings
from ebbtide.errors import UsageError
from ebbtide.reprocessing import ReprocessRequest, events
from tests.conftest import Cli
from tests.unit.reprocessing.test_journal import ASKED

REFERENCE = "visits-counter"
REQUESTS = [
    ReprocessRequest(REFERENCE, ASKED),
    ReprocessRequest(REFERENCE, ASKED, timedelta(hours=25), mode="compare"),
    ReprocessRequest(
        *(REFERENCE, ASKED, timedelta(minutes=90), True, 3, True, "kafka:9092", "execute")
    ),
    ReprocessRequest(REFERENCE, ASKED, timedelta(seconds=0.5), servers="a:1,b:2"),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: each.mode)
def test_the_line_to_type_asks_for_the_same(
    inside: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_: ReprocessRequest
) -> None:
    asked: list[Any] = []

    def reprocess(*given: Any) -> Iterator[events.ReprocessEvent]:
        asked.extend(given[:2])
        yield from ()

    monkeypatch.setattr("ebbtide.reprocessing.reprocess", reprocess)
    settings = Settings(tmp_path, request_.servers, "Europe/Warsaw")
    assert inside(*request_.words(settings)).returncode == 0
    assert asked == [request_, settings]


def test_what_is_typed_without_a_zone_is_in_the_settings_zone() -> None:
    settings = Settings(timezone="Europe/Warsaw")
    request = ReprocessRequest.parse(settings, REFERENCE, "2025-09-04T07:00", "2025-09-04T07:10")
    assert str(request.asked) == "[2025-09-04T05:00:00.000Z, 2025-09-04T05:10:00.000Z)"
    assert "--event-time-start=2025-09-04T05:00:00.000Z" in request.command_line(settings)


def test_to_execute_wins_over_to_compare() -> None:
    request = ReprocessRequest.parse(
        *(Settings(), REFERENCE, "2025-09-04", "2025-09-05"), compare=True, execute=True
    )
    assert request.mode == "execute"


@pytest.mark.parametrize(
    ("start", "end", "chunk", "says"),
    [
        ("yesterday", "2025-09-05", None, "'yesterday' is not a time"),
        ("2025-09-05", "2025-09-04", None, "Its start must be before its end"),
        ("2025-09-04", "2025-09-05", "1 hour", "is not a duration"),
        ("2025-09-04", "2025-09-05", "PT0S", "--chunk PT0S is no length"),
    ],
)
def test_what_cannot_be_asked_for(start: str, end: str, chunk: str | None, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        ReprocessRequest.parse(Settings(), REFERENCE, start, end, chunk=chunk)
