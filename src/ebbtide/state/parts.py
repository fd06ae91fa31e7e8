"""A checkpoint in, which part of its state can be read, and after which batches, out; no Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any

from ebbtide.checkpoint import Checkpoint, state_files
from ebbtide.errors import CheckpointError, UsageError

SIDES = ("left", "right")
_JOIN = "symmetricHashJoin"
_WITH_VARIABLES = "transformWithState"
_ESCAPED = re.compile(r"[\x00-\x20\"#%<>?\[\\\]^`{|}]")
"""What a URL writes otherwise; Spark's reader makes one of the path, and does not turn it back."""
_LIST, _NO_TIMERS = "ListState", "NoTime"


@dataclass(frozen=True)
class Part:
    """What is read: all that an operator keeps, or a side, a store, a variable or timers of it.

    >>> str(Part(0, side="left")), str(Part(1))
    ('operator 0, left side', 'operator 1')
    """

    operator: int
    side: str | None = None
    """Of a join of two streams: the rows of one of them."""
    store: str | None = None
    """One of several stores, as it lies there."""
    variable: str | None = None
    """Of transformWithState: what its code calls it."""
    timers: bool = False
    """Of transformWithState: the timers that are set."""
    many: bool = False
    """Whether a key may have several values: rows of a join's side, elements of a list, timers."""

    def __str__(self) -> str:
        more = [
            f"{self.side} side" if self.side else "",
            f"store {self.store}" if self.store else "",
            f"variable {self.variable}" if self.variable else "",
            "timers" if self.timers else "",
        ]
        return ", ".join([f"operator {self.operator}", *filter(None, more)])

    @property
    def options(self) -> dict[str, str]:
        """How Spark's reader is told.

        >>> Part(1, variable="pages").options
        {'operatorId': '1', 'stateVarName': 'pages'}
        """
        found = {
            "operatorId": str(self.operator),
            "joinSide": self.side,
            "storeName": self.store,
            "stateVarName": self.variable,
            "readRegisteredTimers": "true" if self.timers else None,
        }
        return {name: value for name, value in found.items() if value is not None}

    def reads(self, store: state_files.Store) -> bool:
        """Whether a store holds some of it."""
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
) -> Part:
    """The part that is asked for; where only one can be meant, it need not be named."""
    found = _operator(checkpoint, operator)
    if sum(map(bool, (side, store, variable, timers))) > 1:
        raise UsageError("A side, a store, a variable and timers exclude each other.", "Name one.")
    name = f"Operator {found.id} ({found.name or 'unnamed'})"
    stores = sorted({one.name for one in found.stores} - {state_files.DEFAULT_STORE})
    if store is not None and store not in stores:
        known = f"It has: {', '.join(stores)}." if stores else "Leave out --store."
        raise UsageError(f"{name} has no store {store!r}.", known)
    if (found.name or "").startswith(_WITH_VARIABLES):
        if side is not None:
            raise UsageError(f"{name} is no join.", "Leave out --side.")
        return _with_variables(checkpoint, found, variable, timers)
    if variable is not None or timers:
        raise UsageError(
            f"{name} has no variables and no timers of its own; transformWithState has.",
            "Leave out --variable and --timers.",
        )
    is_join = _is_join(found, stores)
    if side is not None and (not is_join or side not in SIDES):
        raise UsageError(
            f"{name} has no side {side!r}.", "Use left or right." if is_join else "Leave it out."
        )
    if is_join and side is None and store is None:
        raise UsageError(
            f"{name} is a join and keeps the rows of two streams.",
            "Add --side left or --side right.",
        )
    return Part(found.id, side=side, store=store, many=side is not None)


def list_parts(checkpoint: Checkpoint) -> list[Part]:
    """Every part that can be asked for; first what operators keep, then stores as they lie there.

    A query without state has none.
    """
    whole: list[Part] = []
    raw: list[Part] = []
    for operator in checkpoint.operators:
        id_ = operator.id
        stores = sorted({one.name for one in operator.stores} - {state_files.DEFAULT_STORE})
        if (operator.name or "").startswith(_WITH_VARIABLES):
            properties = _properties(checkpoint, operator)
            whole += [_variable(id_, *one) for one in sorted(_variables(properties).items())]
            if properties.get("timeMode") != _NO_TIMERS:
                whole.append(Part(id_, timers=True, many=True))
            continue
        if _is_join(operator, stores):
            whole += [Part(id_, side=side, many=True) for side in SIDES]
        else:
            whole.append(Part(id_))
        raw += [Part(id_, store=store) for store in stores]
    return whole + raw


def _operator(checkpoint: Checkpoint, wanted: int | None) -> state_files.Operator:
    there = checkpoint.operators
    if not there:
        raise CheckpointError(
            f"The query of {checkpoint.location} keeps no state.",
            "Only aggregations, joins, deduplication and the like do.",
        )
    if wanted is None and len(there) == 1:
        return there[0]
    found = next((one for one in there if one.id == wanted), None)
    if found is None:
        known = ", ".join(f"{one.id} ({one.name or 'unnamed'})" for one in there)
        raise UsageError(
            f"{checkpoint.location} has {len(there)} operators with state."
            if wanted is None
            else f"{checkpoint.location} has no operator {wanted} with state.",
            f"Name one with --operator: {known}.",
        )
    return found


def _is_join(operator: state_files.Operator, stores: list[str]) -> bool:
    return operator.name == _JOIN or any(one.startswith("left-") for one in stores)


def _variables(properties: Mapping[str, Any]) -> dict[str, str]:
    """The variables of transformWithState and their kinds; names with a dollar are Spark's own."""
    return {
        one["stateName"]: one["stateVariableType"]
        for one in properties.get("stateVariables", ())
        if not one["stateName"].startswith("$")
    }


