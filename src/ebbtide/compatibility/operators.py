"""The stateful operators that a folder with state describes: a checkpoint, or what Spark planned.

Spark 4.0 and later write an operator's name; for a checkpoint of Spark 3.5 the kind is recognized
by the schema of the state, which differs for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ebbtide.compatibility.schemas import (
    UNREADABLE,
    StateSchema,
    find_delays,
    find_event_times,
    find_windows,
    names_of,
    read_schema_file,
)
from ebbtide.errors import CheckpointError
from ebbtide.parsing import parse_id, parse_json
from ebbtide.storage import Folder, Tree

AGGREGATION, SESSIONS = "stateStoreSave", "sessionWindowStateStoreSaveExec"
DEDUPLICATION, DEDUPLICATION_WITHIN = "dedupe", "dedupeWithinWatermark"
JOIN, LIMIT = "symmetricHashJoin", "globalLimit"
GROUPS, GROUPS_IN_PANDAS = "flatMapGroupsWithState", "applyInPandasWithState"
WITH_VARIABLES = "transformWithState"
LABELS = {
    AGGREGATION: "aggregation",
    SESSIONS: "session windows",
    DEDUPLICATION: "dropDuplicates",
    DEDUPLICATION_WITHIN: "dropDuplicatesWithinWatermark",
    JOIN: "stream-stream join",
    LIMIT: "limit",
    GROUPS: "flatMapGroupsWithState",
    GROUPS_IN_PANDAS: "applyInPandasWithState",
}
"""How users call what Spark's metadata names."""


@dataclass(frozen=True)
class OperatorState:
    """What one stateful operator keeps: its kind, and the schema of each store."""

    id: int
    name: str | None
    """As Spark's metadata names it; None if nothing tells."""
    schemas: tuple[StateSchema, ...]
    properties: Mapping[str, Any] = field(default_factory=dict)
    """Of transformWithState: its mode, time mode and variables."""
    is_guess: bool = False
    """Whether the name is not Spark's own: 3.5 writes none."""

    @property
    def label(self) -> str:
        """The kind as users call it."""
        if self.has_variables:
            return WITH_VARIABLES
        return LABELS.get(self.name or "", self.name or "unknown")

    @property
    def has_variables(self) -> bool:
        """Whether it is a transformWithState, whose state is in variables."""
        return (self.name or "").startswith(WITH_VARIABLES)

    @property
    def variables(self) -> Mapping[str, str]:
        """Of transformWithState: the user's variables and their types."""
        listed = self.properties.get("stateVariables") or ()
        kinds = {str(one["stateName"]): str(one["stateVariableType"]) for one in listed}
        return {name: kind for name, kind in kinds.items() if not name.startswith("$")}

    @property
    def windows(self) -> tuple[tuple[str, str], ...]:
        """The windows of event time in its state: kind and field."""
        return tuple(window for schema in self.schemas for window in find_windows(schema))

    @property
    def delays(self) -> frozenset[int]:
        """The delays of the watermarks, in milliseconds, that its state shows."""
        return frozenset(delay for schema in self.schemas for delay in find_delays(schema))

    @property
    def event_times(self) -> frozenset[str]:
        """The columns with a watermark that its state shows."""
        return frozenset(name for schema in self.schemas for name in find_event_times(schema))

    @property
    def is_closed_in_time(self) -> bool:
        """Whether it aggregates until the watermark passes: append writes that, and drops it."""
        is_aggregation = self.name in (AGGREGATION, SESSIONS)
        return is_aggregation and bool(self.windows or self.event_times)


def read_operators(folder: Folder, tree: Tree) -> tuple[OperatorState, ...]:
    """The operators that a folder's `state` describes, in order of their ids."""
    ids = sorted(
        id_
        for directory in tree
        if directory.count("/") == 1
        and directory.startswith("state/")
        and (id_ := parse_id(directory.split("/")[1])) is not None
    )
    return tuple(_read_operator(folder, tree, id_) for id_ in ids)


