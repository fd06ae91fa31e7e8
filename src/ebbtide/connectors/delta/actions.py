"""Read the actions of a Delta table's log, as far as we use them, and refuse damaged ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ebbtide.notes import INVALID, decode
from ebbtide.parsing import parse_json

Text, Number = str | None, int | None
_FILE: Mapping[str, Any] = {
    "path": str,
    "dataChange": bool | None,
    "stats": Text,
    "deletionVector": dict | None,
}
_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "add": {**_FILE, "modificationTime": int},
    "remove": {**_FILE, "deletionTimestamp": Number},
    "txn": {"appId": str, "version": int},
    "metaData": {"id": str, "configuration": dict[str, str | None] | None},
    "protocol": {
        "minReaderVersion": int,
        "minWriterVersion": int,
        "writerFeatures": tuple[str, ...] | None,
    },
    "commitInfo": {},
    "deletionVector": {"storageType": str, "pathOrInlineDv": str, "offset": Number},
}
"""By kind of action: the fields that we use; what may be null may also be missing."""


def parse_actions(text: str, version: int) -> tuple[Mapping[str, Any], ...]:
    """The actions of one version of a table; a ValueError if its log entry is damaged.

    >>> parse_actions('{"txn":{"appId":"a","version":3}}', 7)
    ({'txn': {'appId': 'a', 'version': 3}},)
    >>> parse_actions('{"txn":{"appId":"a"}}', 7)
    Traceback (most recent call last):
    ValueError: the log entry of version 7 is damaged
    """
    try:
        # not splitlines: a name may have a character that Python takes for the end of a line
        return tuple(_parse_action(line) for line in text.split("\n") if line.strip())
    except INVALID:
        raise ValueError(f"the log entry of version {version} is damaged") from None


def _parse_action(line: str) -> Mapping[str, Any]:
    given: Mapping[str, Any] = decode(dict, parse_json(line))
    action = {kind: value for kind, value in given.items() if value is not None}
    for kind, value in action.items():
        if kind in _FIELDS:
            _require_fields(kind, value)
    return action


def parse_summary(text: str, version: int) -> Mapping[str, Any]:
    """What Spark wrote on beside a version; empty if that does not say all that we need."""
    try:
        summary: Mapping[str, Any] = decode(dict, parse_json(text))
        if not summary.keys() >= {"protocol", "metadata", "setTransactions"}:
            return {}
        for txn in decode(list, summary["setTransactions"]):
            _require_fields("txn", txn)
        _require_fields("protocol", summary["protocol"])
        _require_fields("metaData", summary["metadata"])
    except INVALID:
        raise ValueError(f"the summary of version {version} is damaged") from None
    return summary


def count_rows(stats: str | None) -> int:
    """How many rows a file has, as its statistics say; 0 if they do not.

    >>> count_rows('{"numRecords":5}'), count_rows(None), count_rows("[]")
    (5, 0, 0)
    """
    try:
        return decode(int, parse_json(stats or "{}").get("numRecords", 0))
    except INVALID:
        return 0


def _require_fields(kind: str, value: Any) -> None:
    """Raise one of `INVALID` if the fields of an action that we use hold something else."""
    fields = decode(dict, value)
    for name, held in _FIELDS[kind].items():
        decode(held, fields.get(name))
    if fields.get("deletionVector") and kind != "deletionVector":
        _require_fields("deletionVector", fields["deletionVector"])
