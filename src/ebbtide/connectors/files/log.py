"""Read the log of a file sink, and write an empty one for a query that does not begin with batch 0.

The log, `_spark_metadata`, has one entry per batch, and every tenth also holds all that came before
it. It names files by their URLs, and it does not say which query wrote an entry.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from ebbtide.checkpoint import layout, log_files
from ebbtide.connectors import base
from ebbtide.errors import CheckpointError
from ebbtide.notes import INVALID, decode
from ebbtide.parsing import parse_json
from ebbtide.storage import Folder

LOG = "_spark_metadata"
QUARANTINE = "_ebbtide"
"""The folder for files that backups set aside; readers of the sink ignore it."""
COPIES = "copies"
"""Inside it: copies of log entries that stayed, because Spark cleans them up in time."""
NO_FILES = "v1"
"""The entry of a batch that wrote none."""
_ENTRY = re.compile(r"([0-9]{1,18})(\.compact)?")
_INTERVAL = 10
"""Every how many batches an entry holds all before it, unless Spark is told otherwise."""
_CLOCK_MS = 5_000
"""How far the clocks of a query and of its filesystem may differ."""


@dataclass(frozen=True)
class SinkLog:
    """What a file sink's log records of the batches from one on."""

    newest: int | None
    """It skips batches up to this one."""
    entries: tuple[str, ...]
    """Log entries of the batches in question, newest first, checksum files included."""
    data: tuple[str, ...]
    """The data files that those batches wrote, checksum files included."""
    missing: tuple[str, ...]
    """Data files that are gone."""
    standing: tuple[str, ...] = ()
    """The entries that list all that was written before, checksum files included."""
    problem: str | None = None
    """Why these would not stand alone."""
    written_ms: Mapping[int, int] = field(default_factory=dict)
    """When each of those batches wrote its last file, as far as the log says."""

    @property
    def taken(self) -> tuple[str, ...]:
        """The files to set aside, in order: the log first, so that no reader misses a file."""
        return (*self.entries, *self.data)

    def find_others(self, logs: log_files.Logs) -> str | None:
        """Why some of the batches must be another query's; None if all may be this one's."""
        last = logs.last_id
        if self.newest is not None and self.newest > last:
            beyond = base.format_batches(last + 1, self.newest)
            return f"{beyond} cannot be this query's, which has planned none after batch {last}"
        for id_, at_ms in self.written_ms.items():
            if id_ in logs.by_id and at_ms < logs.by_id[id_].offsets.timestamp_ms - _CLOCK_MS:
                return f"batch {id_} cannot be this query's: its files are older than its plan"
        return None


@dataclass(frozen=True)
class _Listed:
    """A data file, as an entry names it."""

    path: str
    """Its URL."""
    modificationTime: int = 0  # noqa: N815
    """In milliseconds; Spark's name."""


def read_sink_log(folder: Folder, batch: int, backup_id: str | None = None) -> SinkLog | None:
    """Find what to set aside so that batches from one on are written again; None without a log.

    Where Spark has cleaned up entries before the batch, the copies that a backup has of them count.
    """
    names = folder.names(LOG)
    ids = log_ids(names)
    copies = f"{quarantine_path(backup_id)}/{COPIES}" if backup_id else ""
    copied = log_ids(folder.names(copies)) if copies else {}
    if not ids and not copied:
        return None
    going = sorted((name for name, id_ in ids.items() if id_ >= batch), key=ids.__getitem__)
    standing, place = _standing(ids, batch), LOG
    if standing is None and (standing := _standing(copied, batch)) is not None:
        place = copies
    kept = [f"{place}/{name}" for name in standing or ()]
    texts = folder.read_all([*kept, *(f"{LOG}/{name}" for name in going)])
    before = [file.path for entry in kept for file in _listed(texts.get(entry, ""))]
    written: dict[str, tuple[int, int]] = {}
    for name in going:  # a file belongs to the first entry that names it
        for file in _listed(texts.get(f"{LOG}/{name}", "")):
            written.setdefault(file.path, (ids[name], file.modificationTime))
    paths = _require_inside(folder, written)
    stays = set(_find_inside(folder, before).values())
    mine = {path: written[uri] for uri, path in paths.items() if path not in stays}
    there = {path: folder.exists(path) for path in mine}
    return SinkLog(
        max(ids.values(), default=None),
        _with_sidecars(reversed(going), names),
        tuple(file for path in there if there[path] for file in _with_checksums(folder, path)),
        tuple(path for path in there if not there[path]),
        _with_sidecars(standing or (), names) if place == LOG else (),
        None if standing is not None else f"the entries before batch {batch} are not all there",
        {id_: at for id_, at in sorted(mine.values()) if at},
    )


