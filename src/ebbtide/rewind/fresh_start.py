"""Begin a checkpoint where a batch of another begins, without state: for code that cannot read it.

A batch loads the version of the state that has the batch's id, so without state the first batch
must be batch 0. Spark has no offsets from which batch 0 starts: if it failed and ran again, it
would start where the source says. So the position is put there: Kafka notes where a query begins,
and files have a log of those that were seen. Other sources are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ebbtide.checkpoint import Checkpoint, Owner
from ebbtide.connectors import sources
from ebbtide.errors import CheckpointError
from ebbtide.rewind import checks


@dataclass(frozen=True)
class FreshStart:
    """A position, as the files of a checkpoint that has no batch yet."""

    batch: int
    """The batch of the original that begins there."""
    files: Mapping[str, str]
    """By path, what they hold."""
    is_planned: bool
    """Whether that batch is planned, but not committed: its output may be in the sink."""


def find_fresh_start(checkpoint: Checkpoint, batch: int | None) -> FreshStart:
    """Where a batch begins (by default the next one); refused if a query could not begin there.

    What is read from there on must still be there, because Spark looks for it again.
    """
    batch = sources.find_start(checkpoint, batch)
    files: dict[str, str] = {}
    for start, connector in sources.list_starts(checkpoint, batch):
        if start.directory not in checkpoint.tree and start.offset is not None:
            if _is_repeated(checkpoint, start.index):
                continue
            if start.index:
                raise CheckpointError(
                    f"{start.name} has no folder {start.directory}: which records it has read is "
                    "not known.",
                    "Start the new query on an empty folder.",
                )
        files |= connector.source.seed(start)
    if batch in checkpoint.logs.by_id:
        verdict = sources.check_sources(checkpoint, batch, Owner.read(checkpoint.folder).source)
        for check in verdict.checks:
            checks.require(check, f"{checkpoint.location} cannot be forked at batch {batch}")
    elif batch == 0 and checkpoint.logs.batches:
        raise CheckpointError(
            f"Spark has cleaned up batch 0 of {checkpoint.location}: whether all that it read is "
            "still there is not known.",
            "Start the new query on an empty folder, from the beginning.",
        )
    planned = checkpoint.logs.by_id.get(batch)
    return FreshStart(batch, files, planned is not None and not planned.committed)


def _is_repeated(checkpoint: Checkpoint, index: int) -> bool:
    """Whether it is a source that the query reads in two places, as a join with itself does."""
    planned = checkpoint.logs.batches[-1].offsets.sources if checkpoint.logs.batches else ()
    return planned[index] in planned[:index] if index < len(planned) else False