def _variable(operator: int, name: str, kind: str) -> Part:
    return Part(operator, variable=name, many=kind == _LIST)


def _with_variables(
    checkpoint: Checkpoint, operator: state_files.Operator, variable: str | None, timers: bool
) -> Part:
    properties = _properties(checkpoint, operator)
    kinds = _variables(properties)
    no_timers = properties.get("timeMode") == _NO_TIMERS
    if timers:
        if no_timers:
            raise UsageError(f"Operator {operator.id} sets no timers.", "Leave out --timers.")
        return Part(operator.id, timers=True, many=True)
    if variable is None and len(kinds) == 1:
        (variable,) = kinds
    if variable not in kinds:
        raise UsageError(
            f"Operator {operator.id} keeps {len(kinds)} variables."
            if variable is None
            else f"Operator {operator.id} has no variable {variable!r}.",
            f"Name one with --variable: {', '.join(sorted(kinds))}"
            + ("." if no_timers else "; or ask for --timers."),
        )
    return _variable(operator.id, variable, kinds[variable])


def _properties(checkpoint: Checkpoint, operator: state_files.Operator) -> dict[str, Any]:
    """What Spark noted about an operator of transformWithState when it last started."""
    series = f"state/{operator.id}/_metadata/v2"
    newest = max(checkpoint.folder.ids(series), default=0)
    text = checkpoint.folder.read(series, str(newest)) or ""
    try:
        return dict(json.loads(json.loads(text.split("\n", 1)[1])["operatorPropertiesJson"]))
    except (IndexError, KeyError, ValueError, TypeError):
        raise CheckpointError(
            f"{checkpoint.location}/{series}/{newest} does not say which variables there are.",
            "Put it back from a copy of the checkpoint.",
        ) from None


Chains = Mapping[state_files.Store, state_files.Chain]
"""For each store that a part lies in, what loading it takes."""


def require_state(checkpoint: Checkpoint, part: Part, batch: int | None = None) -> int:
    """The batch whose state is wanted, the last committed one if none is named, or why not."""
    checkpoint.require_finished()
    if _ESCAPED.search(checkpoint.location):
        raise CheckpointError(
            f"Spark's state reader does not find {checkpoint.location}: it stumbles over a space, "
            "a percent sign and the like in a path.",
            f"Give it another name: ln -s {quote(checkpoint.location)} ./checkpoint",
        )
    latest = checkpoint.logs.latest_committed
    if latest is None:
        raise CheckpointError(
            f"No batch of {checkpoint.location} is committed yet.", "Let the query run first."
        )
    chosen = latest.id if batch is None else batch
    found = checkpoint.logs.by_id.get(chosen)
    if found is None or not found.committed:
        committed = [one.id for one in checkpoint.logs.batches if one.committed]
        raise CheckpointError(
            f"Batch {chosen} has no commit in {checkpoint.location}.",
            f"Committed batches: {committed[0]} to {committed[-1]}.",
        )
    for store, chain in find_chains(checkpoint, part, chosen).items():
        if chain.problem is not None:
            raise CheckpointError(
                f"The state after batch {chosen} of {checkpoint.location} cannot be read: "
                f"{store}: {chain.problem}.",
                _say_readable(checkpoint, part),
            )
    return chosen


def require_span(
    checkpoint: Checkpoint, part: Part, before: int, after: int | None
) -> tuple[int, int]:
    """The two batches whose states are wanted, the later one the last committed if not named."""
    last = require_state(checkpoint, part, after)
    if before >= last:
        raise UsageError(f"--from {before} is not before --to {last}.", "Name an earlier batch.")
    return require_state(checkpoint, part, before), last


def find_chains(checkpoint: Checkpoint, part: Part, batch: int) -> Chains:
    """What loading a part of the state after a batch takes, store by store."""
    version = batch + 1
    return {
        store: checkpoint.chain(store, version)
        for store in checkpoint.expected_stores(version)
        if part.reads(store)
    }


def measure(checkpoint: Checkpoint, part: Part, *batches: int) -> int:
    """How many bytes reading a part of the state takes, after the largest of some batches."""
    return max(count_bytes(checkpoint, find_chains(checkpoint, part, n)) for n in batches)


def count_bytes(checkpoint: Checkpoint, chains: Chains) -> int:
    """How much there is to load."""
    return sum(
        sum(map(checkpoint.size, chain.files)) + sum(size for _, size in chain.shared)
        for chain in chains.values()
    )


def list_readable(checkpoint: Checkpoint, part: Part) -> list[int]:
    """After which batches a part can be read, as far as names tell."""
    stores = [store for store in checkpoint.stores if part.reads(store)]
    return [
        batch.id
        for batch in checkpoint.logs.batches
        if batch.committed and all(one.versions.why_not(batch.id + 1) is None for one in stores)
    ]


def _say_readable(checkpoint: Checkpoint, part: Part) -> str:
    found = list_readable(checkpoint, part)
    if not found:
        return f"See why: ebbtide verify {checkpoint.location}"
    return f"It can be read after batch {say_ids(found)}."


def say_ids(ids: list[int]) -> str:
    """Ascending numbers in few words.

    >>> say_ids([4, 8, 9, 10])
    '4, 8 to 10'
    """
    runs: list[list[int]] = []
    for id_ in ids:
        if runs and id_ == runs[-1][-1] + 1:
            runs[-1].append(id_)
        else:
            runs.append([id_])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def prefers_feed(checkpoint: Checkpoint, part: Part, before: int, after: int) -> bool:
    """Whether the changes between two batches are there, tell all, and take less to read.

    They do not tell all of a join's side, which is put together from two stores, nor of variables
    and timers, for which Spark loads the whole store first.
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
