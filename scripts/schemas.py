"""Derive the JSON Schemas of outputs from the dataclasses behind them.

`python -m scripts.schemas` writes them to docs/reference/schemas.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
import types
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from ebbtide.advice.options import RecoveryOption
from ebbtide.checkpoint import Backup, layout
from ebbtide.checkpoint.timeline import TimelinePart
from ebbtide.checkpoint.verification import Proof
from ebbtide.checks import BREAKS, COMPATIBLE, SAME, CheckKind, Verdict
from ebbtide.compatibility.verdicts import CompatibilityReport
from ebbtide.connectors.base import Replayed, SinkEvidence, SinkPlace, SinkPlan
from ebbtide.connectors.positions import GroupOffset, SourcePosition
from ebbtide.connectors.sources import QueryPosition
from ebbtide.history import Entry
from ebbtide.rewind import RewindPlan
from ebbtide.rewind.fork import Fork

FOLDER = Path(__file__).parents[1] / "docs" / "reference" / "schemas"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
Schema = dict[str, Any]


def of_type(kind: Any) -> Schema:
    """The schema of a type, as `json.dumps` writes its values.

    >>> of_type(tuple[int, ...])
    {'type': 'array', 'items': {'type': 'integer'}}
    >>> of_type(str | None)
    {'type': ['string', 'null']}
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is layout.Mode:
        return {"enum": [layout.EXACT, layout.REPLAN]}
    if origin is Annotated:
        return of_type(arguments[0])
    if origin in (Union, types.UnionType):
        return either(*map(of_type, arguments))
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return _of_tuple(arguments)
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": of_type(arguments[1])}
    if kind in _SIMPLE:
        return {"type": _SIMPLE[kind]}
    if inspect.isclass(kind) and issubclass(kind, Enum):
        return {"enum": [member.value for member in kind]}
    if is_dataclass(kind):
        return of_fields(kind)
    if inspect.isclass(kind) and issubclass(kind, tuple):
        return _of_tuple(tuple(get_type_hints(kind, include_extras=True).values()))
    return {}


def _of_tuple(arguments: tuple[Any, ...]) -> Schema:
    if arguments[-1] is Ellipsis:
        return {"type": "array", "items": of_type(arguments[0])}
    parts = [of_type(each) for each in arguments]
    return {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}


def either(*schemas: Schema) -> Schema:
    """One or the other; plain types in one list."""
    if all(set(each) == {"type"} for each in schemas):
        return {"type": [each["type"] for each in schemas]}
    return {"anyOf": list(schemas)}


def or_null(schema: Schema) -> Schema:
    """A value, or null."""
    return either(schema, {"type": "null"})


def of_fields(kind: Any, *, without: tuple[str, ...] = (), **others: Schema) -> Schema:
    """An object with the fields of a class, except those that are given here."""
    hints = get_type_hints(kind, include_extras=True)
    texts = _describe_fields(kind)
    fields = {
        name: of_type(hint) | ({"description": texts[name]} if name in texts else {})
        for name, hint in hints.items()
        if name not in (*without, *others) and "ClassVar" not in str(hint)
    }
    return of_object(**fields, **others)


def of_object(**fields: Schema) -> Schema:
    """An object that has all of these fields; a later version may have more."""
    return {"type": "object", "properties": fields, "required": list(fields)}


def array(schema: Schema) -> Schema:
    """A list of values."""
    return {"type": "array", "items": schema}


