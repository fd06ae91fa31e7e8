"""The stateful operators of a checkpoint, their stores, and the versions that each store holds.

Spark loads version V of a store from the newest snapshot up to V and every change after it. In
format version 2 several files may hold the same version; the commit log names the right one by its
unique id, and each change names its ancestors.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from json import JSONDecoder

from ebbtide.checkpoint.layout import (
    SHARED,
    SNAPSHOT,
    SUFFIXES,
    StateFile,
    list_versions,
    parse_state_files,
    state_names,
)
from ebbtide.notes import INVALID, decode
from ebbtide.parsing import parse_id, parse_json
from ebbtide.storage import Tree

DEFAULT_STORE = "default"


@dataclass(frozen=True, eq=False)
class Versions:
    """The versions that a store's folder holds, by the names in it; taken apart when needed."""

    names: tuple[str, ...]

    @cached_property
    def all(self) -> tuple[int, ...]:
        """Every version with a file, ascending."""
        return tuple(sorted(list_versions(self.names)))

    @cached_property
    def _files(self) -> Sequence[StateFile]:
        return parse_state_files(self.names)

    @cached_property
    def snapshots(self) -> Mapping[int, Sequence[StateFile]]:
        """The snapshots of each version that has one."""
        return _by_version(file for file in self._files if file.kind == SNAPSHOT)

    @cached_property
    def changes(self) -> Mapping[int, Sequence[StateFile]]:
        """The changes that led to each version that has one."""
        return _by_version(file for file in self._files if file.kind != SNAPSHOT)

    @cached_property
    def first_loadable(self) -> Mapping[int, int]:
        """By version: where its chain begins (0: from nothing); not those that do not load."""
        first: dict[int, int] = {}
        for version in self.all:
            if version in self.snapshots:
                first[version] = version
            elif version == 1 or version - 1 in first:
                first[version] = first.get(version - 1, 0)
        return first

    @cached_property
    def _members(self) -> frozenset[str]:
        return state_names(self.names)

    def find(self, kind: str, version: int, ids: Iterable[str]) -> StateFile | None:
        """A snapshot or a change of a version with one of these unique ids, the first by name."""
        names = [(f"{version}_{id_}.{suffix}", id_) for id_ in ids for suffix in SUFFIXES[kind]]
        found = ((name, id_) for name, id_ in sorted(names) if name in self._members)
        return next((StateFile(version, id_, kind, name) for name, id_ in found), None)

    def lacking(self, ids: Mapping[int, Sequence[str]]) -> set[int]:
        """Format version 2: the versions of which no file has one of these unique ids.

        >>> versions = read_versions(("1_a.zip", "2_a.changelog"))
        >>> versions.lacking({1: ["b", "a"], 2: ["b"], 3: []})
        {2, 3}
        """
        left = dict(ids)
        for suffix in chain(*SUFFIXES.values()):
            if all(left.values()):
                named = [f"{v}_{id_}.{suffix}" for v, each in left.items() for id_ in each]
                if self._members.issuperset(named):
                    return set()
            left = {
                v: each
                for v, each in left.items()
                if self._members.isdisjoint([f"{v}_{id_}.{suffix}" for id_ in each])
            }
        return set(left)

    def files_above(self, version: int) -> list[StateFile]:
        """The files of every later version."""
        return [
            file
            for later in self.all[bisect_right(self.all, version) :]
            for file in (*self.snapshots.get(later, ()), *self.changes.get(later, ()))
        ]

    def why_not(self, version: int) -> str | None:
        """Why a version does not load, as far as names tell; None if it does."""
        if version == 0 or version in self.first_loadable:
            return None
        if not self.all:
            return "no version of the state is there"
        if self.purged(version):
            return "purged: the state is kept from a later batch on"
        if version not in self.snapshots and version not in self.changes:
            return f"version {version} is missing"
        whole, gaps = self._breaks
        older = bisect_right(whole, version)
        start = whole[older - 1] if older else 0
        missing = gaps[bisect_left(gaps, start + 1)] if start + 1 in self.changes else start + 1
        return f"the change of version {missing} is missing"

    @cached_property
    def _breaks(self) -> tuple[list[int], list[int]]:
        """The versions with a snapshot, and those whose change is missing after a change."""
        gaps = (version + 1 for version in sorted(self.changes))
        return sorted(self.snapshots), [gap for gap in gaps if gap not in self.changes]

    def purged(self, version: int) -> bool:
        """Whether Spark cleaned the version up: all that is left begins, whole, after it."""
        first = self.all[0] if self.all else 0
        return version < first and (first in self.snapshots or first == 1)


def read_versions(names: tuple[str, ...]) -> Versions:
    """The versions in a folder with these names.

    >>> versions = read_versions(("1.delta", "2.delta", "2.snapshot", "3.delta", "5.delta"))
    >>> dict(versions.first_loadable)
    {1: 0, 2: 2, 3: 2}
    """
    # no name of a state file sorts before a digit, and half of them are checksum files, which do
    return Versions(names[bisect_left(names, "0") :])


