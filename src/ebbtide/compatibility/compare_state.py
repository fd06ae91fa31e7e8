"""Compare the stateful operators of a new query with those whose state a checkpoint holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ebbtide.checks import (
    BREAKS,
    COMPATIBLE,
    GOES_ON,
    IGNORES,
    MISBINDS,
    REFUSES,
    SAME,
    PartVerdict,
)
from ebbtide.compatibility.demands import CheckpointDemands
from ebbtide.compatibility.operators import (
    AGGREGATION,
    GROUPS,
    GROUPS_IN_PANDAS,
    SESSIONS,
    OperatorState,
)
from ebbtide.compatibility.planned import PlannedOperator, PlannedQuery
from ebbtide.compatibility.schemas import (
    StateSchema,
    explain_misfit,
    fits,
    names_of,
    show_fields,
)
from ebbtide.compatibility.windows import HeldWindows

_ROWS = "keyWithIndexToValue"
"""The stores of a join that hold its rows."""
_UNSEEN = "equal schema; whether it is computed as before is not recorded"


def compare_operators(
    old: CheckpointDemands, new: PlannedQuery, held: Mapping[int, HeldWindows]
) -> Iterator[PartVerdict]:
    """Number, order and kind of the stateful operators, then the state of each."""
    for part in _compare_all(old, new, held):
        yield _allow_first(part, new) if old.next_batch == 0 else part


def _allow_first(part: PartVerdict, new: PlannedQuery) -> PartVerdict:
    """Before batch 0 is committed Spark compares no operators, and has no state to misbind."""
    asked = not new.spark.startswith("3.")
    refuses = part.spark == REFUSES and (not asked or new.own_check is not None)
    if part.verdict != BREAKS or refuses:
        return part
    return PartVerdict(part.part, COMPATIBLE, f"{part.detail}; no batch is committed yet")


def _compare_all(
    old: CheckpointDemands, new: PlannedQuery, held: Mapping[int, HeldWindows]
) -> Iterator[PartVerdict]:
    before = {operator.id: operator for operator in old.operators}
    after = {operator.state.id: operator for operator in new.operators}
    if not before and not after:
        yield PartVerdict("state", SAME, "the query keeps none")
        return
    kinds = list(_compare_kinds(before, after, new, is_first=old.next_batch == 0))
    yield from kinds
    # an operator that Spark does not miss does not keep it from comparing the others
    if old.next_batch and any(kind.spark == REFUSES for kind in kinds):
        return
    for id_ in sorted(before.keys() & after.keys()):
        yield from _compare_schemas(before[id_], after[id_], new)
        yield from _compare_windows(before[id_], after[id_], held.get(id_))


def _compare_kinds(
    before: Mapping[int, OperatorState],
    after: Mapping[int, PlannedOperator],
    new: PlannedQuery,
    *,
    is_first: bool,
) -> Iterator[PartVerdict]:
    notes_names = any(not operator.is_guess for operator in before.values())
    checks_names = notes_names and not new.spark.startswith("3.") and not is_first
    for id_ in sorted({*before, *after}):
        part = f"operator {id_}"
        was, now = before.get(id_), after.get(id_)
        if was is None and now is not None:
            spark = MISBINDS if is_first else REFUSES
            yield PartVerdict(part, BREAKS, f"{now.state.label} added: it has no state yet", spark)
        elif now is None and was is not None:
            yield _judge_removed(part, was, refuses=checks_names, alone=not after)
        elif was is not None and now is not None:
            yield _judge_kind(part, was, now, refuses=checks_names)


def _judge_removed(part: str, was: OperatorState, *, refuses: bool, alone: bool) -> PartVerdict:
    detail = f"{was.label} removed"
    if refuses:
        return PartVerdict(part, BREAKS, detail, REFUSES)
    if alone:
        detail = f"{detail}: the query keeps no state any more, and what is there is left behind"
        return PartVerdict(part, COMPATIBLE, detail, IGNORES)
    return PartVerdict(part, BREAKS, f"{detail}, which Spark does not report", MISBINDS)


def _judge_kind(
    part: str, was: OperatorState, now: PlannedOperator, *, refuses: bool
) -> PartVerdict:
    groups = {was.name, now.state.name} == {GROUPS, GROUPS_IN_PANDAS} and was.is_guess
    if was.name is None:
        detail = f"{now.state.label}; of which kind the state in the checkpoint is is not known"
        return PartVerdict(part, COMPATIBLE, detail)
    if was.name == now.state.name or groups:
        return PartVerdict(part, SAME, now.state.label)
    fit = all(_fits_any(schema, now.state.schemas) for schema in was.schemas)
    spark = MISBINDS if fit and not refuses else REFUSES
    labels = (was.label, now.state.label)
    names = (was.name, now.state.name) if labels[0] == labels[1] else labels
    return PartVerdict(part, BREAKS, f"{names[0]} becomes {names[1]}", spark)


def _fits_any(old: StateSchema, schemas: tuple[StateSchema, ...]) -> bool:
    return any(fits(new.key, old.key) and fits(new.value, old.value) for new in schemas)


def _compare_schemas(
    old: OperatorState, new: PlannedOperator, query: PlannedQuery
) -> Iterator[PartVerdict]:
    if old.has_variables:
        yield from _compare_variables(old, new.state, query)
        return
    after = {(schema.store, schema.family): schema for schema in new.state.schemas}
    parts: list[PartVerdict] = []
    for schema in old.schemas:
        other = after.get((schema.store, schema.family))
        if other is not None:
            parts.append(_compare_keys(old, schema, other, new, query))
            parts.append(_compare_values(old, schema, other, new, query))
    sides, turned = _names_of_sides(old.schemas), _names_of_sides(new.state.schemas)
    fit = all(part.spark != REFUSES for part in parts)
    if fit and sides[0] != sides[1] and sides == turned[::-1]:
        detail = "the left side has become the right one"
        yield PartVerdict(f"operator {old.id} sides", BREAKS, detail, MISBINDS)
        return
    # of the four stores of a join, two have nothing of their own
    yield from dict.fromkeys(parts)


def _names_of_sides(schemas: tuple[StateSchema, ...]) -> tuple[list[str], list[str]]:
    """The columns of a join's rows, left and right."""
    rows = {schema.label.split("-")[0]: schema for schema in schemas if _ROWS in schema.label}
    left, right = (names_of(rows[side].value) if side in rows else [] for side in ("left", "right"))
    return left, right