def _describe_fields(kind: Any) -> dict[str, str]:
    """The text below each field of a class."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    texts = {}
    body = getattr(tree, "body", [])
    for field, text in pairwise(body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(t))
            ):
                texts[name] = " ".join(t.split())
    return texts


def text(description: str) -> Schema:
    """A text, or null where there is none."""
    return {"type": ["string", "null"], "description": description}


STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
BOOLEAN: Schema = {"type": "boolean"}
NUMBER_OR_NULL: Schema = {"type": ["integer", "null"]}
TIME: Schema = {"type": ["string", "null"], "description": "ISO-8601 in UTC."}


def _inspect() -> Schema:
    batch = of_object(
        id=INTEGER,
        committed=BOOLEAN,
        restorable=BOOLEAN | {"description": "Whether logs and state hold what it needs."},
        reason=text("Why it is not restorable."),
        timestamp={"type": "string", "description": "When it was planned, ISO-8601 in UTC."},
        watermark=TIME,
        records=NUMBER_OR_NULL | {"description": "Records of Kafka that it read."},
        sources={"type": "array", "description": "The end offset of each source, as Spark has it."},
        replayable=BOOLEAN | {"description": "Whether the sources still hold its records, too."},
        replayable_until=TIME,
        estimate=BOOLEAN | {"description": "Whether that time depends on the query's pace."},
        closes_first=text("What ends that time: checkpoint, or the kind of a source."),
        closed=text("Why it is not replayable although it is restorable."),
    )
    operator = of_object(
        id=INTEGER,
        name={"type": ["string", "null"]},
        partitions=INTEGER,
        stores=INTEGER,
        store_names=array(STRING),
        oldest_version=NUMBER_OR_NULL,
        newest_version=NUMBER_OR_NULL,
        bytes=INTEGER | {"description": "Size of the newest version."},
    )
    return of_object(
        query_id=STRING,
        latest_batch=NUMBER_OR_NULL,
        oldest_restorable=NUMBER_OR_NULL,
        oldest_replayable=NUMBER_OR_NULL,
        batches=array(batch),
        operators=array(operator),
        unknown_files=array(STRING),
        interrupted=text("`rewind` or `undo`, if one was interrupted."),
        remarks=array(STRING),
    )


def _verify() -> Schema:
    verdict: Schema = {"enum": ["good", "gone", "broken"]}
    batch = of_object(id=INTEGER, verdict=verdict, reason=text("Why it is not good."))
    return of_object(
        query_id=STRING,
        whole=BOOLEAN | {"description": "Whether no batch is broken."},
        batches=array(batch),
        next=or_null(of_fields(Proof, verdict=verdict)),
        files=INTEGER,
        bytes=INTEGER,
        unknown_files=array(STRING),
    )


def _history() -> Schema:
    logged = {
        "id": INTEGER,
        "committed": BOOLEAN,
        "planned": TIME,
        "started": TIME,
        "rows": NUMBER_OR_NULL,
        "watermark": TIME,
        "sources": or_null(array({"type": ["string", "null"]})),
        "event_times": or_null(of_type(tuple[str, str])),
        "rebuilt": BOOLEAN,
    }
    run = of_fields(Entry, without=("batch",), **logged)
    # of a batch without an entry, only what the logs hold is known
    run["required"] = [*logged, "output"]
    part = of_fields(TimelinePart)
    return of_object(query_id=STRING, timeline=array(part), batches=array(run))


def _sink() -> Schema:
    planned = of_fields(SinkPlan, without=("sink",))
    return of_object(**of_fields(SinkPlace)["properties"], **planned["properties"])


def _plan() -> Schema:
    check = of_object(name=of_type(CheckKind), verdict=of_type(Verdict), detail=STRING, next=STRING)
    source = of_object(
        kind=STRING,
        current={"type": ["string", "null"]},
        new={"type": ["string", "null"]},
        topics=array(STRING),
        partitions=array(of_fields(Replayed, records=INTEGER)),
    )
    return of_fields(
        RewindPlan,
        format={"const": 2},
        checks=array(check),
        sources=array(source),
        partitions={"const": [], "description": "In `sources`."},
        sink=or_null(_sink()),
        sinks=array(_sink()),
        batches=INTEGER | {"description": "How many batches run again."},
        records=INTEGER | {"description": "How many Kafka records are read again."},
        digest=STRING | {"description": "Of everything else: an edited plan is refused."},
    )


def _backup() -> Schema:
    return of_fields(
        Backup,
        timeline=array(of_type(TimelinePart)),
        taken=INTEGER | {"description": "How many files left the checkpoint."},
        kept=INTEGER | {"description": "How many files are linked because Spark may remove them."},
        vanished=INTEGER | {"description": "How many files somebody else removed meanwhile."},
        appeared=INTEGER | {"description": "How many files somebody else wrote meanwhile."},
        sink=or_null(of_type(get_args(get_type_hints(Backup)["sinks"])[0])),
    )


def _offsets() -> Schema:
    groups = array(of_fields(GroupOffset))
    return of_fields(QueryPosition, sources=array(of_fields(SourcePosition, group_offsets=groups)))


def _sinks() -> Schema:
    evidence = of_fields(SinkEvidence, without=("sink",))
    return array(of_object(**of_fields(SinkPlace)["properties"], **evidence["properties"]))


def _advice() -> Schema:
    option = of_fields(RecoveryOption, possible=BOOLEAN, stops_stream=BOOLEAN)
    return of_object(
        name=STRING,
        pipeline={"type": ["string", "null"]},
        checkpoint=STRING,
        since=STRING,
        clock={"enum": ["processing time", "event time"]},
        timezone=STRING,
        first_batch=NUMBER_OR_NULL,
        found=STRING | {"description": "How `since` led to the first batch, or why it did not."},
        event_time_start=TIME,
        event_time_end=TIME,
        range=STRING | {"description": "Where these event times come from."},
        rewind=option,
        reprocess=option,
        recommended={"enum": ["rewind", "reprocess", None]},
        reason=STRING,
        caveats=array(STRING),
    )


def _check() -> Schema:
    verdict: Schema = {"enum": [SAME, COMPATIBLE, BREAKS]}
    return of_fields(CompatibilityReport, verdict=verdict, can_go_on=BOOLEAN)


SCHEMAS: dict[str, tuple[str, Callable[[], Schema]]] = {
    "inspect": ("ebbtide inspect", _inspect),
    "verify": ("ebbtide verify", _verify),
    "history": ("ebbtide history", _history),
    "rewind-plan": ("ebbtide rewind, and the file of --save-plan", _plan),
    "backup": ("ebbtide rewind --execute, apply and undo", _backup),
    "backups": ("ebbtide backups", lambda: array(_backup())),
    "offsets": ("ebbtide offsets", _offsets),
    "fork": ("ebbtide fork", lambda: of_fields(Fork, bytes=INTEGER, files=INTEGER)),
    "sinks": ("ebbtide sinks", _sinks),
    "plan": ("ebbtide plan", _advice),
    "check": ("ebbtide check", _check),
}
"""By the name of the file: which command prints it with `-o json`, and its schema."""


def render_schema(name: str) -> str:
    """The text of a schema's file."""
    title, make = SCHEMAS[name]
    schema = {"$schema": _DIALECT, "title": title, **make()}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Write every schema."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in SCHEMAS:
        (FOLDER / f"{name}.json").write_text(render_schema(name), "utf-8")


if __name__ == "__main__":
    main()
