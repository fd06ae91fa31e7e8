"""Find out how far an archive is behind its topic, and who fills it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ebbtide.archive.resume import Offsets, Retained
from ebbtide.errors import EbbtideError
from ebbtide.rewind import lease
from ebbtide.storage import open_folder


@dataclass(frozen=True)
class ArchiveLag:
    """The progress of the archive in one partition of the topic."""

    partition: int
    archived: int | None
    """The next offset to archive; None if nothing of the partition is archived."""
    end: int | None
    """The next offset that Kafka will assign; None if Kafka does not answer."""
    behind: int | None
    """Records in Kafka that are not archived yet."""
    lost: int = 0
    """Records that left Kafka before they were archived."""


def find_lags(archived: Offsets, retained: Retained | None) -> list[ArchiveLag]:
    """The progress of the archive by partition; `retained` is None if Kafka does not answer.

    >>> find_lags({0: 7}, {0: (0, 9), 1: (2, 5)})[1]
    ArchiveLag(partition=1, archived=None, end=5, behind=3, lost=0)
    >>> find_lags({0: 7}, {0: (8, 9)})[0].lost
    1
    """
    topic: Mapping[int, tuple[int, int]] = retained or {}
    return [_lag(p, archived.get(p), topic.get(p)) for p in sorted({*archived, *topic})]


def _lag(partition: int, archived: int | None, held: tuple[int, int] | None) -> ArchiveLag:
    if held is None:
        return ArchiveLag(partition, archived, None, None)
    earliest, end = held
    following = earliest if archived is None else archived
    behind = max(0, end - max(following, earliest))
    return ArchiveLag(partition, archived, end, behind, max(0, earliest - following))


def who_fills(checkpoint: str) -> str | None:
    """Who runs the query that fills an archive; None if nobody does."""
    try:
        using = lease.read_lease(open_folder(checkpoint))
    except EbbtideError:
        return None
    return None if using is None else using.holder()
