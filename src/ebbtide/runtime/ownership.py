"""A checkpoint and a pipeline in, the right to run it out: ours, not another's, not in use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from ebbtide.checkpoint.journal import read_journal
from ebbtide.checkpoint.layout import NOTES, PARTS
from ebbtide.checkpoint.logs import parse_kafka_offset, source_kind
from ebbtide.checkpoint.reader import read_logs
from ebbtide.config import Settings
from ebbtide.connectors.delta.source import Offset as DeltaOffset
from ebbtide.connectors.kafka import topic_ids
from ebbtide.connectors.sink_plans import Sink
from ebbtide.errors import BrokerError, CheckpointError
from ebbtide.pipeline import Delta, Files, Kafka, Pipeline, Source
from ebbtide.rewind.lease import RUN, Claim, hold_lease
from ebbtide.rewind.plan import OWNER
from ebbtide.storage import Folder, open_folder


@contextmanager
def claim(
    location: str, pipeline: Pipeline, settings: Settings, *, writes: bool = True
) -> Iterator[Claim]:
    """Take a checkpoint for a run, and give it back at the end; refuse what is not ours to run.

    A run that does not write to the pipeline's sink leaves it out of the checkpoint's note.
    """
    folder = open_folder(location)
    check_owner(folder, pipeline)
    with hold_lease(folder, RUN) as claimed:
        if (journal := read_journal(folder)) is not None:
            raise journal.interrupted(location)
        before = (folder.read_note(OWNER) or {}).get("source", {})
        note = {
            "pipeline": pipeline.name,
            "event_time": pipeline.event_time,
            "source": _describe_source(folder, pipeline.source, settings, before),
        }
        if writes:
            note["sink"] = asdict(Sink.of(pipeline.sink, settings))
        folder.write_note(OWNER, note)
        yield claimed


def _describe_source(
    folder: Folder, source: Source, settings: Settings, before: Mapping[str, Any]
) -> dict[str, Any]:
    """What a plan must know to see whether the source still holds what a batch has read."""
    match source:
        case Kafka(topic=topic):
            ids = list(before.get("topic_ids", ()))
            if (id_ := _topic_id(topic, settings)) and (not ids or ids[-1]["id"] != id_):
                batches = folder.ids("offsets")
                ids.append({"id": id_, "since_batch": batches[-1] + 1 if batches else 0})
            return {"kind": "kafka", "path": topic, "topic_ids": ids}
        case Delta(path=path):
            return {"kind": "delta", "path": settings.table(path)}
        case Files(location=location):
            return {"kind": "files", "path": location}


def _topic_id(topic: str, settings: Settings) -> str:
    """The topic's id where a broker can be asked; a run does not depend on it."""
    if not settings.bootstrap_servers:
        return ""
    try:
        return topic_ids(settings.kafka, [topic]).get(topic, "")
    except BrokerError:
        return ""


def check_owner(folder: Folder, pipeline: Pipeline) -> None:
    """Refuse a folder that is no checkpoint, or the checkpoint of another query."""
    names = set(folder.names()) - {NOTES}
    if not names:
        return
    if not names & set(PARTS):
        raise CheckpointError(
            f"{folder.url} holds {', '.join(sorted(names)[:3])}, which is no checkpoint.",
            "Name an empty folder with --checkpoint.",
        )
    owner = (folder.read_note(OWNER) or {}).get("pipeline", pipeline.name)
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
    found = {_told(text) for text in batches[-1].offsets.sources}
    if len(found) != 1:
        raise _another_query(folder, f"of a query with {len(found)} sources", pipeline)
    kind, *topics = found.pop()
    if not isinstance(pipeline.source, Kafka) or kind == "none":
        return
    if kind != "kafka":
        raise _another_query(folder, "of a query that does not read Kafka", pipeline)
    if topics and topics != [pipeline.source.topic]:
        raise _another_query(folder, f"of a query that reads topic {', '.join(topics)}", pipeline)


def _told(offset: str | None) -> tuple[str, ...]:
    """What an offset tells of its source: the kind, and which topics or table.

    >>> _told('{"visits":{"0":5}}'), _told('{"logOffset":3}')
    (('kafka', 'visits'), ('files',))
    """
    kind = source_kind(offset)
    if offset is not None and kind == "kafka":
        return (kind, *sorted(parse_kafka_offset(offset)))
    if offset is not None and kind == "delta":
        return (kind, DeltaOffset.parse(offset).table_id)
    return (kind,)


def _another_query(folder: Folder, whose: str, pipeline: Pipeline) -> CheckpointError:
    return CheckpointError(
        f"{folder.url} is the checkpoint {whose}, not of {pipeline.name}.",
        "Name another folder with --checkpoint.",
    )
