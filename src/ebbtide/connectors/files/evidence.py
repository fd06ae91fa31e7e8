"""Find signs in the log of a file sink that a query writes it; the log names no query."""

from __future__ import annotations

from contextlib import suppress

from ebbtide.checkpoint import Checkpoint
from ebbtide.connectors.base import SinkEvidence, SinkPlace
from ebbtide.connectors.files.log import LOG, log_ids
from ebbtide.errors import CheckpointError
from ebbtide.notes import INVALID
from ebbtide.parsing import parse_json
from ebbtide.storage import Folder

_COMPARED = 5
"""How many of the last batches are compared by their time."""
_SLACK_MS = 2_000
"""Some filesystems keep the time of a file in whole seconds."""


def examine_folder(place: SinkPlace, checkpoint: Checkpoint) -> SinkEvidence | None:
    """Whether a folder ends with the query's batches, and was written while these ran."""
    with suppress(CheckpointError, *INVALID):
        folder = checkpoint.folder.beside(place.path)
        ids = log_ids(folder.names(LOG))
        newest, last = max(ids.values()), checkpoint.logs.last_id
        if newest > last:
            return None
        ends = f"its log ends with batch {newest}, the checkpoint with batch {last}"
        latest = [name for name, id_ in ids.items() if newest - id_ < _COMPARED]
        fits = [_fits_in_time(folder, name, ids[name], checkpoint) for name in latest]
        if False in fits:
            return None
        if True in fits and newest + 1 >= last:
            detail = f"{ends}, and its files were written while these batches ran"
            return SinkEvidence(place, SinkEvidence.LIKELY, detail, newest)
        return SinkEvidence(place, SinkEvidence.POSSIBLE, f"{ends}; it names no query", newest)
    return None


def _fits_in_time(folder: Folder, name: str, batch: int, checkpoint: Checkpoint) -> bool | None:
    """Whether an entry's files were written while its batch ran; None if that is not known."""
    own, following = (checkpoint.logs.by_id.get(id_) for id_ in (batch, batch + 1))
    lines = (folder.read(LOG, name) or "").splitlines()[1:]
    times = [parse_json(line).get("modificationTime") for line in lines]
    # an entry that also holds all before it says nothing of its own batch
    if own is None or not times or None in times or name.endswith(".compact"):
        return None
    begin = own.offsets.timestamp_ms - _SLACK_MS
    end = following.offsets.timestamp_ms + _SLACK_MS if following else float("inf")
    return bool(begin <= min(times) and max(times) <= end)