def _by_version(files: Iterable[StateFile]) -> Mapping[int, Sequence[StateFile]]:
    by_version: dict[int, list[StateFile]] = {}
    for file in files:
        by_version.setdefault(file.version, []).append(file)
    return by_version


@dataclass(frozen=True, eq=False)
class Store:
    """One store of one partition of one stateful operator."""

    operator: int
    partition: int
    name: str
    directory: str
    versions: Versions

    def __str__(self) -> str:
        name = "" if self.name == DEFAULT_STORE else f" store {self.name}"
        return f"operator {self.operator} partition {self.partition}{name}"

    def path(self, name: str) -> str:
        """A file of the store, relative to the checkpoint."""
        return f"{self.directory}/{name}"


@dataclass(frozen=True)
class Chain:
    """What loading one version of one store takes, or why it does not load."""

    files: tuple[str, ...] = ()
    """The snapshot, then the changes, relative to the checkpoint."""
    shared: tuple[tuple[str, int], ...] = ()
    """The files that several versions share, with their sizes, that the snapshot lists."""
    problem: str | None = None


Chains = Mapping[Store, Chain]


@dataclass(frozen=True, eq=False)
class Operator:
    """One stateful operator: its stores, and what Spark noted about it."""

    id: int
    stores: tuple[Store, ...]
    name: str | None = None
    """As Spark's own metadata names it, from 4.0 on."""
    partitions: int | None = None
    """As Spark's own metadata says: as configured, also where an operator has only one."""
    keyless: bool | None = None
    """Whether its state has no key, so that it has one partition; None if that is not known."""

    @cached_property
    def partition_ids(self) -> tuple[int, ...]:
        """The partitions that have a folder."""
        return tuple(sorted({store.partition for store in self.stores}))

    def first_missing(self, count: int) -> int | None:
        """The first of `count` partitions that has no folder; None if all have one."""
        present = self.partition_ids
        first = next((i for i, id_ in enumerate(present) if i != id_), len(present))
        return first if first < count else None

    def count_missing(self, count: int) -> int:
        """How many of `count` partitions have no folder."""
        return count - bisect_left(self.partition_ids, count)

    @cached_property
    def distinct_stores(self) -> tuple[Store, ...]:
        """The first store of each kind of listing: many partitions hold the same names."""
        return tuple({id(store.versions): store for store in reversed(self.stores)}.values())


def find_operators(
    tree: Tree, metadata: Mapping[int, str], keyless: Mapping[int, bool]
) -> tuple[Operator, ...]:
    """The stateful operators of a checkpoint; `metadata` is Spark's own text about each."""
    stores: dict[int, list[Store]] = {}
    read: dict[int, Versions] = {}  # stores with the same listing share it
    for directory, listing in tree.items():
        top, *parts = directory.split("/")
        if top != "state" or not parts or (id_ := parse_id(parts[0])) is None:
            continue
        of_operator = stores.setdefault(id_, [])
        if len(parts) not in (2, 3) or (partition := parse_id(parts[1])) is None:
            continue
        name = parts[2] if len(parts) == 3 else DEFAULT_STORE
        if name not in SHARED and not name.startswith("_"):
            if (versions := read.get(id(listing.names))) is None:
                versions = read[id(listing.names)] = read_versions(listing.names)
            of_operator.append(Store(id_, partition, name, directory, versions))
    return tuple(
        Operator(
            id_, _sort_stores(found), *_parse_metadata(metadata.get(id_)), keyless=keyless.get(id_)
        )
        for id_, found in sorted(stores.items())
    )


def _sort_stores(stores: list[Store]) -> tuple[Store, ...]:
    """In order, without the folders that only hold the named stores of a partition."""
    named = {store.partition for store in stores if store.name != DEFAULT_STORE}
    real = (
        s for s in stores if s.name != DEFAULT_STORE or s.partition not in named or s.versions.all
    )
    return tuple(sorted(real, key=lambda store: (store.partition, store.name)))


def _parse_metadata(text: str | None) -> tuple[str | None, int | None]:
    """An operator's name and its number of partitions, where Spark's own text says so."""
    try:
        noted = parse_json((text or "").split("\n", 1)[1])
        count = decode(int, noted["stateStoreInfo"][0]["numPartitions"])
        return decode(str, noted["operatorInfo"]["operatorName"]), count
    except (*INVALID, IndexError):
        return None, None


def has_no_key(schema: str) -> bool:
    r"""Whether the schema file of a store, the key's first, shows that its state has no key.

    An aggregation without a key has an empty one, and a limit one of no type.

    >>> has_no_key('\0v2\0{"type":"struct","fields":[]}{"type":"struct"}')
    True
    >>> has_no_key('{"type":"struct","fields":[{"name":"key","type":"string"}]}')
    False
    """
    try:
        key, _ = JSONDecoder().raw_decode(schema, schema.index('{"type":"struct"'))
        types = [field["type"] for field in key["fields"]]
    except (*INVALID, RecursionError):
        return False
    return all(type_ == "void" for type_ in types)
