"""Folders of files: the log of the file source with `.compact`, and that of the file sink."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from ebbtide.checkpoint import Checkpoint, read_checkpoint
from ebbtide.connectors.base import SinkPlace, SourceRange
from ebbtide.connectors.files import changed, source
from ebbtide.connectors.files.evidence import examine_folder
from ebbtide.connectors.files.log import files_of_batch, read_sink_log
from ebbtide.connectors.files.position import seed
from ebbtide.connectors.positions import SourceStart
from ebbtide.connectors.registry import connector_of_offset
from ebbtide.connectors.streams import SourceLog
from ebbtide.storage import open_folder
from tests.fuzz.target import Target, scratch, to_text
from tests.trees import Shape, make

_NAMES = ("0", "1", "2.compact", "3")


@cache
def _sink() -> Path:
    folder = scratch() / "sink"
    (folder / "_spark_metadata").mkdir(parents=True)
    for batch in range(4):
        data = folder / f"part-{batch}.json"
        data.write_text("{}")
        (folder / "_spark_metadata" / str(batch)).write_text(f"v1\n{_sink_entry(data, batch)}")
    return folder


def _sink_entry(data: Path, batch: int) -> str:
    entry = {
        "path": data.as_uri(),
        "size": 2,
        "isDir": False,
        "modificationTime": 1_756_969_200_000 + batch,
        "blockReplication": 1,
        "blockSize": 33_554_432,
        "action": "add",
    }
    return json.dumps(entry, separators=(",", ":"))


def _entry_of(batch: int) -> str:
    return _sink_entry(_sink() / f"part-{batch}.json", batch)


@cache
def _checkpoint() -> Checkpoint:
    """A query that has read files."""
    folder = make(scratch() / "of-files", Shape(batches=4))
    for batch in range(4):
        head = '{"batchWatermarkMs":0,"batchTimestampMs":1756969200000,"conf":{}}'
        (folder / "offsets" / str(batch)).write_text(f'v1\n{head}\n{{"logOffset":{batch}}}')
    for name in _NAMES:
        (folder / "sources" / "0" / name).write_text("v1\n")
    return read_checkpoint(str(folder))


def _read_sink(data: bytes) -> None:
    """The entry of batch 2; the others are as they were."""
    folder = open_folder(str(_sink()))
    (_sink() / "_spark_metadata" / "2").write_bytes(data)
    examine_folder(SinkPlace("files", str(_sink()), str(_sink())), _checkpoint())
    log = read_sink_log(folder, 1)
    if log is not None:
        log.find_others(_checkpoint().logs)
        assert not any(".." in path.split("/") for path in log.taken)
    files_of_batch(folder, 2, (0, 10**15))


def _read_source(data: bytes) -> None:
    """One entry of the source's log, which the first byte chooses."""
    checkpoint, name = _checkpoint(), _NAMES[data[0] % 4 if data else 0]
    place = Path(checkpoint.location) / "sources" / "0"
    (place / name).write_bytes(data[1:])
    try:
        source.check_files(checkpoint, SourceRange(0, '{"logOffset":0}', None, _LAST), None)
        changed.list_folders(checkpoint, "0")
        source.FilesSource().list_read(SourceLog(checkpoint, "0", '{"logOffset":1}', _LAST))
        seed(SourceStart(checkpoint, 0, "sources/0", '{"logOffset":2}', _LAST))
    finally:
        (place / name).write_text("v1\n")


def _check_range(data: bytes) -> None:
    """Two offsets, a line each; nobody asks about those of another kind of source."""
    lines = [*to_text(data).split("\n"), ""][:2]
    if any(connector_of_offset(line).kind != "files" for line in lines):
        return
    source.check_files(_checkpoint(), SourceRange(0, lines[0], None, lines[1]), None)
    seed(SourceStart(_checkpoint(), 0, "sources/0", lines[0], lines[1]))
    source.FilesSource().list_read(SourceLog(_checkpoint(), "0", lines[0], lines[1]))


_LAST = '{"logOffset":3}'
_LISTED = [
    b'{"path":"file:///in/a%20b.json","timestamp":1756969200000,"batchId":2}',
    b'{"path":"file:///in/c.json","timestamp":1756969200001,"batchId":1}',
]
TARGETS = (
    Target(
        "sink-log",
        lambda: [
            (_sink() / "_spark_metadata" / "0").read_bytes(),
            b"v1\n"
            + b"\n".join(_sink_entry(_sink() / f"part-{n}.json", n).encode() for n in (1, 2)),
            b'v1\n{"path":"s3://b/c","action":"delete"}',
            b"v1",
        ],
        _read_sink,
    ),
    Target(
        "source-log",
        lambda: [bytes([n]) + b"v1\n" + b"\n".join(_LISTED) for n in range(4)],
        _read_source,
    ),
    Target("file-offsets", lambda: [b'{"logOffset":1}\n{"logOffset":3}'], _check_range),
)