def _label(operator: OperatorState, what: str, schema: StateSchema) -> str:
    side = schema.label.split("-")[0] if _is_numbered(schema) else ""
    return " ".join(filter(None, (f"operator {operator.id}", side, what)))


def _compare_keys(
    operator: OperatorState,
    old: StateSchema,
    new: StateSchema,
    planned: PlannedOperator,
    query: PlannedQuery,
) -> PartVerdict:
    part = _label(operator, "key", old)
    if not fits(new.key, old.key):
        return PartVerdict(part, BREAKS, explain_misfit(new.key, old.key), _refusal(query))
    if _is_numbered(old):
        return PartVerdict(part, COMPATIBLE, f"{show_fields(old.key)}: {_UNSEEN}")
    return _judge_names(part, old.key, new.key, planned, query)


def _is_numbered(schema: StateSchema) -> bool:
    """Whether Spark names the fields of a key itself, as in a join."""
    return schema.label.startswith(("left-", "right-"))


def _compare_values(
    operator: OperatorState,
    old: StateSchema,
    new: StateSchema,
    planned: PlannedOperator,
    query: PlannedQuery,
) -> PartVerdict:
    part = _label(operator, "rows" if _ROWS in old.label else "value", old)
    if not fits(new.value, old.value):
        return PartVerdict(part, BREAKS, explain_misfit(new.value, old.value), _refusal(query))
    before, after = names_of(old.value), names_of(new.value)
    if operator.name in (AGGREGATION, SESSIONS) and before != after:
        detail = f"{', '.join(before)} becomes {', '.join(after)}, of the same types"
        return PartVerdict(part, BREAKS, detail, MISBINDS)
    if _ROWS in old.label:
        return _judge_names(part, old.value, new.value, planned, query)
    return PartVerdict(part, COMPATIBLE, f"{show_fields(new.value)}: {_UNSEEN}")