def files_of_batch(
    folder: Folder, batch: int, times_ms: tuple[int, int], backup_id: str | None = None
) -> list[str] | None:
    """The data files that one run of a batch wrote, here or in a backup; None if no log lists them.

    A compacted entry also lists what came before it. Raises if files are gone, or if they are not
    from the time of that run: the sink skips a batch that another query has written.
    """
    if backup_id is None:
        here, later = (read_sink_log(folder, first) for first in (batch, batch + 1))
        if here is None or later is None or here.problem or later.problem:
            return None
        if here.newest is None or here.newest < batch:
            return None
        _require_all(folder, batch, set(here.missing) - set(later.missing))
        _require_time(folder, batch, here.written_ms.get(batch), times_ms)
        written = [path for path in here.data if path not in later.data]
        return [path for path in written if not path.endswith(".crc")]
    place = quarantine_path(backup_id, LOG)
    ids = log_ids(folder.names(place))
    listed = {
        id_: {file.path: file.modificationTime for file in _listed(folder.read(place, name) or "")}
        for name, id_ in ids.items()
    }
    if batch not in listed:
        return None
    before = {uri for id_, uris in listed.items() if id_ < batch for uri in uris}
    paths = _require_inside(folder, (uri for uri in listed[batch] if uri not in before))
    moved = {uri: quarantine_path(backup_id, path) for uri, path in paths.items()}
    mine = {uri: path for uri, path in moved.items() if folder.exists(path)}
    # what was written before the rewind has stayed where it was
    others = (path for uri, path in paths.items() if uri not in mine)
    _require_all(folder, batch, {path for path in others if not folder.exists(path)})
    _require_time(folder, batch, max((listed[batch][uri] for uri in mine), default=None), times_ms)
    return list(mine.values())


def _require_all(folder: Folder, batch: int, missing: Collection[str]) -> None:
    if missing:
        raise CheckpointError(f"files of batch {batch} are gone from {folder.url}")


def _require_time(
    folder: Folder, batch: int, written_ms: int | None, times_ms: tuple[int, int]
) -> None:
    start, end = times_ms
    if written_ms and not start - _CLOCK_MS <= written_ms <= end + _CLOCK_MS:
        raise CheckpointError(f"the files of batch {batch} in {folder.url} are of another run")


def empty_log(batch: int) -> list[str]:
    """The entries that a log without files needs before a batch, so that Spark can read it.

    Two compacted ones tell Spark how far apart they are, whatever its own setting is; from a single
    one it derives an interval that ends with that entry.

    >>> empty_log(22), empty_log(7)
    (['9.compact', '19.compact', '20', '21'], ['6.compact'])
    """
    whole = batch // _INTERVAL * _INTERVAL - 1
    if whole < _INTERVAL:
        return [f"{batch - 1}.compact"]
    plain = [str(id_) for id_ in range(whole + 1, batch)]
    return [f"{whole - _INTERVAL}.compact", f"{whole}.compact", *plain]


def log_ids(names: Iterable[str]) -> dict[str, int]:
    """The batch of each log entry, by name."""
    return {name: int(m[1]) for name in names if (m := _ENTRY.fullmatch(name))}


