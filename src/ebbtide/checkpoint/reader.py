"""A checkpoint folder in, one frozen `Checkpoint` out."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ebbtide.checkpoint.folder import Folder, open_folder
from ebbtide.checkpoint.logs import OffsetEntry, parse_commit, parse_offsets
from ebbtide.errors import CheckpointError


@dataclass(frozen=True)
class Batch:
    """One micro-batch as the logs hold it."""

    id: int
    committed: bool
    offsets: OffsetEntry
    next_watermark_ms: int | None


@dataclass(frozen=True)
class Checkpoint:
    """What the logs of a checkpoint say."""

    location: str
    query_id: str
    batches: tuple[Batch, ...]

    @property
    def latest_committed(self) -> Batch | None:
        """The last batch that is done."""
        return next((batch for batch in reversed(self.batches) if batch.committed), None)


def read_checkpoint(location: str) -> Checkpoint:
    """Read the logs of the checkpoint at a path or fsspec URL."""
    folder = open_folder(location)
    metadata = folder.read("metadata")
    if metadata is None:
        raise CheckpointError(
            f"{location} is not a checkpoint: it has no file 'metadata'.",
            "Name the folder that holds metadata, offsets and commits.",
        )
    try:
        query_id = str(json.loads(metadata)["id"])
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(
            f"{location}/metadata holds no query id: {metadata[:80]!r}."
        ) from None
    return Checkpoint(location, query_id, tuple(_read_batches(folder)))


def _read_batches(folder: Folder) -> list[Batch]:
    commits = set(folder.ids("commits"))
    batches = []
    for id_ in folder.ids("offsets"):
        text = folder.read("offsets", str(id_))
        if text is None:  # purged by Spark between the listing and the reading
            continue
        offsets = parse_offsets(text, f"{folder.url}/offsets/{id_}")
        commit_text = folder.read("commits", str(id_)) if id_ in commits else None
        commit = None
        if commit_text is not None:
            commit = parse_commit(commit_text, f"{folder.url}/commits/{id_}")
        batches.append(
            Batch(id_, commit is not None, offsets, commit.next_watermark_ms if commit else None)
        )
    return batches
