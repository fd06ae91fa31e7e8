"""Ask a query's sources where it stands, and whether they still hold what is read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from shlex import quote
from typing import Any

from ebbtide.checkpoint import Checkpoint, Owner, log_files
from ebbtide.connections import KafkaConnection
from ebbtide.connectors import base
from ebbtide.connectors.positions import SourcePosition, SourceStart
from ebbtide.connectors.registry import connector_of, connector_of_offset
from ebbtide.errors import CheckpointError
from ebbtide.parsing import MAX_LOG_BYTES, require_name


@dataclass(frozen=True)
class QueryPosition:
    """Where a query stands in all its sources when a batch begins."""

    checkpoint: str
    query_id: str
    batch: int
    """The batch that begins there."""
    planned: bool
    """Whether the batch is planned, but not committed."""
    sources: tuple[SourcePosition, ...]

    @property
    def csv(self) -> str:
        """The offsets of a consumer group, one line for each partition of each source."""
        return "\n".join(group.to_csv() for one in self.sources for group in one.group_offsets)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {**vars(self), "sources": [one.to_dict() for one in self.sources]}


def check_sources(
    checkpoint: Checkpoint,
    batch: int,
    note: Mapping[str, Any] | None,
    connection: KafkaConnection | None = None,
    *,
    replan: bool = False,
) -> base.SourceVerdict:
    """Whether the sources of a query still hold what a rewind to a batch reads again.

    `note` is what the runner noted of the source.
    """
    verdicts: list[base.SourceVerdict] = []
    for kind, ranges in _ranges_by_kind(checkpoint, batch).items():
        own_note = _note_of(note, kind)
        replay = base.SourceReplay(checkpoint, batch, tuple(ranges), own_note, connection, replan)
        verdicts.append(connector_of(kind).source.check(replay))
    # sources with partitions first: their check says most
    verdicts.sort(key=lambda verdict: not verdict.partitions)
    return base.SourceVerdict(
        tuple(check for verdict in verdicts for check in verdict.checks),
        tuple(part for verdict in verdicts for part in verdict.partitions),
    )


def read_retention(
    checkpoint: Checkpoint,
    owner: Owner,
    connection: KafkaConnection | None,
    now: datetime,
    older: Mapping[int, tuple[str | None, ...]],
) -> list[base.Retention]:
    """How long sources and sink keep what each batch needs; `owner` names both.

    `older` are the offsets of batches that only the history knows.
    """
    sink = owner.sink_of(checkpoint.folder)
    asked = base.RetentionRequest(checkpoint, {}, connection, now, older)
    planned = [text for batch in checkpoint.logs.batches[-1:] for text in batch.offsets.sources]
    kinds = dict.fromkeys(connector_of_offset(text).kind for text in planned if text is not None)
    retentions = [
        connector_of(kind).source.limit(replace(asked, note=_note_of(owner.source, kind)))
        for kind in kinds
    ]
    if sink:
        retentions.append(connector_of(sink["kind"]).sink.limit(replace(asked, note=sink)))
    return retentions


def _ranges_by_kind(checkpoint: Checkpoint, batch: int) -> dict[str, list[base.SourceRange]]:
    """What each source reads again: from the offset of the batch before to the last planned one."""
    last = checkpoint.logs.batches[-1].offsets
    planned, before = last.sources, checkpoint.before(batch)
    first = checkpoint.logs.by_id[batch].offsets.by_name
    starts = before.offsets.by_name if before else {}
    ranges: dict[str, list[base.SourceRange]] = {}
    for index, end in enumerate(planned):
        if end is None:
            continue
        name = last.name_of(index)
        if end in planned[:index] and f"sources/{name}" not in checkpoint.tree:
            continue  # a source that the query reads in two places, as a join with itself does
        start, own = starts.get(name), first.get(name)
        kind = connector_of_offset(end).kind
        if {connector_of_offset(text).kind for text in (start, own) if text is not None} - {kind}:
            raise _different_systems(checkpoint, index, batch)
        ranges.setdefault(kind, []).append(base.SourceRange(index, start, own, end))
    return ranges


def _note_of(note: Mapping[str, Any] | None, kind: str) -> Mapping[str, Any]:
    return note if note and note.get("kind") == kind else {}


def read_position(
    checkpoint: Checkpoint, batch: int | None = None, connection: KafkaConnection | None = None
) -> QueryPosition:
    """Where a batch begins; by default the one after the last that is committed."""
    batch = find_start(checkpoint, batch)
    starts = list_starts(checkpoint, batch, connection)
    planned = checkpoint.logs.by_id.get(batch)
    return QueryPosition(
        checkpoint.location,
        checkpoint.logs.query_id,
        batch,
        planned is not None and not planned.committed,
        tuple(connector.source.locate(start, connector.kind) for start, connector in starts),
    )


def find_start(checkpoint: Checkpoint, batch: int | None) -> int:
    """A batch of which it is known where it begins; by default the one after the last commit."""
    checkpoint.require_finished()
    logs, inspect = checkpoint.logs, f"ebbtide inspect {quote(checkpoint.location)}"
    done = logs.latest_committed.id if logs.latest_committed else -1
    following = next((each.id for each in logs.batches if each.id > done), done + 1)
    batch = following if batch is None else batch
    if batch not in logs.by_id and batch not in (0, following):
        held = f"{logs.batches[0].id} to {logs.last_id}" if logs.batches else "none"
        raise CheckpointError(
            f"{checkpoint.location} has no batch {batch}.", f"It has {held}; see: {inspect}"
        )
    if (problem := checkpoint.why_no_start(batch)) is not None:
        raise CheckpointError(
            f"Where batch {batch} of {checkpoint.location} begins is not known: {problem}.",
            f"Choose another batch: {inspect}",
        )
    return batch


def list_starts(
    checkpoint: Checkpoint, batch: int, connection: KafkaConnection | None = None
) -> list[tuple[SourceStart, base.Connector]]:
    """Where a batch begins in each source, with the source's connector."""
    before = checkpoint.before(batch) if batch > 0 else None
    last = checkpoint.logs.batches[-1].offsets if checkpoint.logs.batches else None
    folders = sorted(
        {
            path.split("/")[1]
            for path in checkpoint.tree
            if path.count("/") == 1 and path.startswith("sources/")
        }
    )
    count = len(last.sources) if last else len(folders)
    if not count:
        raise CheckpointError(
            f"{checkpoint.location} does not say what its query reads: it has not begun.",
            "Start the new query on an empty folder.",
        )
    if last is not None and not _folders_are_clear(last.sources, len(folders)):
        raise CheckpointError(
            f"{checkpoint.location} reads one source in two places, and another one: which of "
            f"its {len(folders)} folders in sources belongs to which is not known.",
            "Start the new query on an empty folder, with the offsets that ebbtide inspect shows.",
        )
    starts = []
    for index in range(count):
        latest = last.sources[index] if last else None
        name = _name(checkpoint, last.name_of(index) if last else folders[index])
        directory = f"sources/{name}"
        offset = before.offsets.by_name.get(name) if before else None
        if offset is None:
            text = checkpoint.folder.read(f"{directory}/0", limit=MAX_LOG_BYTES)
            offset = log_files.parse_initial_offset(text or "")
            if text and offset is None and last is None:
                raise CheckpointError(
                    f"{checkpoint.location} has not run a batch yet, and its place in {directory} "
                    "is a list that only Spark goes on from.",
                    "Name the checkpoint that it was forked from, or let it run a batch first.",
                )
        connector = connector_of_offset(offset if latest is None else latest)
        if offset is not None and connector_of_offset(offset).kind != connector.kind:
            raise _different_systems(checkpoint, index, batch)
        asked = SourceStart(checkpoint, index, directory, offset, latest, connection)
        starts.append((asked, connector))
    return starts


def _folders_are_clear(offsets: Sequence[str | None], folders: int) -> bool:
    """Whether a source has the folder of its number, also if the query reads some in two places.

    Spark numbers folders by source, and offsets by place.

    >>> _folders_are_clear(["a", "b", "a"], 2), _folders_are_clear(["a", "a", "b"], 2)
    (True, False)
    """
    if len(set(offsets)) == len(offsets) or not 1 < folders < len(offsets):
        return True
    first = offsets[:folders]
    return len(set(first)) == folders and set(offsets[folders:]) <= set(first)


def _name(checkpoint: Checkpoint, name: str) -> str:
    try:
        return require_name(name)
    except ValueError:
        raise CheckpointError(
            f"The offsets of {checkpoint.location} name a source that is no folder: {name[:40]!r}.",
            "Restore them from a copy of the checkpoint.",
        ) from None


def _different_systems(checkpoint: Checkpoint, index: int, batch: int) -> CheckpointError:
    return CheckpointError(
        f"Source {index} of {checkpoint.location} has offsets of different systems in "
        f"batch {batch} and in the last one.",
        "Choose a batch of the same query.",
    )
