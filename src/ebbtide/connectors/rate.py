"""Spark's rate source, which generates rows by the clock."""

from __future__ import annotations

from typing import Any

from ebbtide.checks import CheckKind
from ebbtide.connectors.base import Connector, SourceConnector, SourceReplay, SourceVerdict
from ebbtide.pipeline import Source


class RateSource(SourceConnector[Source]):
    """It generates the same rows for the same offsets."""

    def owns(self, offset: Any) -> bool:
        return isinstance(offset, int) or (
            isinstance(offset, dict) and set(offset) == {"offset", "timestamp"}
        )

    def check(self, replay: SourceReplay) -> SourceVerdict:
        check = CheckKind.RATE_SOURCE.ok("can always be read again")
        return SourceVerdict((check,) * len(replay.ranges))


CONNECTOR = Connector("rate", source=RateSource())
