"""Find signs in the log of a Delta table that a query writes it."""

from __future__ import annotations

import posixpath
from collections.abc import Collection
from contextlib import suppress

from ebbtide.checkpoint import Checkpoint
from ebbtide.connectors.base import SinkEvidence, SinkPlace
from ebbtide.connectors.delta.held import find_function, read_apps
from ebbtide.connectors.delta.log import DeltaLog, find_state, table_errors
from ebbtide.errors import EbbtideError, first_line

_LOG = "_delta_log"


def examine_table(place: SinkPlace, checkpoint: Checkpoint) -> SinkEvidence | None:
    """Whether a table has noted batches of the query, or of a function that may be its own."""
    if not _is_table(place.path):
        return None
    try:
        return _examine(place, checkpoint)
    except table_errors(EbbtideError) as error:
        detail = f"its log cannot be read: {first_line(error)}"
        return SinkEvidence(place, SinkEvidence.POSSIBLE, detail)


def _examine(place: SinkPlace, checkpoint: Checkpoint) -> SinkEvidence | None:
    if (last := _last_noted(place.path, checkpoint.query_ids)) is not None:
        detail = f"its log notes batches up to {last} under this query's id"
        return SinkEvidence(place, SinkEvidence.CERTAIN, detail, last)
    apps = _read_apps(place.path)
    if (app := find_function(apps, checkpoint.logs.last_id)) is None:
        return None
    detail = (
        f"its log notes batches up to {apps[app]} as {app} (txnAppId), which may be this query's "
        "foreachBatch function"
    )
    return SinkEvidence(place, SinkEvidence.POSSIBLE, detail, apps[app])


def find_tables_beside(place: SinkPlace, checkpoint: Checkpoint) -> list[SinkEvidence]:
    """The tables in the same folder that have the `txnAppId` of the function that writes one.

    A function that writes several tables notes the same last batch in each, unless one had no rows.
    """
    with suppress(EbbtideError, *table_errors()):
        return _find_beside(place, checkpoint)
    return []  # the plan of the table itself says that it cannot be read


def _find_beside(place: SinkPlace, checkpoint: Checkpoint) -> list[SinkEvidence]:
    path, last = place.path, checkpoint.logs.last_id
    if not _is_table(path) or _last_noted(path, checkpoint.query_ids) is not None:
        return []  # Spark's own sink writes one table
    if (app := find_function(_read_apps(path), last)) is None:
        return []
    own, here = _noted_beside(path, app), DeltaLog(path).folder
    parent, name = posixpath.split(here.url)
    beside = here.beside(parent)
    paths = [posixpath.join(parent, other) for other in beside.folders() if other != name]
    noted = beside.map(lambda other: _noted_beside(other, app), paths)
    found = []
    for other, (id_, batch) in zip(paths, noted, strict=True):
        if batch is None or batch > last:
            continue
        also = (
            f"it lies beside {place.name}, and its log also notes batches as {app}, up to {batch}"
        )
        is_copy = id_ == own[0]
        found.append(
            SinkEvidence(
                SinkPlace(place.kind, other, other),
                SinkEvidence.CERTAIN if batch == own[1] and not is_copy else SinkEvidence.POSSIBLE,
                f"{also}; both have the id {id_}, so one is a copy" if is_copy else also,
                batch,
            )
        )
    return found


def _noted_beside(path: str, app: str) -> tuple[str, int | None]:
    """The id of a table, and the last batch that it has noted for a writer."""
    with suppress(EbbtideError, *table_errors()):
        if _is_table(path) and (state := find_state(path)) is not None:
            return state.id, state.noted(app)
    return "", None


def _is_table(path: str) -> bool:
    with suppress(EbbtideError):
        return DeltaLog(path).folder.exists(_LOG)
    return False


def _last_noted(path: str, writers: Collection[str]) -> int | None:
    """The last batch that a table has noted for one of its writers."""
    state = find_state(path)
    noted = [state.noted(writer) for writer in writers] if state else []
    return max((batch for batch in noted if batch is not None), default=None)


def _read_apps(path: str) -> dict[str, int]:
    return read_apps(path, DeltaLog(path).newest)
