"""Delta tables: actions, summaries and checkpoints of the log, read without Spark."""

from __future__ import annotations

import json
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from ebbtide.connectors.base import SinkPlace
from ebbtide.connectors.delta import held
from ebbtide.connectors.delta.evidence import examine_table
from ebbtide.connectors.delta.log import (
    DeltaLog,
    find_state,
    load_table,
    newest_version,
    open_table,
    parse_interval,
    table_errors,
)
from ebbtide.connectors.delta.rollback import readable
from ebbtide.connectors.delta.table_file import TableFile
from tests.fuzz.target import Target, scratch, to_text
from tests.fuzz.targets.files import _checkpoint

_METADATA: dict[str, Any] = {
    "id": "a8ae5cf3-1a7e-4e0f-8b6e-0d7b8f2b9a11",
    "name": None,
    "description": None,
    "format": {"provider": "parquet", "options": {}},
    "schemaString": json.dumps(
        {
            "type": "struct",
            "fields": [{"name": "n", "type": "long", "nullable": True, "metadata": {}}],
        }
    ),
    "partitionColumns": [],
    "configuration": {"delta.logRetentionDuration": "interval 30 days"},
    "createdTime": 1_756_969_200_000,
}
_PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
_TXN = {"appId": "7b3c", "version": 3, "lastUpdated": 1_756_969_200_000}


def _add(number: int) -> dict[str, object]:
    return {
        "path": f"part-{number}.parquet",
        "partitionValues": {},
        "size": 700,
        "modificationTime": 1_756_969_200_000 + number,
        "dataChange": True,
        "stats": '{"numRecords":5}',
        "deletionVector": None,
    }


def _lines(*actions: dict[str, object]) -> bytes:
    return b"\n".join(json.dumps(action, separators=(",", ":")).encode() for action in actions)


_COMMITS = (
    _lines({"protocol": _PROTOCOL}, {"metaData": _METADATA}, {"add": _add(0)}),
    _lines(
        {
            "commitInfo": {
                "timestamp": 1_756_969_200_000,
                "operation": "STREAMING UPDATE",
                "operationParameters": {"outputMode": "Append", "epochId": "3"},
                "operationMetrics": {"numOutputRows": "5"},
                "engineInfo": "Apache-Spark/4.2.0",
                "userMetadata": '{"ebbtide":"b1","ebbtide-query":"7b3c"}',
            }
        },
        {"txn": _TXN},
        {"add": _add(1)},
        {
            "remove": {
                "path": "part-0.parquet",
                "deletionTimestamp": 1_756_969_200_000,
                "dataChange": True,
                "deletionVector": {
                    "storageType": "u",
                    "pathOrInlineDv": "ab.e!S$C@d*qQg1(ThuB&G",
                    "offset": 1,
                    "sizeInBytes": 34,
                    "cardinality": 2,
                },
            }
        },
    ),
    _lines(
        {"commitInfo": {"operation": "RESTORE", "operationParameters": {"version": "0"}}},
        {"txn": {"appId": "my-function", "version": 2}},
    ),
)
_SUMMARY = json.dumps(
    {
        "txnId": "ab",
        "tableSizeBytes": 700,
        "numFiles": 1,
        "setTransactions": [_TXN],
        "metadata": _METADATA,
        "protocol": {**_PROTOCOL, "minWriterVersion": 7, "writerFeatures": ["appendOnly"]},
    }
).encode()


@cache
def _log(name: str) -> Path:
    """A table of three versions; each target damages its own."""
    folder = scratch() / name / "_delta_log"
    folder.mkdir(parents=True)
    for version, content in enumerate(_COMMITS):
        (folder / f"{version:020}.json").write_bytes(content)
    return folder


def _read_commit(data: bytes) -> None:
    """A version as we read it, without Delta's library."""
    log = DeltaLog(str(_log("commits").parent))
    (_log("commits") / f"{2:020}.json").write_bytes(data)
    with readable(log.path):
        commits = [*log.commits(0, 2).values(), *log.lineage(2), *log.after(0, 2)]
        for commit in commits:
            _ = commit.files, commit.added, commit.removed, commit.noted, commit.rows
            _ = commit.changes, commit.complete, commit.restores, commit.mark, str(commit)
            commit.is_of({"7b3c"})
            for _, file in commit.files:
                _ = file.needs
        held.find_function(held.read_apps(log.path, 2), 5)
        log.read_state()


def _read_summary(data: bytes) -> None:
    """The summary of a version, from which we read what Delta's library cannot."""
    log = DeltaLog(str(_log("summaries").parent))
    (_log("summaries") / f"{2:020}.crc").write_bytes(data)
    with readable(log.path):
        state = log.read_state()
        state.noted("7b3c")
        for text in state.configuration.values():
            parse_interval(text)


def _open(data: bytes) -> None:
    """A version as a rewind comes upon it: Delta's library first, then we."""
    folder = _log("tables")
    (folder / f"{1:020}.json").write_bytes(data)
    path = str(folder.parent)
    examine_table(SinkPlace("delta", path, path), _checkpoint())
    with readable(path):
        newest_version(path)
        table = open_table(path)
        if table is not None:
            table.snapshot_files(table.version)


@cache
def _checkpoint_file() -> bytes:
    """A checkpoint of the table, as Delta's library writes it."""
    folder = _log("checkpoints")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load_table(str(folder.parent)).create_checkpoint()
    return next(folder.glob("*.checkpoint.parquet")).read_bytes()


def _open_checkpoint(data: bytes) -> None:
    _checkpoint_file()
    folder = _log("checkpoints")
    next(folder.glob("*.checkpoint.parquet")).write_bytes(data)
    (folder / f"{0:020}.json").unlink(missing_ok=True)
    with readable(str(folder.parent)):
        find_state(str(folder.parent))


def _open_pointer(data: bytes) -> None:
    """Which checkpoint of the log is the last one."""
    folder = _log("pointers")
    (folder / "_last_checkpoint").write_bytes(data)
    with readable(str(folder.parent)):
        find_state(str(folder.parent))


def _parse_interval(data: bytes) -> None:
    try:
        parse_interval(to_text(data))
    except table_errors():
        return


def _name_files(data: bytes) -> None:
    """The files that a deletion vector needs."""
    kind, _, name = to_text(data).partition(" ")
    with readable("/t"):
        _ = TableFile("part-0.parquet", (kind, name, 0)).needs


TARGETS = (
    Target("delta-commit", lambda: list(_COMMITS), _read_commit, share=15),
    Target("delta-summary", lambda: [_SUMMARY], _read_summary, share=15),
    Target("delta-table", lambda: list(_COMMITS), _open, share=2, native=True),
    Target(
        "delta-checkpoint", lambda: [_checkpoint_file()], _open_checkpoint, share=2, native=True
    ),
    Target(
        "delta-pointer",
        lambda: [b'{"version":1,"size":5,"parts":2,"sizeInBytes":900,"numOfAddFiles":1}'],
        _open_pointer,
        share=2,
        native=True,
    ),
    Target(
        "delta-interval",
        lambda: [b"interval 1 week 12 hours", b"interval 30 days", b"1 microsecond"],
        _parse_interval,
    ),
    Target(
        "delta-vector", lambda: [b"u ab.e!S$C@d*qQg1(ThuB&G", b"p file:///t/a.bin"], _name_files
    ),
)
