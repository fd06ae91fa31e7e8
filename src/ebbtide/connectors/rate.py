"""Spark's rate source, which generates rows by the clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ebbtide.checks import CheckKind
from ebbtide.connectors.base import Connector, SourceConnector, SourceReplay, SourceVerdict
from ebbtide.connectors.streams import StreamRead
from ebbtide.pipeline import Source

_NUMBERED = ("rate", "rate-micro-batch", "ratestreamprovider", "socket", "memory")
"""Spark's sources whose offset is a number."""


class RateSource(SourceConnector[Source]):
    """It generates the same rows for the same offsets."""

    def owns(self, offset: Any) -> bool:
        return isinstance(offset, int) or (
            isinstance(offset, dict) and set(offset) == {"offset", "timestamp"}
        )

    def recognize(self, name: str, options: Mapping[str, str]) -> StreamRead | None:
        kind = name.lower()
        return StreamRead("rate", label=kind) if kind in _NUMBERED else None

    def check(self, replay: SourceReplay) -> SourceVerdict:
        check = CheckKind.RATE_SOURCE.ok("can always be read again")
        return SourceVerdict((check,) * len(replay.ranges))


CONNECTOR = Connector("rate", source=RateSource())
