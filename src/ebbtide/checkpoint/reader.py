"""Read a checkpoint: its logs, and its state by the names of its files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import repeat, zip_longest

from ebbtide.checkpoint.chain import listed_files, prove
from ebbtide.checkpoint.journal import Backup, Journal
from ebbtide.checkpoint.layout import kind_of, sidecars, unknown_files
from ebbtide.checkpoint.log_files import (
    Batch,
    Logs,
    Positions,
    kafka_positions,
    parse_initial_offset,
    read_logs,
)
from ebbtide.checkpoint.real_time import find_real_time
from ebbtide.checkpoint.state_files import Chain, Operator, Store, find_operators, has_no_key
from ebbtide.errors import CheckpointError
from ebbtide.parsing import MAX_LOG_BYTES, parse_id
from ebbtide.storage import Folder, Tree, open_folder


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as it lies there: logs, state, what we do not know."""

    folder: Folder
    tree: Tree
    logs: Logs
    operators: tuple[Operator, ...]
    first_offsets: Positions
    """Where its Kafka sources began, as Spark noted it at the first start."""
    unknown: tuple[str, ...] = ()
    """Files that no Spark from 3.5 to 4.3 writes."""
    interrupted: Journal | None = None
    """A rewind or an undo that was not finished."""

    @property
    def location(self) -> str:
        """Its path or URL."""
        return self.folder.url

    @cached_property
    def stores(self) -> tuple[Store, ...]:
        """Every store of every operator."""
        return tuple(store for operator in self.operators for store in operator.stores)

    @property
    def query_ids(self) -> frozenset[str]:
        """All ids that its query has had."""
        return Backup.query_ids(self.folder, self.logs.query_id)

    def find_real_time(self) -> int | None:
        """The latest batch that was written in real-time mode, of the last few; None if none."""
        return find_real_time(self.folder, self.logs)

    def before(self, batch: int) -> Batch | None:
        """The batch that one follows; only a query without state may leave ids out."""
        return self.logs.by_id.get(batch - 1) if self.operators else self.logs.before(batch)

    def start(self, batch: int) -> Positions:
        """From where a batch reads Kafka."""
        before = self.before(batch)
        return {**self.first_offsets, **(before.positions if before else {})}

    def expected_stores(self, batch: int) -> tuple[Store, ...]:
        """The stores that a batch reads: not the partitions that a later repartition added."""
        counts = {each.id: self.partition_count(each, batch) for each in self.operators}
        return tuple(store for store in self.stores if store.partition < counts[store.operator])

    def partition_count(self, operator: Operator, batch: int) -> int:
        """How many partitions an operator's state has when a batch starts.

        In format version 2 the commit log says so. An operator without a key, such as a limit, has
        one, whatever is configured.
        """
        before = self.logs.before(batch) or self.logs.by_id.get(batch)
        ids = before.commit.state_ids if before and before.commit else None
        if ids and ids.get(operator.id):
            return len(ids[operator.id])
        if operator.partition_ids == (0,) and operator.keyless is not False:
            return 1
        return self._configured_partitions(operator, batch)

    def gone_operators(self, batch: int) -> list[int]:
        """Format version 2: the operators that the commit log names, and that have no state."""
        before = self.logs.by_id.get(batch - 1)
        named = before.commit.state_ids if before and before.commit else None
        return sorted({*(named or ())} - {each.id for each in self.operators})

    def may_lack_partitions(self, operator: Operator, batch: int) -> bool:
        """Whether an operator has fewer partitions than configured, and nothing says why."""
        count = self.partition_count(operator, batch)
        unexplained = operator.keyless is None and self.state_ids(batch, operator.stores[0]) is None
        return unexplained and count < self._configured_partitions(operator, batch)

    def _configured_partitions(self, operator: Operator, batch: int) -> int:
        before = self.logs.before(batch) or self.logs.by_id.get(batch)
        configured = before.offsets.partitions if before else None
        return configured or operator.partitions or max(operator.partition_ids, default=-1) + 1

    def state_ids(self, batch: int, store: Store) -> tuple[str, ...] | None:
        """Format version 2: the unique ids of the version that a batch reads."""
        if (ids := self._state_ids(batch, store.operator)) is None:
            return None
        return ids[store.partition] if store.partition < len(ids) else ()

    def _state_ids(self, batch: int, operator: int) -> Sequence[tuple[str, ...]] | None:
        """By partition of an operator."""
        before = self.logs.by_id.get(batch - 1)
        if before is None or before.commit is None or before.commit.state_ids is None:
            return None
        return before.commit.state_ids.get(operator, ())

    def why_not(self, batch: int) -> str | None:
        """Why a batch cannot be run again, as far as logs and names tell; None if it can."""
        if batch not in self.logs.by_id:
            return f"offsets/{batch} is gone"
        if batch == 0:
            return None
        return self.why_no_start(batch) or self.why_no_partition(batch) or self._why_no_state(batch)

    def why_no_start(self, batch: int) -> str | None:
        """Why a batch cannot follow the one before it."""
        before = self.before(batch)
        if before is None:
            return f"offsets/{batch - 1} is gone" if batch > 0 else None
        return None if before.committed else f"batch {before.id} is not committed"

    def why_no_partition(self, batch: int) -> str | None:
        """Which operator or partition of the state that a batch starts from is not there."""
        if gone := self.gone_operators(batch):
            return f"operator {gone[0]} has no state: state/{gone[0]} is gone"
        for operator in self.operators if batch > 0 else ():
            missing = operator.first_missing(self.partition_count(operator, batch))
            if missing is not None:
                return f"operator {operator.id} has no partition {missing}"
        return None

    def why_no_repeat(self, batch: int) -> str | None:
        """Why Spark cannot run a batch again as it was planned, only plan it again."""
        entry, before = self.logs.by_id[batch].offsets, self.before(batch)
        if entry.control is not None:
            return f"batch {batch} only changed the number of partitions"
        if before is None:
            return None
        # Spark 4.2 compares the two counts if either entry is of format 2, and dies without one
        entries = {before.id: before.offsets, batch: entry}
        lacking = [id_ for id_, one in entries.items() if one.partitions is None]
        if lacking and any(one.version == "v2" for one in entries.values()):
            return (
                f"offsets/{lacking[0]} does not name the number of partitions, so Spark 4.2 cannot "
                f"repeat batch {batch}"
            )
        return None

    def require_finished(self) -> None:
        """Refuse while a rewind or an undo is not finished."""
        if self.interrupted is not None:
            raise self.interrupted.interrupted(self.location)
        if self.logs.barriers:
            raise CheckpointError(
                f"offsets/{self.logs.barriers[0]} of {self.location} is the barrier of a rewind "
                "whose journal is gone.",
                "Put .ebbtide/change.json back, or restore the checkpoint from a copy.",
            )

    def _why_no_state(self, batch: int) -> str | None:
        for operator in self.operators:
            count = self.partition_count(operator, batch)
            if self._state_ids(batch, operator.id) is None:
                for store in operator.distinct_stores:
                    problem = store.versions.why_not(batch) if store.partition < count else None
                    if problem is not None:
                        return f"{store}: {problem}"
                continue
            for store in self._lacking.get(batch, ()):
                if store.operator == operator.id and store.partition < count:
                    missing = f"version {batch} of this timeline is missing"
                    return f"{store}: {store.versions.why_not(batch) or missing}"
        return None

    @cached_property
    def _lacking(self) -> Mapping[int, Sequence[Store]]:
        """Format version 2, by batch: the stores without the version that it reads.

        All versions of a store at once: there are as many as the state has files.
        """
        lacking: dict[int, list[Store]] = {}
        for operator in self.operators:
            following = (batch.id + 1 for batch in self.logs.batches)
            named = ((batch, self._state_ids(batch, operator.id)) for batch in following)
            ids = {batch: each for batch, each in named if each is not None}
            by_partition = list(zip_longest(*ids.values(), fillvalue=()))
            for store in operator.stores if ids else ():
                at = store.partition
                of_store = by_partition[at] if at < len(by_partition) else repeat(())
                for batch in store.versions.lacking(dict(zip(ids, of_store, strict=False))):
                    lacking.setdefault(batch, []).append(store)
        return lacking

    @cached_property
    def restorable(self) -> Mapping[int, str | None]:
        """By batch: None if it can be run again, else why not."""
        return {batch.id: self.why_not(batch.id) for batch in self.logs.batches}

    @cached_property
    def chains(self) -> Callable[[int], Mapping[Store, Chain]]:
        """For each store that a batch reads, what loading its version takes, file by file."""

        @lru_cache(maxsize=1)  # a plan needs those of one batch several times
        def follow(batch: int) -> Mapping[Store, Chain]:
            stores = self.expected_stores(batch) if batch > 0 else ()
            chains = self.folder.map(lambda store: self.chain(store, batch), stores)
            return dict(zip(stores, chains, strict=True))

        return follow

    def files_needed(self, batch: int) -> list[str]:
        """The files that loading the state takes that a batch starts from, shared ones last."""
        chains = self.chains(batch).values()
        files = [path for chain in chains for path in chain.files]
        return files + [path for chain in chains for path, _ in chain.shared]

    def chain(self, store: Store, batch: int) -> Chain:
        """What loading the version of a store takes that a batch reads."""
        return prove(self.folder, self.tree, store, batch, self.state_ids(batch, store))

    def shared_files(self, store: Store, name: str) -> list[str]:
        """The shared files that a RocksDB snapshot lists; none if it cannot be read."""
        try:
            return [path for path, _ in listed_files(self.folder, self.tree, store, name)]
        except ValueError:
            return []

    def has(self, path: str) -> bool:
        """Whether a file was there when the checkpoint was read."""
        directory, _, name = path.rpartition("/")
        return directory in self.tree and self.tree[directory].has(name)

    def with_sidecars(self, path: str) -> list[str]:
        """A file and those of its checksum files that are there."""
        directory, _, name = path.rpartition("/")
        inside = f"{directory}/" if directory else ""
        return [path, *(p for other in sidecars(name) if self.has(p := inside + other))]

    @cached_property
    def state_bytes(self) -> Mapping[int, int]:
        """By operator: how much its state takes after the last committed batch."""
        latest = self.logs.latest_committed
        sizes = dict.fromkeys((operator.id for operator in self.operators), 0)
        for store, chain in (self.chains(latest.id + 1) if latest else {}).items():
            sizes[store.operator] += sum(self.size(path) for path in chain.files)
            sizes[store.operator] += sum(size for _, size in chain.shared)
        return sizes

    def size(self, path: str) -> int:
        """A file's size, from the listing where it came with it; raises if it has gone since."""
        if not self.has(path):
            raise FileNotFoundError(path)
        directory, _, name = path.rpartition("/")
        listing = self.tree[directory]
        if listing.sizes is not None:
            return listing.size[name]
        stat = self.folder.stat(path)
        return stat.size if stat else 0

    @property
    def oldest_restorable(self) -> int | None:
        """The first batch that can be run again."""
        return next((id_ for id_, reason in self.restorable.items() if reason is None), None)


