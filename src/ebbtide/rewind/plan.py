"""A checkpoint and a target in, an immutable plan out that says all that would change.

Steps, none with a side effect: **1** read the checkpoint; **2** resolve the target to the first
batch B; **3** list what goes; **4** check; **5** fingerprint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from ebbtide.checkpoint.chain import Chain
from ebbtide.checkpoint.layout import is_temporary, main_file, names_above
from ebbtide.checkpoint.reader import Checkpoint, read_checkpoint
from ebbtide.checkpoint.state import Store, with_sidecars
from ebbtide.connectors import SinkPlace, SinkPlan, check_sources, connector_of_offset, plan_sink
from ebbtide.connectors.kafka import KafkaConnection
from ebbtide.errors import CheckpointError, UsageError
from ebbtide.history.event_times import find_first_batch
from ebbtide.rewind import checks
from ebbtide.rewind.checks import Check, Replayed
from ebbtide.rewind.target import Target, resolve

EXACT, REPLAN = "exact", "replan"
OWNER = "pipeline.json"
"""The runner's note: whose checkpoint it is and where its output goes."""
_FORMAT = 1


@dataclass(frozen=True)
class StoreNeed:
    """The version of one store that the first batch starts from, and the files it loads."""

    operator: int
    partition: int
    store: str
    version: int
    chain: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """All that a rewind would change; nothing has changed yet."""

    checkpoint: str
    query_id: str
    target: str
    resolved: str
    """How the target led to the first batch."""
    first_batch: int
    mode: str
    last_batch: int | None
    """The last committed batch."""
    last_planned: int
    sources: tuple[Mapping[str, Any], ...]
    """Each source's offset now and after the rewind, as Spark writes it."""
    partitions: tuple[Replayed, ...]
    removals: tuple[str, ...]
    """Paths in the checkpoint, in the order in which they go."""
    bytes: Mapping[str, int]
    """The size of each."""
    state: tuple[StoreNeed, ...]
    checks: tuple[Check, ...]
    sink: SinkPlan | None
    fingerprint: str

    @property
    def batches(self) -> int:
        """How many batches run again."""
        return self.last_planned - self.first_batch + 1

    @property
    def records(self) -> int:
        """How many Kafka records are read again."""
        return sum(part.records for part in self.partitions)

    @property
    def refusals(self) -> tuple[Check, ...]:
        """The checks that stand in the way."""
        return tuple(check for check in self.checks if check.verdict == checks.REFUSE)

    def require_allowed(self) -> None:
        """Refuse, with the first reason, if a check stands in the way."""
        if self.refusals:
            first = self.refusals[0]
            raise CheckpointError(
                f"{self.checkpoint} cannot be rewound to batch {self.first_batch}: {first.detail}.",
                first.next,
            )

    def to_json(self) -> dict[str, Any]:
        """As plain values; `from_json` reads them back."""
        sources = [dict(source) for source in self.sources]
        for source in sources:
            source["partitions"] = [
                {**asdict(part), "records": part.records}
                for part in self.partitions
                if part.topic in source["topics"]
            ]
        plain = asdict(replace(self, sources=(), partitions=(), sink=None))
        return {
            **plain,
            "format": _FORMAT,
            "sources": sources,
            "sink": self.sink and self.sink.to_json(),
            "batches": self.batches,
            "records": self.records,
        }

    @classmethod
    def from_json(cls, found: Any) -> Plan:
        """Read a saved plan."""
        try:
            kinds = {"checkpoint": str, "first_batch": int, "mode": str, "fingerprint": str}
            if found["format"] != _FORMAT or not all(
                isinstance(found[name], kind) for name, kind in kinds.items()
            ):
                raise ValueError(found["format"])
            partitions = []
            for source in (sources := [dict(source) for source in found["sources"]]):
                for part in source.pop("partitions"):
                    del part["records"]
                    partitions.append(Replayed(**part))
            fields = {**found, "sources": tuple(sources), "partitions": tuple(partitions)}
            for name in ("format", "batches", "records"):
                del fields[name]
            fields["removals"] = tuple(found["removals"])
            fields["state"] = tuple(
                StoreNeed(**need | {"chain": tuple(need["chain"])}) for need in found["state"]
            )
            fields["sink"] = found["sink"] and SinkPlan.from_json(found["sink"])
            fields["checks"] = tuple(Check(**check) for check in found["checks"])
            return cls(**fields)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UsageError(
                "This is not a plan that this version of Ebbtide saved.",
                "Make one: ebbtide rewind CKPT TARGET --save-plan F",
            ) from None


