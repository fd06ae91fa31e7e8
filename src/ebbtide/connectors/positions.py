"""Where a query stands in a source: what a connector is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from shlex import quote
from typing import Any, NamedTuple

from ebbtide.checkpoint import Checkpoint
from ebbtide.connections import KafkaConnection
from ebbtide.errors import CheckpointError


@dataclass(frozen=True)
class SourceStart:
    """Where a batch begins in one source: what its connector is asked about."""

    checkpoint: Checkpoint
    index: int
    directory: str
    """Its folder in the checkpoint, such as `sources/0`."""
    offset: str | None
    """Where the batch before ended, or where the query began; None if nothing was read of it."""
    latest: str | None
    """Where the last planned batch ends; None if no batch has read it."""
    connection: KafkaConnection | None = None

    @property
    def name(self) -> str:
        """For a message."""
        return f"Source {self.index} of {self.checkpoint.location}"


class GroupOffset(NamedTuple):
    """The next record that a consumer group reads of a partition."""

    topic: str
    partition: int
    offset: int

    def to_csv(self) -> str:
        """As a line for `kafka-consumer-groups --reset-offsets --from-file`.

        >>> GroupOffset("visits", 0, 17).to_csv()
        'visits,0,17'
        """
        return f"{self.topic},{self.partition},{self.offset}"


@dataclass(frozen=True)
class SourcePosition:
    """Where a query stands in one source, and how another query begins there."""

    index: int
    kind: str
    offset: str | None
    """As Spark wrote it; None if nothing was read of it."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The reader's options with which a query without a checkpoint begins there; may be none."""
    group_offsets: tuple[GroupOffset, ...] = ()
    """The same as offsets of a consumer group, for a source that has such."""
    remarks: tuple[str, ...] = ()
    can_fork: bool = False
    """Whether a checkpoint without batches can begin there: `ebbtide fork --offsets-only`."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        groups = [group._asdict() for group in self.group_offsets]
        return {**asdict(self), "group_offsets": groups, "remarks": list(self.remarks)}


class PositionedSource:
    """What a new query must know to begin where another stands; the defaults know no way."""

    def locate(self, start: SourceStart, kind: str) -> SourcePosition:
        """How a query without a checkpoint begins where a batch does."""
        remark = "it has no option with which a new query begins at an offset"
        if start.offset is None:
            remark = "nothing was read of it: a new query begins as its own options say"
        return SourcePosition(start.index, kind, start.offset, remarks=(remark,))

    def seed(self, start: SourceStart) -> Mapping[str, str]:
        """The files, by path, with which a checkpoint without batches begins where a batch does.

        Refused where the new query would skip a record or read one twice, also if its first batch
        fails and runs again: Spark has no offset then from which that batch starts.
        """
        if start.offset is None and start.latest is None:
            return {}
        raise CheckpointError(
            f"{start.name} cannot begin at an offset without the batches before: only Kafka and "
            "files can.",
            "Start the new query on an empty folder, with the options that this shows: "
            f"ebbtide offsets {quote(start.checkpoint.location)}",
        )