def read_checkpoint(location: str) -> Checkpoint:
    r"""Read the checkpoint at a path or fsspec URL: logs, and the state by the names of its files.

    >>> import fsspec
    >>> memory = fsspec.filesystem("memory")
    >>> memory.pipe_file("/doc/metadata", b'{"id":"7"}')
    >>> entry = b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n{"t":{"0":3}}'
    >>> memory.pipe_file("/doc/offsets/0", entry)
    >>> read_checkpoint("memory://doc").oldest_restorable
    0
    """
    folder = open_folder(location)
    logs = read_logs(folder)
    tree = folder.scan()
    return Checkpoint(
        folder,
        tree,
        logs,
        find_operators(tree, _operator_metadata(folder, tree), _keyless(folder, tree)),
        _first_offsets(folder, tree),
        tuple(_find_unknown(tree)),
        Journal.read(folder),
    )


def _find_unknown(tree: Tree) -> Iterator[str]:
    """The files that no Spark writes; many stores hold the same names, which are judged once."""
    judged: dict[tuple[str, int], list[str]] = {}
    for directory, listing in tree.items():
        key = (kind_of(directory), id(listing.names))
        if key not in judged:
            judged[key] = unknown_files(directory, listing.names)
        odd = (f"{name} ({why})" for name, why in sorted(listing.odd.items()))
        for name in (*judged[key], *odd):
            yield f"{directory}/{name}" if directory else name


