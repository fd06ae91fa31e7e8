"""What a connector knows of a source or a sink that new code may have changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from ebbtide.checks import PartVerdict
from ebbtide.connectors.streams import LastRead, SourceLog, StreamRead
from ebbtide.pipeline import Sink

if TYPE_CHECKING:
    from ebbtide.checkpoint import Checkpoint
    from ebbtide.connectors.base import SinkEvidence, SinkPlace

ALL_MODES = ("append", "update", "complete")


class ComparedSource:
    """A source of a query that was not started; the defaults compare nothing but the kind."""

    def recognize(self, name: str, options: Mapping[str, str]) -> StreamRead | None:
        """What a plan reads, by Spark's name of the source and its options; None if another's."""
        return None

    def list_read(self, log: SourceLog) -> LastRead:
        """The topics, table or folders that a checkpoint has read as one of its sources."""
        return LastRead()

    def compare_read(
        self, part: str, old: LastRead, new: StreamRead, others: Sequence[StreamRead]
    ) -> PartVerdict:
        """Whether Spark goes on with a source; `others` are the query's other sources."""
        return PartVerdict.same(part, str(new))

    def compare_offset(self, part: str, offset: str, new: StreamRead) -> PartVerdict | None:
        """What the newest offset adds, such as partitions; None if nothing."""
        return None


class ComparedSink:
    """A sink of a query that was not started."""

    output_modes: ClassVar[tuple[str, ...]] = ALL_MODES
    """Those that Spark lets it take."""
    spark_name: ClassVar[str | None] = None
    """What the progress of a running query calls it; its path may follow in brackets."""

    def recognize(self, name: str, options: Mapping[str, str]) -> SinkPlace | None:
        """Where a writer writes, by Spark's name of the sink and its options; None if another's."""
        return None

    def as_value(self, place: SinkPlace) -> Sink | None:
        """The sink at a place, to read what a batch wrote; None if that cannot be told."""
        return None

    def newest_batch(self, place: SinkPlace, checkpoint: Checkpoint) -> int | None:
        """Up to which batch of the query a place skips all; None if it skips none."""
        evidence: SinkEvidence | None = self.examine(place, checkpoint)  # type: ignore[attr-defined]
        return evidence.batch if evidence and evidence.match == evidence.CERTAIN else None

    def why_no_begin(self, place: SinkPlace, newest: int | None, batch: int) -> str | None:
        """Why a place whose newest batch is known cannot begin with a later one; None if it can."""
        return None
