"""Find out, without Spark, which parts of a checkpoint's state can be read after which batches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any

from ebbtide.checkpoint import Checkpoint, state_files
from ebbtide.errors import CheckpointError, UsageError
from ebbtide.formatting import find_runs
from ebbtide.parsing import parse_json

SIDES = ("left", "right")
_JOIN = "symmetricHashJoin"
_WITH_VARIABLES = "transformWithState"
_ESCAPED = re.compile(r"[\x00-\x20\"#%<>?\[\\\]^`{|}]")
"""What a URL escapes: Spark's reader turns the path into one and does not unescape it."""
_LIST, _NO_TIMERS = "ListState", "NoTime"


@dataclass(frozen=True)
class StatePart:
    """The part to read: all state of an operator, or one side, store, variable or its timers.

    >>> str(StatePart(0, side="left")), str(StatePart(1))
    ('operator 0, left side', 'operator 1')
    """

    operator: int
    side: str | None = None
    """In a stream-stream join: the rows of one stream."""
    store: str | None = None
    """One of several stores, as Spark stores it."""
    variable: str | None = None
    """In transformWithState: the name that its code uses."""
    timers: bool = False
    """In transformWithState: the timers that are set."""
    many: bool = False
    """Whether a key may have several values: a join's rows, a list's elements, timers."""

    def __str__(self) -> str:
        more = [
            f"{self.side} side" if self.side else "",
            f"store {self.store}" if self.store else "",
            f"variable {self.variable}" if self.variable else "",
            "timers" if self.timers else "",
        ]
        return ", ".join([f"operator {self.operator}", *filter(None, more)])

    @property
    def flag(self) -> str:
        """The flag that names the part, such as `--side left`; empty for all of an operator."""
        if self.timers:
            return "--timers"
        names = ((name, getattr(self, name)) for name in ("side", "store", "variable"))
        return next((f"--{name} {value}" for name, value in names if value), "")

    @property
    def options(self) -> dict[str, str]:
        """The options for Spark's state reader.

        >>> StatePart(1, variable="pages").options
        {'operatorId': '1', 'stateVarName': 'pages'}
        """
        options = {
            "operatorId": str(self.operator),
            "joinSide": self.side,
            "storeName": self.store,
            "stateVarName": self.variable,
            "readRegisteredTimers": "true" if self.timers else None,
        }
        return {name: value for name, value in options.items() if value is not None}

    def reads(self, store: state_files.Store) -> bool:
        """Whether a store holds some of this part."""
        if store.operator != self.operator or self.store not in (None, store.name):
            return False
        return (
            not self.side
            or store.name == state_files.DEFAULT_STORE
            or store.name.startswith(self.side)
        )


def find_part(
    checkpoint: Checkpoint,
    operator: int | None = None,
    side: str | None = None,
    *,
    store: str | None = None,
    variable: str | None = None,
    timers: bool = False,
) -> StatePart:
    """The part with these names; a name may be left out where there is only one."""
    chosen = _choose_operator(checkpoint, operator)
    names = {"side": side, "store": store, "variable": variable, "timers": timers}
    given = {name: value for name, value in names.items() if value}
    if len(given) > 1:
        raise UsageError("A side, a store, a variable and timers exclude each other.", "Name one.")
    whole, stores = _list_operator(checkpoint, chosen)
    if given:
        matching = [part for part in whole + stores if given.items() <= vars(part).items()]
    else:
        matching = [part for part in whole if not part.timers]
    if len(matching) == 1:
        return matching[0]
    missing = "timers" if timers else " ".join(f"{name} {given[name]!r}" for name in given)
    problem = f"has no {missing}" if given else f"keeps state in {len(matching)} parts"
    flags = ", ".join(part.flag for part in whole + stores if part.flag)
    raise UsageError(
        f"Operator {chosen.id} ({chosen.name or 'unnamed'}) {problem}.",
        f"Name one: {flags}." if flags else "Leave it out.",
    )


def list_parts(checkpoint: Checkpoint) -> list[StatePart]:
    """Every part that can be read: first the state of operators, then single stores.

    A query without state has none.
    """
    operators = [_list_operator(checkpoint, operator) for operator in checkpoint.operators]
    whole, stores = zip(*operators, strict=True) if operators else ((), ())
    return [part for parts in (*whole, *stores) for part in parts]


def _list_operator(
    checkpoint: Checkpoint, operator: state_files.Operator
) -> tuple[list[StatePart], list[StatePart]]:
    """The parts that hold the state of an operator, and its single stores."""
    id_, name = operator.id, operator.name or ""
    if name.startswith(_WITH_VARIABLES):
        properties = _read_properties(checkpoint, operator)
        variables = properties.get("stateVariables", ())
        kinds = {one["stateName"]: one["stateVariableType"] for one in variables}
        parts = [
            StatePart(id_, variable=variable, many=kind == _LIST)
            for variable, kind in sorted(kinds.items())
            if not variable.startswith("$")  # those are Spark's own
        ]
        if properties.get("timeMode") != _NO_TIMERS:
            parts.append(StatePart(id_, timers=True, many=True))
        return parts, []
    stores = sorted({store.name for store in operator.stores} - {state_files.DEFAULT_STORE})
    whole = [StatePart(id_)]
    if name == _JOIN or any(store.startswith("left-") for store in stores):
        whole = [StatePart(id_, side=side, many=True) for side in SIDES]
    return whole, [StatePart(id_, store=store) for store in stores]


