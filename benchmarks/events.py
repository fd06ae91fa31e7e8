"""The events of the works with peers, made with the truth about them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

FIRST = datetime(2025, 9, 1, tzinfo=timezone.utc)
_CHUNK = 10_000
_PER_MINUTE = 1_000
_OUT_OF_ORDER_MINUTES = 5

Chunk = tuple[int, list[dict[str, Any]]]
"""A partition and records for it."""


@dataclass
class Visits:
    """JSON events of about 110 bytes, 1,000 a minute of event time, up to 5 minutes out of order.

    Nothing is later than any watermark of the works, so each contender must count every event.
    `counts` has the truth when all chunks were taken: events by window, such as 2025-09-01T00:10.
    """

    count: int
    counts: Counter[str] = field(default_factory=Counter)

    def chunks(self) -> Iterator[Chunk]:
        """In turn for the first and the second partition, so that both advance alike."""
        rng = random.Random(1)
        draw = rng.random
        for start in range(0, self.count, _PER_MINUTE):
            late = int(draw() * _OUT_OF_ORDER_MINUTES)
            at = FIRST + timedelta(minutes=_OUT_OF_ORDER_MINUTES + start // _PER_MINUTE - late)
            minute, end = at.strftime("%Y-%m-%dT%H:%M"), min(start + _PER_MINUTE, self.count)
            self.counts[f"{minute[:-1]}0"] += end - start
            yield (
                start // _PER_MINUTE % 2,
                [
                    {
                        "value": f'{{"event_id":"click-{n}","visit_id":{n % 99_991},"event_time":"'
                        f'{minute}:{n % 60:02d}Z","page":"category_{n % 20}"}}'.encode()
                    }
                    for n in range(start, end)
                ],
            )


@dataclass(frozen=True)
class OpenedVisits:
    """Visits of five events each, all open until the last event of each partition closes them.

    All events lie within five minutes of event time, so no visit ends before that. They come in
    rounds: a batch of as many events as there are visits has one event of each.
    """

    visits: int
    rounds: int = 5

    @property
    def count(self) -> int:
        """The number of events, without the two that close all."""
        return self.visits * self.rounds

    @property
    def finals(self) -> dict[int, int]:
        """The truth: the pages of each visit in its final report."""
        return dict.fromkeys(range(self.visits), self.rounds)

    def chunks(self) -> Iterator[Chunk]:
        """All the events of a visit are in one partition."""
        for turn in range(self.rounds):
            minute = (FIRST + timedelta(minutes=turn)).strftime("%Y-%m-%dT%H:%M")
            for first in range(0, self.visits, _CHUNK):
                for partition in (0, 1):
                    visits = range(first + partition, min(first + _CHUNK, self.visits), 2)
                    yield (
                        partition,
                        [self._event(one, f"{minute}:{one % 60:02d}Z", turn) for one in visits],
                    )
        for partition in (0, 1):
            yield partition, [self._event(self.visits + partition, "2025-09-03T00:00:00Z", 0)]

    @staticmethod
    def _event(visit: int, at: str, turn: int) -> dict[str, Any]:
        value = (
            f'{{"event_id":"click-{visit}-{turn}","visit_id":{visit},"event_time":"{at}",'
            f'"page":"category_{turn}"}}'
        )
        return {"value": value.encode()}