def plan_rewind(
    location: str,
    target: Target,
    *,
    replan: bool = False,
    connection: KafkaConnection | None = None,
    event_time_field: str | None = None,
    zone: str = "UTC",
    assume_stopped: bool = False,
    sink: SinkPlace | None = None,
    remedy: str | None = None,
    on_read: Callable[[int], None] = lambda _records: None,
) -> Plan:
    """Plan a rewind; no side effect.

    `connection` is the Kafka cluster to ask for the offsets that it still holds. `sink` is where
    the query writes, if its owner has not noted that, and `remedy` what is to be done about it.
    """
    # 1
    checkpoint = read_checkpoint(location)
    checkpoint.require_finished()

    def find(checkpoint: Checkpoint, at: datetime) -> tuple[int, str]:
        owner = checkpoint.folder.read_note(OWNER) or {}
        return find_first_batch(
            checkpoint,
            at,
            field=event_time_field or owner.get("event_time"),
            connection=connection,
            zone=zone,
            on_read=on_read,
        )

    # 2
    batch, resolved = resolve(checkpoint, target, replan=replan, find_event_time=find)
    running = checks.check_running(
        checkpoint.folder, checkpoint.logs, assume_stopped=assume_stopped
    )
    return plan_for(
        checkpoint,
        batch,
        target=str(target),
        resolved=resolved,
        replan=replan,
        connection=connection,
        running=running,
        sink=sink,
        remedy=remedy,
    )


def plan_for(
    checkpoint: Checkpoint,
    batch: int,
    *,
    target: str,
    resolved: str,
    replan: bool,
    connection: KafkaConnection | None,
    running: Check | None = None,
    sink: SinkPlace | None = None,
    remedy: str | None = None,
) -> Plan:
    """Steps 3 to 5, for a checkpoint that was read and a first batch that was found."""
    # 3
    removals = list_removals(checkpoint, batch, replan=replan)
    # 4
    chains = checkpoint.chains(batch)
    owner = checkpoint.folder.read_note(OWNER) or {}
    sources = check_sources(checkpoint, batch, owner.get("source"), connection, replan=replan)
    latest = checkpoint.logs.latest_committed
    last = latest.id if latest else None
    place = sink or SinkPlace.of_note(owner.get("sink"))
    sink_plan, sink_check = plan_sink(checkpoint, batch, place, remedy, connection)
    verdicts = (
        running,
        checks.check_logs(checkpoint, batch, replan=replan),
        checks.check_state(checkpoint, batch, chains, replan=replan),
        checks.check_unknown(checkpoint),
        checks.check_writable(checkpoint, removals),
        *sources.checks,
        sink_check,
    )
    sizes = {path: checkpoint.size(path) for path in removals}
    # 5
    return Plan(
        checkpoint=checkpoint.location,
        query_id=checkpoint.logs.query_id,
        target=target,
        resolved=resolved,
        first_batch=batch,
        mode=REPLAN if replan else EXACT,
        last_batch=last,
        last_planned=checkpoint.logs.batches[-1].id,
        sources=_sources(checkpoint, batch, {part.topic for part in sources.partitions}),
        partitions=sources.partitions,
        removals=tuple(removals),
        bytes=sizes,
        state=tuple(
            StoreNeed(store.operator, store.partition, store.name, batch, chain.files)
            for store, chain in chains.items()
        ),
        checks=tuple(check for check in verdicts if check is not None),
        sink=sink_plan,
        fingerprint=take_fingerprint(checkpoint, removals, chains),
    )