def quarantine_path(backup_id: str, path: str = "") -> str:
    """Where a file of the sink lies while it is set aside.

    >>> quarantine_path("b1", "_spark_metadata/7")
    '_ebbtide/b1/_spark_metadata/7'
    """
    return f"{QUARANTINE}/{backup_id}/{path}".rstrip("/")


def _standing(ids: dict[str, int], batch: int) -> list[str] | None:
    """The entries that list all that was written before a batch; None if they have gaps."""
    earlier = {id_: name for name, id_ in ids.items() if id_ < batch}
    whole = max((id_ for id_, name in earlier.items() if name.endswith(".compact")), default=None)
    wanted = range(0 if whole is None else whole, batch)
    if any(id_ not in earlier for id_ in wanted):
        return None
    return [earlier[id_] for id_ in wanted]


def _listed(text: str) -> list[_Listed]:
    """The data files that a log entry names."""
    version, *lines = text.rstrip("\n").split("\n")
    if version not in ("v1", ""):
        raise CheckpointError(f"A file sink's log begins with {version[:20]!r}, not v1.")
    try:
        entries = [parse_json(line) for line in lines if line]
        added = [entry for entry in entries if entry.get("action", "add") == "add"]
        return [decode(_Listed, each, ignore_unknown=True) for each in added]
    except INVALID:
        raise CheckpointError(
            "An entry of a file sink's log, _spark_metadata, is damaged.",
            "Put it back from a copy of the sink.",
        ) from None


def _require_inside(folder: Folder, uris: Iterable[str]) -> dict[str, str]:
    """The path of each data file in the sink's folder; refused if one is no data file of it."""
    uris = list(uris)
    paths = _find_inside(folder, uris)
    elsewhere = (uri for uri in uris if uri not in paths or _is_folder(folder, paths[uri]))
    if (uri := next(elsewhere, None)) is not None:
        raise CheckpointError(
            f"The log of the file sink {folder.url} names {uri}, which lies elsewhere.",
            "Name the folder that the query writes to with --sink-files.",
        )
    return paths


def _find_inside(folder: Folder, uris: Iterable[str]) -> dict[str, str]:
    """The path of each data file in the sink's folder, links followed; those elsewhere left out."""
    real: dict[str, str] = {}
    root = PurePosixPath("/", os.path.realpath(folder.root) if folder.local else folder.root)
    paths = {}
    for uri in uris:
        url = urlsplit(uri)
        if (url.scheme in ("", "file")) != folder.local:
            continue
        # the filesystem's name for an object begins with its bucket
        bucket = "" if folder.root.startswith("/") else f"/{url.netloc.partition('@')[0]}"
        path_in_url = unquote(url.path)
        if "\0" in path_in_url:  # no file has such a name
            continue
        directory, name = posixpath.split(bucket + path_in_url)
        if folder.local:
            directory = real.setdefault(directory, os.path.realpath(directory))
        path = PurePosixPath(directory, name)
        if path.is_relative_to(root) and ".." not in path.parts:
            inside = path.relative_to(root)
            if inside.parts and inside.parts[0] not in (LOG, QUARANTINE):
                paths[uri] = str(inside)
    return paths


def _is_folder(folder: Folder, path: str) -> bool:
    return folder.local and os.path.isdir(folder.path(path))  # noqa: PTH112


def _with_sidecars(entries: Iterable[str], names: Collection[str]) -> tuple[str, ...]:
    files = (file for name in entries for file in (name, *layout.sidecars(name)))
    return tuple(f"{LOG}/{file}" for file in files if file in names)


def _with_checksums(folder: Folder, path: str) -> list[str]:
    directory, _, name = path.rpartition("/")
    beside = [f"{directory}/{other}" if directory else other for other in layout.sidecars(name)]
    return [path, *(other for other in beside if folder.local and folder.exists(other))]
