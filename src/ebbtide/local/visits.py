"""Generate visits: the same seed gives the same events, byte for byte, at any rate."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from ebbtide.errors import UsageError

Message = dict[str, Any]
"""What `ebbtide.connectors.kafka.Sender.send_all` takes: `key` and `value`."""

_CHUNK = 10_000
_ROUNDS_PER_VISIT = 20
_NAMED_PAGES = ("home", "main", "index", "about", "contact", "categories")
_SECONDS = tuple(f"{second:02d}Z" for second in range(60))
_LATE_MINUTES = (60, 180)
_TOO_DEEP = 1_500

BROKEN_SHAPES: dict[str, Callable[[int], bytes | None]] = {
    "not JSON": lambda n: b"GET /page_%d HTTP/1.1" % n,
    "not an object": lambda n: b"[%d]" % n,
    "wrong type": lambda n: b'{"event_id":"click-%d","visit_id":1,"event_time":{"at":7}}' % n,
    "no event time": lambda n: b'{"event_id":"click-%d","visit_id":1,"page":"home"}' % n,
    "null": lambda _n: None,
    "empty": lambda _n: b"",
    "invalid UTF-8": lambda n: b'{"event_id":"\xff\xfe%d","event_time":"2024-01-01T01:00:00Z"}' % n,
    "nested too deep": lambda n: (
        b'{"event_id":"click-%d","event_time":"2024-01-01T01:00:00Z","page":' % n
        + b'{"a":' * _TOO_DEEP
        + b"1"
        + b"}" * _TOO_DEEP
        + b"}"
    ),
}
"""Records that no visits pipeline can use, by what is wrong with them."""


@dataclass(frozen=True)
class VisitGenerator:
    """Generates visits: in each round every user opens one page, a few minutes after the last.

    >>> plan = VisitGenerator(count=2, users=2, seed=7)
    >>> [message["key"] for chunk in plan.messages() for message in chunk]
    [b'0', b'1']
    """

    count: int = 10_000
    users: int = 100
    pages: int = 20
    late: float = 0.0
    broken: float = 0.0
    seed: int = 1
    start: datetime = datetime(2024, 1, 1, 1, tzinfo=timezone.utc)
    text_ids: bool = False
    """Identify visits by text such as `140444734049152_4` instead of a number."""

    def __post_init__(self) -> None:
        for name in ("late", "broken"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"--{name} is a share from 0 to 1, not {getattr(self, name)}.")
        for name, least in (("users", 1), ("pages", 1), ("count", 0)):
            if getattr(self, name) < least:
                raise UsageError(f"--{name} must be at least {least}, not {getattr(self, name)}.")

    def messages(self) -> Iterator[list[Message]]:
        """The events in chunks, in order."""
        rng = random.Random(self.seed)
        more = (f"category_{n}" if n % 2 else f"page_{n}" for n in range(self.pages))
        pages = [*_NAMED_PAGES, *more][: self.pages]
        special = self.late + self.broken
        shapes = list(BROKEN_SHAPES.values())
        draw, n_pages, users = rng.random, len(pages), self.users
        source = b""
        if self.text_ids:
            # its own random numbers, so that the events are otherwise the same as without text
            source = b"%d_" % random.Random(self.seed).randrange(10**14, 2 * 10**14)
        before, after = (f'"{source.decode()}', '"') if source else ("", "")
        at = self.start
        number = round_ = 0
        chunk: list[Message] = []
        while number < self.count:
            minute = at.strftime("%Y-%m-%dT%H:%M:")
            first_visit = users * (round_ // _ROUNDS_PER_VISIT)
            for user in range(min(users, self.count - number)):
                visit = first_visit + user
                when = minute + _SECONDS[user % 60]
                page = pages[int(draw() * n_pages)]
                if special:
                    dice = draw()
                    if dice < self.broken:
                        shape = shapes[int(draw() * len(shapes))]
                        chunk.append({"key": b"%b%d" % (source, visit), "value": shape(number)})
                        number += 1
                        continue
                    if dice < special:
                        back = timedelta(minutes=rng.uniform(*_LATE_MINUTES))
                        when = (at - back).strftime("%Y-%m-%dT%H:%M:%SZ")
                value = (
                    f'{{"event_id":"click-{number}","visit_id":{before}{visit}{after},'
                    f'"event_time":"{when}","page":"{page}"}}'
                )
                chunk.append({"key": b"%b%d" % (source, visit), "value": value.encode()})
                number += 1
                if len(chunk) == _CHUNK:
                    yield chunk
                    chunk = []
            at += timedelta(minutes=rng.randint(1, 4))
            round_ += 1
        if chunk:
            yield chunk


def pace(chunks: Iterable[list[Message]], per_second: float | None) -> Iterator[list[Message]]:
    """Limit chunks to a rate, in slices of about a tenth of a second; None is unlimited."""
    if per_second is None:
        yield from chunks
        return
    size = max(1, int(per_second / 10))
    started, passed = time.monotonic(), 0
    for chunk in chunks:
        for first in range(0, len(chunk), size):
            due = started + passed / per_second
            time.sleep(max(0.0, due - time.monotonic()))
            piece = chunk[first : first + size]
            passed += len(piece)
            yield piece
