"""Plan a rewind: find out all that it would change.

Steps, none with a side effect: **1** read the checkpoint; **2** resolve the target to the first
batch B; **3** list what goes; **4** check; **5** fingerprint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from ebbtide import connectors
from ebbtide.checkpoint import Checkpoint, Owner, layout, log_files, read_checkpoint
from ebbtide.checks import REFUSE, WARN, Check
from ebbtide.connectors import SinkPlace, SinkPlan, base
from ebbtide.connectors.kafka import KafkaConnection
from ebbtide.errors import UsageError
from ebbtide.history import find_first_batch
from ebbtide.notes import INVALID, Count, PathInside, decode
from ebbtide.parsing import parse_id
from ebbtide.rewind import checks
from ebbtide.rewind.holders import check_running
from ebbtide.rewind.request import RewindRequest
from ebbtide.rewind.sinks import KnownSinks
from ebbtide.rewind.target import resolve

_FORMAT = 2
_DIGEST = "digest"
_DERIVED = ("format", "batches", "records", "sink", _DIGEST)
"""In a saved plan, but not in the value."""


@dataclass(frozen=True)
class StoreNeed:
    """The version of one store that the first batch starts from, and the files it loads."""

    operator: int
    partition: int
    store: str
    version: int
    chain: tuple[str, ...]


@dataclass(frozen=True)
class RewindPlan:
    """All that a rewind would change; nothing has changed yet."""

    checkpoint: str
    query_id: str
    target: str
    resolved: str
    """How the target led to the first batch."""
    first_batch: Count
    mode: layout.Mode
    last_batch: int | None
    """The last committed batch."""
    last_planned: int
    sources: tuple[Mapping[str, Any], ...]
    """Each source's offset now and after the rewind, as Spark writes it."""
    partitions: tuple[base.Replayed, ...]
    removals: tuple[PathInside, ...]
    """Paths in the checkpoint, in the order in which they go."""
    bytes: Mapping[str, int]
    """The size of each."""
    state: tuple[StoreNeed, ...]
    checks: tuple[Check, ...]
    sinks: tuple[SinkPlan, ...]
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
    def sink(self) -> SinkPlan | None:
        """What becomes of the first of the query's sinks; most queries have one."""
        return next(iter(self.sinks), None)

    @property
    def places(self) -> tuple[SinkPlace, ...]:
        """Where the query writes."""
        return tuple(planned.sink for planned in self.sinks)

    @property
    def warnings(self) -> tuple[Check, ...]:
        """The checks that let it pass, but that somebody should read before."""
        return tuple(check for check in self.checks if check.verdict == WARN)

    @property
    def refusals(self) -> tuple[Check, ...]:
        """The checks that stand in the way."""
        return tuple(check for check in self.checks if check.verdict == REFUSE)

    def require_allowed(self) -> None:
        """Refuse, with the first reason, if a check stands in the way."""
        for check in self.checks:
            what = f"{self.checkpoint} cannot be rewound to batch {self.first_batch}"
            checks.require(check, what)

    def to_dict(self) -> dict[str, Any]:
        """As plain values; `from_dict` reads them back."""
        parts = [asdict(part) | {"records": part.records} for part in self.partitions]
        few = replace(
            self,
            sources=(),
            partitions=(),
            removals=(),
            bytes={},
            state=(),
            checks=(),
            sinks=(),
        )
        values = {
            **asdict(few),
            # thousands of them, of which nothing needs to be copied in depth
            "removals": self.removals,
            "bytes": dict(self.bytes),
            "state": tuple(dict(vars(need)) for need in self.state),
            "format": _FORMAT,
            "checks": [check.to_dict() for check in self.checks],
            "sources": [
                {**source, "partitions": [p for p in parts if p["topic"] in source["topics"]]}
                for source in self.sources
            ],
            "sink": self.sink and self.sink.to_dict(),
            "sinks": [sink.to_dict() for sink in self.sinks],
            "batches": self.batches,
            "records": self.records,
        }
        return values | {_DIGEST: _digest(values)}

    @classmethod
    def for_batch(
        cls,
        checkpoint: Checkpoint,
        batch: int,
        *,
        target: str,
        resolved: str,
        replan: bool,
        connection: KafkaConnection | None,
        running: Check | None = None,
        sinks: Sequence[SinkPlan] = (),
        remedy: str | None = None,
    ) -> RewindPlan:
        """Steps 3 to 5, for a checkpoint that was read and a first batch that was found.

        `sinks` are places and remedies as asked for; by default the known ones, with one remedy.
        """
        # 3
        removals = list_removals(checkpoint, batch, replan=replan)
        # 4
        owner = Owner.read(checkpoint.folder)
        sources = connectors.check_sources(
            checkpoint, batch, owner.source, connection, replan=replan
        )
        latest = checkpoint.logs.latest_committed
        known = KnownSinks.read(checkpoint.folder)
        predicted, sink_checks = connectors.sinks.plan_sinks(
            checkpoint, batch, sinks or known.with_remedy(remedy), connection, known.places
        )
        verdicts = (
            running,
            checks.check_logs(checkpoint, batch, replan=replan),
            checks.check_state(checkpoint, batch, replan=replan),
            checks.check_trigger(checkpoint, batch, replan=replan),
            checks.check_unknown(checkpoint),
            checks.check_writable(checkpoint, removals),
            *sources.checks,
            *(sink_checks or [known.check_unknown(checkpoint.location)]),
        )
        # 5
        return cls(
            checkpoint=checkpoint.location,
            query_id=checkpoint.logs.query_id,
            target=target,
            resolved=resolved,
            first_batch=batch,
            mode=layout.REPLAN if replan else layout.EXACT,
            last_batch=latest.id if latest else None,
            last_planned=checkpoint.logs.batches[-1].id,
            sources=_sources(checkpoint, batch),
            partitions=sources.partitions,
            removals=tuple(removals),
            bytes={path: checkpoint.size(path) for path in removals},
            state=tuple(
                StoreNeed(store.operator, store.partition, store.name, batch, chain.files)
                for store, chain in checkpoint.chains(batch).items()
            ),
            checks=tuple(check for check in verdicts if check is not None),
            sinks=predicted,
            fingerprint=take_fingerprint(checkpoint, batch, removals),
        )

    @classmethod
    def from_dict(cls, found: Any) -> RewindPlan:
        """Read a saved plan."""
        try:
            fields = {name: value for name, value in found.items() if name not in _DERIVED}
            if found["format"] != _FORMAT or found[_DIGEST] != _digest(found):
                raise ValueError("of another version, or edited")
            fields["sources"] = [_read_source(source) for source in found["sources"]]
            fields["partitions"] = [
                {name: value for name, value in part.items() if name not in _DERIVED}
                for source in fields["sources"]
                for part in source.pop("partitions")
            ]
            fields["sinks"] = [SinkPlan.from_dict(sink) for sink in found["sinks"]]
            fields["checks"] = [_read_check(check) for check in found["checks"]]
            return decode(cls, fields)
        except INVALID:
            raise UsageError(
                "This is not a plan that this version of Ebbtide saved, or it was edited.",
                "Make one: ebbtide rewind CKPT TARGET --save-plan F",
            ) from None