def _read_operator(folder: Folder, tree: Tree, id_: int) -> OperatorState:
    root = f"state/{id_}"
    noted = _read_metadata(folder, tree, root)
    paths = {
        **{
            f"{directory}/schema": _store_of(directory) for directory in _schema_folders(tree, root)
        },
        **{f"{root}/_stateSchema/default/{_base(path)}": "default" for path in noted.paths[-1:]},
    }
    schemas = tuple(
        schema for path, store in sorted(paths.items()) for schema in _read(folder, path, store)
    )
    if noted.name is None:
        return OperatorState(id_, guess_name(schemas), schemas, noted.properties, is_guess=True)
    return OperatorState(id_, noted.name, schemas, noted.properties)


def _schema_folders(tree: Tree, root: str) -> list[str]:
    """The folders in partition 0 that hold a schema."""
    return [
        directory
        for directory, listing in tree.items()
        if directory.startswith(f"{root}/0/")
        and directory.endswith("/_metadata")
        and "schema" in listing.members
    ]


def _store_of(directory: str) -> str:
    parts = directory.split("/")
    return parts[3] if len(parts) == 5 else "default"


def _base(path: str) -> str:
    return path.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class _Noted:
    """What Spark notes about an operator."""

    name: str | None = None
    paths: tuple[str, ...] = ()
    """The files with its schemas, the newest last."""
    properties: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> _Noted:
        noted = parse_json(text.split("\n", 1)[1])
        stores = list(noted.get("stateStoreInfo") or ())
        paths = [str(path) for one in stores for path in one.get("stateSchemaFilePaths") or ()]
        properties = parse_json(noted.get("operatorPropertiesJson") or "{}")
        for variable in properties.get("stateVariables") or ():
            variable["stateName"], variable["stateVariableType"]
        name = (noted.get("operatorInfo") or {}).get("operatorName")
        return cls(None if name is None else str(name), tuple(paths), properties)


def _read_metadata(folder: Folder, tree: Tree, root: str) -> _Noted:
    """Spark's own text about an operator: one file, or the newest of a series by batch."""
    series = tree.get(f"{root}/_metadata/v2")
    numbers = [
        id_ for name in (series.names if series else ()) if (id_ := parse_id(name)) is not None
    ]
    path = f"{root}/_metadata/v2/{max(numbers)}" if numbers else f"{root}/_metadata/metadata"
    text = folder.read(path)
    try:
        return _Noted.parse(text) if text else _Noted()
    except (*UNREADABLE, IndexError):
        raise _damaged(folder, path, "it does not describe an operator") from None


def _read(folder: Folder, path: str, store: str) -> tuple[StateSchema, ...]:
    content = folder.read_bytes(path)
    try:
        return read_schema_file(content, store) if content else ()
    except UNREADABLE as error:
        raise _damaged(folder, path, str(error)) from None


def _damaged(folder: Folder, path: str, why: str) -> CheckpointError:
    return CheckpointError(
        f"{folder.url}/{path} cannot be read: {why}.", "Restore it from a copy of the checkpoint."
    )


def guess_name(schemas: tuple[StateSchema, ...]) -> str | None:
    """The kind of an operator by the schema of its state; None if there is none."""
    if any(schema.label.startswith(("left-", "right-")) for schema in schemas):
        return JOIN
    if not schemas:
        return None
    keys, values = names_of(schemas[0].key), names_of(schemas[0].value)
    if "sessionStartTime" in keys:
        return SESSIONS
    if values == ["__dummy__"]:
        return DEDUPLICATION
    if values == ["expiresAtMicros"]:
        return DEDUPLICATION_WITHIN
    if [field["type"] for field in schemas[0].key["fields"]] == ["void"]:
        return LIMIT
    if values[:1] == ["groupState"] or values[-1:] == ["timeoutTimestamp"]:
        return GROUPS
    return AGGREGATION
