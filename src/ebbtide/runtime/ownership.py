"""Claim a checkpoint for a run: it must be the pipeline's own, and not in use."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from ebbtide.checkpoint import Journal, Owner, layout, read_logs
from ebbtide.config import Settings
from ebbtide.connectors import connector_of, connector_of_offset
from ebbtide.errors import CheckpointError
from ebbtide.notes import write_note
from ebbtide.pipeline import Pipeline
from ebbtide.rewind import fork, lease
from ebbtide.storage import NOTES, Folder, open_folder


@contextmanager
def hold(
    folder: Folder, *, assume_stopped: bool = False, pause: lease.Pause = time.sleep
) -> Iterator[lease.Claim]:
    """Hold a checkpoint during a run; raises if it is in use or half changed."""
    with lease.hold_lease(folder, lease.RUN, assume_stopped=assume_stopped, pause=pause) as claimed:
        if (journal := Journal.read(folder)) is not None:
            raise journal.interrupted(folder.url)
        yield claimed


@contextmanager
def claim(
    location: str,
    pipeline: Pipeline,
    settings: Settings,
    *,
    writes: bool = True,
    assume_stopped: bool = False,
    pause: lease.Pause = time.sleep,
) -> Iterator[lease.Claim]:
    """Hold a checkpoint during a run; raises if it is another query's or in use.

    A run that does not write to the pipeline's sink leaves it out of the checkpoint's note.
    """
    folder = open_folder(location)
    check_owner(folder, pipeline)
    with hold(folder, assume_stopped=assume_stopped, pause=pause) as claimed:
        before = Owner.read(folder).source or {}
        source, sink = connector_of(pipeline.source).source, connector_of(pipeline.sink).sink
        place = sink.place(pipeline.sink, settings)
        if writes:
            fork.begin_sink(claimed.writable, place)
        owner = Owner(
            pipeline.name,
            pipeline.event_time,
            source.describe(pipeline.source, settings, folder, before),
            asdict(place) if writes else None,
            folder.address,
        )
        write_note(claimed.folder, layout.OWNER, owner.to_dict())
        yield claimed


def check_owner(folder: Folder, pipeline: Pipeline) -> None:
    """Refuse a folder that is no checkpoint, or the checkpoint of another query."""
    names = set(folder.names()) - {NOTES}
    if not names:
        return
    if not names & set(layout.PARTS):
        raise CheckpointError(
            f"{folder.url} holds {', '.join(sorted(names)[:3])}, which is not a checkpoint.",
            "Name an empty folder with --checkpoint.",
        )
    owner = Owner.read(folder).pipeline or pipeline.name
    if owner != pipeline.name:
        raise _another_query(folder, f"of pipeline {owner}", pipeline)
    if "metadata" in names:
        _check_source(folder, pipeline)


def _check_source(folder: Folder, pipeline: Pipeline) -> None:
    batches = read_logs(folder).batches
    if not batches:
        return
    # one line for each place where the query reads its source: a join with itself has two, and
    # they may have read it up to different offsets
    sources = {_identify(text) for text in batches[-1].offsets.sources}
    if len(sources) != 1:
        raise _another_query(folder, f"of a query with {len(sources)} sources", pipeline)
    kind, names = sources.pop()
    if kind == "none":
        return
    source = connector_of(pipeline.source).source
    if whose := source.find_mismatch(pipeline.source, kind, names):
        raise _another_query(folder, whose, pipeline)


def _identify(offset: str | None) -> tuple[str, tuple[str, ...]]:
    """What an offset says of its source: the kind, and which topics or table.

    >>> _identify('{"visits":{"0":5}}'), _identify('{"logOffset":3}')
    (('kafka', ('visits',)), ('files', ()))
    """
    connector = connector_of_offset(offset)
    return connector.kind, () if offset is None else connector.source.names_in(offset)


def _another_query(folder: Folder, whose: str, pipeline: Pipeline) -> CheckpointError:
    return CheckpointError(
        f"{folder.url} is the checkpoint {whose}, not of {pipeline.name}.",
        "Name another folder with --checkpoint.",
    )
