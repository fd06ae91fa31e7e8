"""Find the offsets from which an archive continues, or refuse to continue.

A record must be in the table once. Spark and Delta ensure that as long as one checkpoint and one
table belong together; this module checks that they do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ebbtide.archive.facts import Archive, last_batch_and_offsets
from ebbtide.checkpoint import log_files, read_logs
from ebbtide.errors import ArchiveError
from ebbtide.rewind import lease
from ebbtide.storage import Folder, open_folder

Offsets = dict[int, int]
Retained = Mapping[int, tuple[int, int]]
"""By partition, the earliest offset that Kafka still has and the next that it will assign."""


def resume(archive: Archive | None, folder: Folder, path: str) -> Offsets:
    """The next offset of each partition; refused if a record would be missing or duplicated."""
    logs = read_logs(folder) if folder.read("metadata") is not None else None
    if archive is None:
        if logs is not None and logs.batches:
            raise ArchiveError(
                f"{folder.url} has run up to batch {logs.batches[-1].id}, but there is no table at "
                f"{path}.",
                "Put the table back, or begin again: name an empty folder with --checkpoint.",
            )
        return {}
    if logs is None or not logs.batches:
        if not archive.is_of(folder):
            _check_unused(archive)
        return archive.offsets
    if problem := _why_not_exact(archive, folder, logs):
        raise ArchiveError(
            f"{folder.url} and the table at {path} do not fit: {problem}.",
            "To continue after what the table holds, name an empty folder with --checkpoint.",
        )
    return _positions(logs.batches[-1], archive.topic)


def _check_unused(archive: Archive) -> None:
    """Refuse a second query on the same table, which would archive everything twice."""
    other = open_folder(archive.checkpoint)
    lease.wait_until_free(other, beside=(lease.CHANGE, lease.FORK))


def _why_not_exact(archive: Archive, folder: Folder, logs: log_files.Logs) -> str | None:
    planned, committed = logs.batches[-1], logs.latest_committed
    if archive.is_of(folder) and archive.batch is not None:
        done = -1 if committed is None else committed.id
        if archive.batch > planned.id:
            return (
                f"the table holds batch {archive.batch}, the checkpoint was taken back to "
                f"{planned.id}, and Delta would leave out what runs again"
            )
        if archive.batch < done:
            return f"the checkpoint has done batch {done}, the table ends with {archive.batch}"
        return None
    # the checkpoint was moved or is another query's, or the table is another: compare the records
    written, held = last_batch_and_offsets(archive, logs.query_id)
    batch = committed if written is None else logs.by_id.get(written)
    ends = {} if batch is None else _positions(batch, archive.topic)
    for partition in sorted({*ends, *held}):
        if (table := held.get(partition, 0)) != (checkpoint := ends.get(partition, 0)):
            return (
                f"the table holds partition {partition} up to offset {table}, "
                f"the checkpoint continues at {checkpoint}"
            )
    return None


def _positions(batch: log_files.Batch, topic: str) -> Offsets:
    return {p: offset for (name, p), offset in batch.positions.items() if name == topic}


def check_kafka(
    topic: str, following: Offsets, retained: Retained, *, loss_allowed: bool
) -> list[str]:
    """Refuse another topic, or one that has lost records which are not archived yet.

    Returns a line for each loss that the pipeline allows.
    """
    losses = []
    for partition, offset in sorted(following.items()):
        earliest, end = retained.get(partition, (0, 0))
        if end < offset:
            raise ArchiveError(
                f"Topic {topic} ends at offset {end} of partition {partition}, and the archive "
                f"holds it up to {offset}: it is another topic of that name.",
                "Name another table, Pipeline(…, archive=Delta(…)), and an empty --checkpoint.",
            )
        if earliest > offset:
            lost = (
                f"Records {offset} to {earliest - 1} of topic {topic}, partition {partition}, are "
                "no longer in Kafka and were never archived."
            )
            if not loss_allowed:
                remedy = 'To continue without them: Kafka(…, options={"failOnDataLoss": "false"}).'
                raise ArchiveError(lost, remedy)
            losses.append(lost)
    return losses


def starting_offsets(topic: str, following: Offsets, retained: Retained) -> str:
    """The offsets at which a new query starts, in the format of Spark's Kafka source.

    >>> starting_offsets("visits", {0: 7}, {0: (0, 9), 1: (3, 5)})
    '{"visits": {"0": 7, "1": 3}}'
    """
    if not following:
        return "earliest"
    begin = {p: max(following.get(p, 0), first) for p, (first, _) in retained.items()}
    return json.dumps({topic: begin})
