"""Values for the records and topics of a broker."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any

DEFAULT_PARTITIONS = 2


@dataclass(frozen=True, slots=True)
class Record:
    """A record in a topic."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def to_json(self) -> str:
        """One JSON line; bytes that are not UTF-8 are base64 under `<name>_base64`.

        >>> print(Record("t", 0, 7, 1, None, b"hi").to_json()[:40])
        {"topic": "t", "partition": 0, "offset":
        """
        row: dict[str, Any] = {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "timestamp_ms": self.timestamp_ms,
        }
        row |= [_text("key", self.key), _text("value", self.value)]
        return json.dumps(row | {"headers": dict(starmap(_text, self.headers))}, ensure_ascii=False)


@dataclass(frozen=True)
class Topic:
    """A topic as a broker describes it."""

    name: str
    id: str
    """Unique to each topic that is created, whatever its name; empty before Kafka 2.8."""
    partitions: Mapping[int, tuple[int, int]]
    """For each, the earliest offset that Kafka still holds and the next one to be written."""
    config: Mapping[str, str] = field(default_factory=dict)
    """Its settings, as far as we may read them."""

    @property
    def compacted(self) -> bool:
        """Whether of records with the same key only the last is kept."""
        return "compact" in self.config.get("cleanup.policy", "")

    @property
    def retention_ms(self) -> int | None:
        """How long a record is kept; None if for ever, or if that is not known."""
        return self._limit("retention.ms")

    @property
    def retention_bytes(self) -> int | None:
        """How much of a partition is kept; None if all of it, or if that is not known."""
        return self._limit("retention.bytes")

    def _limit(self, name: str) -> int | None:
        """A limit of the time or size kept.

        >>> Topic("t", "", {}, {"cleanup.policy": "delete", "retention.ms": "1000"}).retention_ms
        1000
        """
        deletes = "delete" in self.config.get("cleanup.policy", "")
        limit = int(self.config.get(name, -1)) if deletes else -1
        return None if limit < 0 else limit


def _text(name: str, value: bytes | None) -> tuple[str, str | None]:
    if value is None:
        return name, None
    try:
        return name, value.decode("utf-8")
    except UnicodeDecodeError:
        return f"{name}_base64", b64encode(value).decode("ascii")