def _read_check(check: Any) -> Check:
    return Check.from_dict(decode(dict[str, str], check))


def _read_source(source: Any) -> dict[str, Any]:
    """A source of a saved plan, of which others use these fields."""
    decode(tuple[str, ...], source["topics"])
    for name in ("kind", "current", "new"):
        decode(str | None, source[name])  # type: ignore[arg-type]
    return dict(source)


def _digest(values: Mapping[str, Any]) -> str:
    """Of everything else in a saved plan: one that was edited is not carried out."""
    rest = {name: value for name, value in values.items() if name != _DIGEST}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def plan_rewind(
    request: RewindRequest,
    *,
    connection: KafkaConnection | None = None,
    on_read: Callable[[int], None] = lambda _records: None,
) -> RewindPlan:
    """Plan a rewind; no side effect.

    `connection` is the Kafka cluster, asked for the offsets that it still holds; a guessed one that
    lacks a topic counts as not asked. `on_read` is told how many records were read for event times.
    """
    # 1
    checkpoint = read_checkpoint(request.checkpoint)
    checkpoint.require_finished()
    # 2
    find = partial(
        find_first_batch,
        field=request.event_time_field or Owner.read(checkpoint.folder).event_time,
        connection=connection,
        zone=request.zone,
        on_read=on_read,
    )
    batch, resolved = resolve(
        checkpoint, request.target, replan=request.replan, find_event_time=find
    )
    stopped = request.assume_stopped
    return RewindPlan.for_batch(
        checkpoint,
        batch,
        target=str(request.target),
        resolved=resolved,
        replan=request.replan,
        connection=connection,
        running=check_running(checkpoint.folder, checkpoint.logs, assume_stopped=stopped),
        sinks=request.sinks,
        remedy=request.remedy,
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
        for name in layout.names_above(tree[store.directory].names, batch)
    ]
    gone += _operator_metadata(checkpoint, batch)
    ids = {*checkpoint.logs.by_id, *checkpoint.logs.commits_alone}
    for id_ in sorted((id_ for id_ in ids if id_ >= batch), reverse=True):
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
        ids = sorted(id_ for name in listing.names if (id_ := parse_id(name)) is not None)
        later = {str(id_) for id_ in ids if id_ >= batch}
        if batch > 0 and ids and ids[0] >= batch:
            later.discard(str(ids[0]))  # the only one that describes the state we keep
        gone += [
            f"{directory}/{name}"
            for name in listing.names
            if layout.main_file(name) in later and not layout.is_temporary(name)
        ]
    return gone


def _log_files(checkpoint: Checkpoint, log: str, id_: int) -> list[str]:
    path = f"{log}/{id_}"
    return checkpoint.with_sidecars(path) if checkpoint.has(path) else []


def _sources(checkpoint: Checkpoint, batch: int) -> tuple[Mapping[str, Any], ...]:
    latest = checkpoint.logs.batches[-1].offsets.sources
    before = checkpoint.before(batch)
    start = before.offsets.sources if before else ()
    return tuple(
        {
            "kind": connectors.connector_of_offset(text).kind,
            "current": text,
            "new": start[index] if index < len(start) else None,
            "topics": sorted({topic for topic, _ in log_files.kafka_positions([text])}),
        }
        for index, text in enumerate(latest)
    )


def take_fingerprint(checkpoint: Checkpoint, batch: int, removals: list[str]) -> str:
    """Changes when a name comes or goes, a log changes, or a file that the rewind is about does.

    It is another one for each checkpoint, even if one is a copy of the other.
    """
    digest = hashlib.sha256(f"{checkpoint.location}\0{checkpoint.logs.digest}".encode())
    for directory, listing in sorted(checkpoint.tree.items()):
        # our notes and our barrier touch the others, and the logs are digested word for word
        changed = listing.modified_ns if directory.startswith("state") else None
        digest.update(f"\0{directory}\0{changed}\0{listing.stamps}".encode())
        digest.update("\0".join(listing.names).encode())
    if checkpoint.folder.local:
        chains = checkpoint.chains(batch).values()
        needed = (path for chain in chains for path in chain.files)
        for path in (*removals, *needed):
            stat = checkpoint.folder.stat(path)
            digest.update(f"\0{path}\0{stat}".encode())
    return digest.hexdigest()