def _refusal(query: PlannedQuery) -> str:
    """What Spark does about a schema that does not fit; its check can be switched off."""
    asked = not query.spark.startswith("3.")
    return MISBINDS if asked and query.own_check is None else REFUSES


def _judge_names(
    part: str,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    planned: PlannedOperator,
    query: PlannedQuery,
) -> PartVerdict:
    """Columns of the same types: Spark ignores their names, which show more than it looks at."""
    before, after = names_of(old), names_of(new)
    if before == after:
        return PartVerdict(part, COMPATIBLE, f"{show_fields(new)}: {_UNSEEN}")
    if sorted(before) == sorted(after):
        detail = f"{', '.join(before)} becomes {', '.join(after)}: another order"
        return PartVerdict(part, BREAKS, detail, MISBINDS)
    renamed = []
    choices = query.key_choices if len(query.operators) == 1 else frozenset()
    for was, now in zip(before, after, strict=True):
        origin = planned.origin_of(now)
        if was == now or origin == was:
            renamed += [] if was == now else [f"{was} is called {now} now"]
        elif (was in query.source_columns and origin is not None) or (
            was in choices and planned.is_made_without(now, was)
        ):
            return PartVerdict(part, BREAKS, f"{was} becomes {now}, another column", MISBINDS)
        else:
            renamed.append(f"{was} becomes {now}, which may be another column")
    return PartVerdict(part, COMPATIBLE, "; ".join(renamed), GOES_ON)


def _compare_variables(
    old: OperatorState, new: OperatorState, query: PlannedQuery
) -> Iterator[PartVerdict]:
    """The variables of transformWithState, for which Spark has rules of its own."""
    part = f"operator {old.id} variables"
    if query.own_check is not None:
        yield PartVerdict(part, BREAKS, query.own_check, REFUSES)
        return
    before, after = old.variables, new.variables
    added = ", ".join(sorted(after.keys() - before.keys()))
    gone = ", ".join(sorted(before.keys() - after.keys()))
    if added and gone:
        detail = f"{gone} becomes {added}, which starts empty: Spark knows variables by their names"
        yield PartVerdict(part, BREAKS, detail, MISBINDS)
        return
    detail = "; ".join(
        filter(None, (f"{added} added, empty" if added else "", f"{gone} removed" if gone else ""))
    )
    kept = [schema for schema in old.schemas if schema.family in after]
    news = {schema.family: schema for schema in new.schemas}
    evolved = [s.family for s in kept if s.family in news and s.value != news[s.family].value]
    if evolved:
        detail = "; ".join(filter(None, (detail, f"{', '.join(evolved)} has evolved")))
    listed = ", ".join(sorted(after)) or "none"
    yield PartVerdict(part, COMPATIBLE, detail or f"{listed}: {_UNSEEN}")


def _compare_windows(
    old: OperatorState, new: PlannedOperator, held: HeldWindows | None
) -> Iterator[PartVerdict]:
    if not old.windows:
        return
    part = f"operator {old.id} {old.windows[0][0]}"
    if not new.windows:
        yield PartVerdict(part, COMPATIBLE, "the plan does not show how long it is")
        return
    window = new.windows[0]
    misfit = held.explain_misfit(window) if held else None
    if misfit is not None:
        yield PartVerdict(part, BREAKS, misfit, MISBINDS)
    elif held is None or not held.spans:
        yield PartVerdict(part, COMPATIBLE, f"{window}; the length in the state is not known")
    elif window.kind == "session":
        yield PartVerdict(part, COMPATIBLE, f"gap of {window}; an earlier one may have been longer")
    elif window.slides and not held.shows_slide:
        detail = f"{window}; by how much the {len(held.spans)} in the state slide is not known"
        yield PartVerdict(part, COMPATIBLE, detail)
    else:
        yield PartVerdict(part, COMPATIBLE, f"{window}, as are the {len(held.spans)} in the state")
