"""A sink that nobody names, because it accepts the same batches again: `--sink none`."""

from __future__ import annotations

from typing import Any

from ebbtide.checks import Check, CheckKind
from ebbtide.connectors.base import Connector, ReplayedQuery, SinkConnector, SinkPlace, SinkPlan


class WaivedSink(SinkConnector[Any]):
    """It is said to write whatever it gets; nothing is checked."""

    def lacks_place(self, place: SinkPlace) -> bool:
        return True

    def plan(self, place: SinkPlace, query: ReplayedQuery) -> tuple[SinkPlan, Check]:
        return SinkPlan(place), CheckKind.SINK.warn(
            f"not checked (--sink none): it gets the output of {query.batches} again. One that "
            "skips batches that it has seen, as Delta and file sinks do, loses them and new data",
            "Name such a sink with --sink-table or --sink-files.",
        )


CONNECTOR = Connector("none", sink=WaivedSink())
