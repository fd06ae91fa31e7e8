"""What the stateful operators of Spark 3.5 keep: it notes no schema before a batch has run."""

from __future__ import annotations

import json
from typing import Any

from ebbtide.compatibility.operators import (
    AGGREGATION,
    DEDUPLICATION,
    DEDUPLICATION_WITHIN,
    GROUPS,
    GROUPS_IN_PANDAS,
    JOIN,
    LIMIT,
    SESSIONS,
    OperatorState,
)
from ebbtide.compatibility.plans import class_of, items, private_field
from ebbtide.compatibility.schemas import StateSchema

OPERATORS = {
    "StateStoreSaveExec": AGGREGATION,
    "SessionWindowStateStoreSaveExec": SESSIONS,
    "StreamingDeduplicateExec": DEDUPLICATION,
    "StreamingDeduplicateWithinWatermarkExec": DEDUPLICATION_WITHIN,
    "StreamingSymmetricHashJoinExec": JOIN,
    "FlatMapGroupsWithStateExec": GROUPS,
    "FlatMapGroupsInPandasWithStateExec": GROUPS_IN_PANDAS,
    "StreamingGlobalLimitExec": LIMIT,
}
"""The physical operators with state that every version has, and the names of Spark 4."""


def describe(jvm: Any, id_: int, node: Any) -> OperatorState:
    """What an operator would keep, by the schemas that it hands to its stores."""
    name = OPERATORS[class_of(node)]
    make = {
        AGGREGATION: _aggregation,
        SESSIONS: _sessions,
        DEDUPLICATION: _deduplication,
        DEDUPLICATION_WITHIN: _deduplication,
        JOIN: _join,
        GROUPS: _groups,
        GROUPS_IN_PANDAS: _groups,
        LIMIT: _limit,
    }[name]
    return OperatorState(id_, name, tuple(make(jvm, node)))


def _aggregation(jvm: Any, node: Any) -> list[StateSchema]:
    key = _struct(jvm, node.keyExpressions())
    return [StateSchema("default", key, _parse(node.stateManager().getStateValueSchema()))]


def _sessions(_jvm: Any, node: Any) -> list[StateSchema]:
    manager = private_field(node, "stateManager")
    key, value = manager.getStateKeySchema(), manager.getStateValueSchema()
    return [StateSchema("default", _parse(key), _parse(value))]


def _deduplication(jvm: Any, node: Any) -> list[StateSchema]:
    key = _struct(jvm, node.keyExpressions())
    return [StateSchema("default", key, _parse(private_field(node, "schemaForValueRow")))]


def _groups(jvm: Any, node: Any) -> list[StateSchema]:
    key = _struct(jvm, node.groupingAttributes())
    return [StateSchema("default", key, _parse(node.stateManager().stateSchema()))]


def _limit(_jvm: Any, node: Any) -> list[StateSchema]:
    key, value = (_parse(private_field(node, name)) for name in ("keySchema", "valueSchema"))
    return [StateSchema("default", key, value)]


def _join(jvm: Any, node: Any) -> list[StateSchema]:
    """Two stores for each side: how many rows a key has, and each row under key and number."""
    schemas = []
    count = _fields(("value", "long", True))
    for side in ("left", "right"):
        keys = items(getattr(node, f"{side}Keys")())
        fields = [
            (f"field{index}", json.loads(each.dataType().json()), bool(each.nullable()))
            for index, each in enumerate(keys)
        ]
        row = _struct(jvm, getattr(node, side)().output())
        if int(node.stateFormatVersion()) > 1:
            matched = _fields(("matched", "boolean", True))["fields"]
            row = {**row, "fields": [*row["fields"], *matched]}
        numbered = _fields(*fields, ("index", "long", True))
        schemas += [
            StateSchema(f"{side}-keyToNumValues", _fields(*fields), count),
            StateSchema(f"{side}-keyWithIndexToValue", numbered, row),
        ]
    return schemas


def _fields(*fields: tuple[str, Any, bool]) -> dict[str, Any]:
    listed = [
        {"name": name, "type": kind, "nullable": nullable, "metadata": {}}
        for name, kind, nullable in fields
    ]
    return {"type": "struct", "fields": listed}


def _struct(jvm: Any, attributes: Any) -> dict[str, Any]:
    utils = getattr(jvm, "org.apache.spark.sql.catalyst.types.DataTypeUtils$")
    return _parse(getattr(utils, "MODULE$").fromAttributes(attributes))


def _parse(schema: Any) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(schema.json())
    return parsed
