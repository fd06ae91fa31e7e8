"""Follow the files that loading one version of a state store takes."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Sequence
from typing import BinaryIO

from ebbtide.checkpoint.changelog import read_lineage
from ebbtide.checkpoint.layout import DELTA, SNAPSHOT, StateFile
from ebbtide.checkpoint.state_files import Chain, Store
from ebbtide.errors import EbbtideError
from ebbtide.notes import Count, Name, decode
from ebbtide.parsing import MAX_LOG_BYTES, parse_json
from ebbtide.storage import Folder, Tree

_SHARED = (("SSTs", "sstFiles", "dfsSstFileName"), ("logs", "logFiles", "dfsLogFileName"))
"""The folders with shared files, and how the metadata of a snapshot list them."""
_SMALL = 1 << 20
"""Up to this size a remote file is read whole: most snapshots and changes are smaller."""


def prove(
    folder: Folder, tree: Tree, store: Store, version: int, ids: Sequence[str] | None
) -> Chain:
    """Follow the chain of one version of a store, file by file.

    `ids` are the unique ids that the commit log names for the version, in format version 2.
    """
    if version == 0:
        return Chain()
    if ids is None:
        if (problem := store.versions.why_not(version)) is not None:
            return Chain(problem=problem)
        first = store.versions.first_loadable[version]
        files = [*store.versions.snapshots.get(first, ())[:1]]
        files += [store.versions.changes[v][0] for v in range(first + 1, version + 1)]
    else:
        lineage = _by_lineage(folder, tree, store, version, ids)
        if isinstance(lineage, str):
            return Chain(problem=lineage)
        files = lineage
    paths = tuple(store.path(file.name) for file in files)
    if not files or not files[0].name.endswith(".zip"):
        return Chain(paths)
    try:
        shared = listed_files(folder, tree, store, files[0].name)
    except ValueError as error:
        return Chain(paths, problem=f"{paths[0]} is damaged: {error}")
    return Chain(paths, shared, problem=_check_shared(folder, tree, shared))


def _by_lineage(
    folder: Folder, tree: Tree, store: Store, version: int, ids: Sequence[str]
) -> list[StateFile] | str:
    """The chain of a version in format version 2, or why there is none."""
    versions = store.versions
    if (whole := versions.find(SNAPSHOT, version, ids)) is not None:
        return [whole]
    change = versions.find(DELTA, version, ids)
    if change is None:
        if versions.purged(version):
            return versions.why_not(version) or ""
        return f"version {version} with the id that commits/{version - 1} names is missing"
    try:
        with _open(folder, tree, store.path(change.name)) as stream:
            lineage = read_lineage(stream)
    except (ValueError, FileNotFoundError, EbbtideError) as error:
        return f"{store.path(change.name)} is damaged: {error}"
    lineage[version] = change.unique_id or ""
    chain = [change]
    for older in range(version - 1, 0, -1):
        wanted = [lineage[older]] if older in lineage else []
        if (whole := versions.find(SNAPSHOT, older, wanted)) is not None:
            return [whole, *reversed(chain)]
        if (before := versions.find(DELTA, older, wanted)) is None:
            return f"version {older} with the id that {change.name} names is missing"
        chain.append(before)
    return chain[::-1]


def _open(folder: Folder, tree: Tree, path: str) -> BinaryIO:
    """A file to read from; a remote one that is small comes by one request, not by several."""
    directory, _, name = path.rpartition("/")
    if tree[directory].size.get(name, _SMALL) >= _SMALL:
        return folder.open(path)
    if (content := folder.read_bytes(path)) is None:
        raise FileNotFoundError(path)
    return io.BytesIO(content)


def listed_files(
    folder: Folder, tree: Tree, store: Store, zip_name: str
) -> tuple[tuple[str, int], ...]:
    """The shared files, with sizes, that a RocksDB snapshot lists; a ValueError if it is bad."""
    try:
        with (
            _open(folder, tree, store.path(zip_name)) as stream,
            zipfile.ZipFile(stream) as archive,
            archive.open("metadata") as metadata,
        ):
            text = metadata.read(MAX_LOG_BYTES + 1)
        if len(text) > MAX_LOG_BYTES:
            raise ValueError(f"its metadata have more than {MAX_LOG_BYTES:,} bytes")
        listed = parse_json(text.split(b"\n", 1)[1])
        return tuple(
            (store.path(f"{place}/{decode(Name, file[name])}"), decode(Count, file["sizeBytes"]))
            for place, kind, name in _SHARED
            for file in listed.get(kind) or ()
        )
    except Exception as error:  # a zip file can be damaged in more ways than zipfile documents
        raise ValueError(str(error) or type(error).__name__) from None


def _check_shared(folder: Folder, tree: Tree, shared: Iterable[tuple[str, int]]) -> str | None:
    for path, size in shared:
        directory, _, name = path.rpartition("/")
        listing = tree.get(directory)
        if listing is None or not listing.has(name):
            return f"{path} is missing"
        if (found := listing.size.get(name)) is None:  # a disk is asked for each
            stat = folder.stat(path)
            found = stat.size if stat else 0
        if found != size:
            return f"{path} has {found} bytes, not {size}"
    return None
