"""Follow the files that loading one version of a state store takes."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterable

from ebbtide.checkpoint.changelog import read_lineage
from ebbtide.checkpoint.layout import StateFile
from ebbtide.checkpoint.state_files import Chain, Store
from ebbtide.storage import Folder, Tree

UNREADABLE = (zipfile.BadZipFile, zlib.error, OSError, ValueError, KeyError, IndexError)
"""What reading a damaged snapshot can raise."""


def prove(
    folder: Folder, tree: Tree, store: Store, version: int, ids: frozenset[str] | None
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
        lineage = _by_lineage(folder, store, version, ids)
        if isinstance(lineage, str):
            return Chain(problem=lineage)
        files = lineage
    paths = tuple(store.path(file.name) for file in files)
    if not files or not files[0].name.endswith(".zip"):
        return Chain(paths)
    try:
        shared = listed_files(folder, store, files[0].name)
    except UNREADABLE as error:
        return Chain(paths, problem=f"{paths[0]} is damaged: {error}")
    return Chain(paths, shared, problem=_check_shared(folder, tree, shared))


def _by_lineage(
    folder: Folder, store: Store, version: int, ids: frozenset[str]
) -> list[StateFile] | str:
    """The chain of a version in format version 2, or why there is none."""
    versions = store.versions
    whole = [f for f in versions.snapshots.get(version, ()) if f.unique_id in ids]
    if whole:
        return whole[:1]
    change = next((f for f in versions.changes.get(version, ()) if f.unique_id in ids), None)
    if change is None:
        if versions.purged(version):
            return versions.why_not(version) or ""
        return f"version {version} with the id that commits/{version - 1} names is missing"
    try:
        with folder.open(store.path(change.name)) as stream:
            lineage = read_lineage(stream)
    except (ValueError, FileNotFoundError) as error:
        return f"{store.path(change.name)} is damaged: {error}"
    lineage[version] = change.unique_id or ""
    chain = [change]
    for older in range(version - 1, 0, -1):
        wanted = lineage.get(older)
        if whole := [f for f in versions.snapshots.get(older, ()) if f.unique_id == wanted]:
            return [whole[0], *chain]
        changes = [f for f in versions.changes.get(older, ()) if f.unique_id == wanted]
        if not changes:
            return f"version {older} with the id that {change.name} names is missing"
        chain.insert(0, changes[0])
    return chain


def listed_files(folder: Folder, store: Store, zip_name: str) -> tuple[tuple[str, int], ...]:
    """The shared files, with sizes, that a RocksDB snapshot lists."""
    with folder.open(store.path(zip_name)) as stream, zipfile.ZipFile(stream) as archive:
        text = archive.read("metadata").decode("utf-8")
    listed = json.loads(text.split("\n", 1)[1])
    return tuple(
        (store.path(f"{place}/{file[name]}"), int(file["sizeBytes"]))
        for place, kind, name in (
            ("SSTs", "sstFiles", "dfsSstFileName"),
            ("logs", "logFiles", "dfsLogFileName"),
        )
        for file in listed.get(kind) or ()
    )


def _check_shared(folder: Folder, tree: Tree, shared: Iterable[tuple[str, int]]) -> str | None:
    for path, size in shared:
        directory, _, name = path.rpartition("/")
        listing = tree.get(directory)
        if listing is None or name not in listing.members:
            return f"{path} is missing"
        stat = folder.stat(path)
        if stat is None or stat.size != size:
            return f"{path} has {stat.size if stat else 0} bytes, not {size}"
    return None