def list_removals(checkpoint: Checkpoint, batch: int, *, replan: bool) -> list[str]:
    """What goes, in order: state, operator metadata, then the logs from the top down."""
    tree = checkpoint.tree
    if batch == 0 and replan:
        # from nothing: Spark then wants all three folders empty, temporary files included
        return [
            f"{directory}/{name}"
            for top in ("state", "commits", "offsets")
            for directory, listing in tree.items()
            if directory == top or directory.startswith(f"{top}/")
            for name in listing.names
        ]
    gone = [
        store.path(name)
        for store in checkpoint.stores
        for name in names_above(tree[store.directory].names, batch)
    ]
    gone += _operator_metadata(checkpoint, batch)
    ids = [known.id for known in checkpoint.logs.batches]
    top = max((batch, *ids, *checkpoint.logs.commits_alone))
    for id_ in range(top, batch - 1, -1):
        gone += _log_files(checkpoint, "commits", id_)
        if id_ > batch or replan:
            gone += _log_files(checkpoint, "offsets", id_)
    return gone


def _operator_metadata(checkpoint: Checkpoint, batch: int) -> list[str]:
    """What transformWithState and joins noted about themselves from this batch on."""
    gone = []
    for directory, listing in checkpoint.tree.items():
        parts = directory.split("/")
        if len(parts) != 4 or parts[0] != "state" or parts[2:] != ["_metadata", "v2"]:
            continue
        ids = sorted(int(name) for name in listing.names if name.isdigit())
        later = {str(id_) for id_ in ids if id_ >= batch}
        if batch > 0 and ids and ids[0] >= batch:
            later.discard(str(ids[0]))  # the only one that describes the state we keep
        gone += [
            f"{directory}/{name}"
            for name in listing.names
            if main_file(name) in later and not is_temporary(name)
        ]
    return gone


def _log_files(checkpoint: Checkpoint, log: str, id_: int) -> list[str]:
    listing = checkpoint.tree.get(log)
    if listing is None or str(id_) not in listing.members:
        return []
    return with_sidecars(checkpoint.tree, f"{log}/{id_}")


def _sources(checkpoint: Checkpoint, batch: int, topics: set[str]) -> tuple[Mapping[str, Any], ...]:
    latest = checkpoint.logs.batches[-1].offsets.sources
    before = checkpoint.before(batch)
    start = before.offsets.sources if before else ()
    return tuple(
        {
            "kind": (connector := connector_of_offset(text)).kind,
            "current": text,
            "new": start[index] if index < len(start) else None,
            "topics": sorted(topics & set(connector.source.names_in(text or "{}"))),
        }
        for index, text in enumerate(latest)
    )


def take_fingerprint(
    checkpoint: Checkpoint, removals: list[str], chains: Mapping[Store, Chain]
) -> str:
    """Changes when a name comes or goes, a log changes, or a file that the rewind is about does."""
    found = hashlib.sha256(checkpoint.logs.digest.encode())
    for directory, listing in sorted(checkpoint.tree.items()):
        # our notes and our barrier touch the others, and the logs are digested word for word
        changed = listing.modified_ns if directory.startswith("state") else None
        found.update(f"\0{directory}\0{changed}\0{listing.stamps}".encode())
        found.update("\0".join(listing.names).encode())
    if checkpoint.folder.local:
        needed = [path for chain in chains.values() for path in chain.files]
        for path in (*removals, *needed):
            stat = checkpoint.folder.stat(path)
            found.update(f"\0{path}\0{stat}".encode())
    return found.hexdigest()