def _choose_operator(checkpoint: Checkpoint, wanted: int | None) -> state_files.Operator:
    operators = checkpoint.operators
    if not operators:
        raise CheckpointError(
            f"The query of {checkpoint.location} keeps no state.",
            "Only aggregations, joins, deduplication and the like do.",
        )
    if wanted is None and len(operators) == 1:
        return operators[0]
    for operator in operators:
        if operator.id == wanted:
            return operator
    number = f"{len(operators)} operators" if wanted is None else f"no operator {wanted}"
    names = ", ".join(f"{one.id} ({one.name or 'unnamed'})" for one in operators)
    raise UsageError(
        f"{checkpoint.location} has {number} with state.", f"Name one with --operator: {names}."
    )


def _read_properties(checkpoint: Checkpoint, operator: state_files.Operator) -> dict[str, Any]:
    """What Spark recorded about a transformWithState operator when the query last started."""
    series = f"state/{operator.id}/_metadata/v2"
    newest = max(checkpoint.folder.ids(series), default=0)
    text = checkpoint.folder.read(series, str(newest)) or ""
    try:
        return dict(parse_json(parse_json(text.split("\n", 1)[1])["operatorPropertiesJson"]))
    except (IndexError, KeyError, ValueError, TypeError):
        raise CheckpointError(
            f"{checkpoint.location}/{series}/{newest} does not list the variables.",
            "Restore it from a copy of the checkpoint.",
        ) from None


Chains = Mapping[state_files.Store, state_files.Chain]
"""By store: the files that loading it takes."""


def require_state(checkpoint: Checkpoint, part: StatePart, batch: int | None = None) -> int:
    """The batch to read, the last committed one by default; raises if its state is unreadable."""
    checkpoint.require_finished()
    if _ESCAPED.search(checkpoint.location):
        raise CheckpointError(
            f"Spark's state reader cannot open {checkpoint.location}: it does not support "
            "spaces, percent signs and the like in a path.",
            f"Give it another name: ln -s {quote(checkpoint.location)} ./checkpoint",
        )
    latest = checkpoint.logs.latest_committed
    if latest is None:
        raise CheckpointError(
            f"No batch of {checkpoint.location} is committed yet.", "Let the query run first."
        )
    chosen = latest.id if batch is None else batch
    entry = checkpoint.logs.by_id.get(chosen)
    if entry is None or not entry.committed:
        committed = [one.id for one in checkpoint.logs.batches if one.committed]
        raise CheckpointError(
            f"Batch {chosen} has no commit in {checkpoint.location}.",
            f"Committed batches: {committed[0]} to {committed[-1]}.",
        )
    for store, chain in find_chains(checkpoint, part, chosen).items():
        if chain.problem is not None:
            readable = list_readable(checkpoint, part)
            raise CheckpointError(
                f"The state after batch {chosen} of {checkpoint.location} cannot be read: "
                f"{store}: {chain.problem}.",
                f"It can be read after batch {format_ids(readable)}."
                if readable
                else f"See why: ebbtide verify {checkpoint.location}",
            )
    return chosen


def require_span(
    checkpoint: Checkpoint, part: StatePart, before: int, after: int | None
) -> tuple[int, int]:
    """The two batches to compare; the later one is the last committed by default."""
    last = require_state(checkpoint, part, after)
    if before >= last:
        raise UsageError(
            f"Batch {before} (--from) is not before batch {last} (--to).", "Name an earlier batch."
        )
    return require_state(checkpoint, part, before), last


def find_chains(checkpoint: Checkpoint, part: StatePart, batch: int) -> Chains:
    """The files that loading a part of the state after a batch takes, by store."""
    version = batch + 1
    return {
        store: checkpoint.chain(store, version)
        for store in checkpoint.expected_stores(version)
        if part.reads(store)
    }


def measure(checkpoint: Checkpoint, part: StatePart, *batches: int) -> int:
    """How many bytes there are to read: the maximum over some batches."""
    return max(count_bytes(checkpoint, find_chains(checkpoint, part, n)) for n in batches)


def count_bytes(checkpoint: Checkpoint, chains: Chains) -> int:
    """The total size of these files."""
    return sum(
        sum(map(checkpoint.size, chain.files)) + sum(size for _, size in chain.shared)
        for chain in chains.values()
    )


def list_readable(checkpoint: Checkpoint, part: StatePart) -> list[int]:
    """After which batches a part can be read, judging by file names only."""
    stores = [store for store in checkpoint.stores if part.reads(store)]
    return [
        batch.id
        for batch in checkpoint.logs.batches
        if batch.committed and all(one.versions.why_not(batch.id + 1) is None for one in stores)
    ]


def format_ids(ids: list[int]) -> str:
    """Ascending numbers, with runs as ranges.

    >>> format_ids([4, 8, 9, 10])
    '4, 8 to 10'
    """
    runs = find_runs(ids)
    return ", ".join(f"{first} to {last}" if last > first else f"{first}" for first, last in runs)


def prefers_feed(checkpoint: Checkpoint, part: StatePart, before: int, after: int) -> bool:
    """Whether the changes between two batches exist, are complete, and take less to read.

    They are not complete for a join's side, which combines two stores, nor for variables and
    timers, for which Spark loads the whole store first.
    """
    if part.side or part.variable or part.timers:
        return False
    between = [batch for batch in checkpoint.logs.batches if before < batch.id <= after]
    if any(batch.offsets.control is not None for batch in between):
        return False  # keys have moved from one partition to another
    changed = 0
    chains = find_chains(checkpoint, part, after)
    for store in chains:
        for version in range(before + 2, after + 2):
            files = store.versions.changes.get(version)
            if not files:
                return False
            changed += max(checkpoint.size(store.path(file.name)) for file in files)
    return changed < count_bytes(checkpoint, chains)