def _ids(names: Iterable[str]) -> list[int]:
    return [id_ for name in names if (id_ := parse_id(name)) is not None]


def _operator_metadata(folder: Folder, tree: Tree) -> dict[int, str]:
    """Spark's own text about each operator: one file, or the newest of a series by batch."""
    paths = {}
    for directory, listing in tree.items():
        parts = directory.split("/")
        if len(parts) < 3 or parts[0] != "state" or parts[2] != "_metadata":
            continue
        if (id_ := parse_id(parts[1])) is None:
            continue
        if len(parts) == 3 and listing.has("metadata"):
            paths[f"{directory}/metadata"] = id_
        elif len(parts) == 4 and (series := _ids(listing.names)):
            paths[f"{directory}/{max(series)}"] = id_
    texts = folder.read_all(paths, MAX_LOG_BYTES)
    return {paths[path]: text for path, text in texts.items()}


def _keyless(folder: Folder, tree: Tree) -> dict[int, bool]:
    """Operators with one partition only: whether the schema of their state has an empty key."""
    paths = {}
    for directory, listing in tree.items():
        parts = directory.split("/")
        alone = parts[0] == "state" and parts[2:] == ["0", "_metadata"]
        alone = alone and f"state/{parts[1]}/1" not in tree
        if alone and listing.has("schema") and (id_ := parse_id(parts[1])) is not None:
            paths[f"{directory}/schema"] = id_
    texts = folder.read_all(paths, MAX_LOG_BYTES)
    return {paths[path]: has_no_key(text) for path, text in texts.items()}


def _first_offsets(folder: Folder, tree: Tree) -> Positions:
    """Where Kafka sources began, as their files `sources/<i>/0` say."""
    paths = [
        f"{directory}/0"
        for directory, listing in tree.items()
        if directory.startswith("sources/") and listing.has("0")
    ]
    texts = folder.read_all(paths).values()
    return kafka_positions(map(parse_initial_offset, texts))
