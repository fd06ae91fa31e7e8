"""What the campaign has found: each input once, and what is said of it now."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest

from ebbtide.connectors.delta.actions import parse_actions
from ebbtide.connectors.delta.log import DeltaLog, LoggedTable
from ebbtide.connectors.delta.source import DeltaOffset, VersionRange
from ebbtide.connectors.delta.table_file import TableFile
from ebbtide.errors import CheckpointError
from ebbtide.processes import find_process
from ebbtide.times import EPOCH
from tests.fuzz.targets import all_targets
from tests.fuzz.watch import SECONDS, Watch

DEEP = b"[" * 5000
ONE_BYTE = b"\x08\0\0"
"""How a block of zstd begins that is one byte long."""


@dataclass(frozen=True)
class Found:
    """An input that was a fault."""

    target: str
    data: bytes
    says: str = ""
    """A part of the message; nothing if it is no error."""
    seconds: float = SECONDS
    """Less than the campaign allows where the largest input took about as long."""


def java(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def lz4(content: bytes) -> bytes:
    return b"LZ4Block" + struct.pack("<BiiI", 0x16, len(content), len(content), 0) + content


def commit(**action: object) -> bytes:
    return json.dumps(action).encode()


def summary(**changed: object) -> bytes:
    whole = {
        "protocol": {"minReaderVersion": 1, "minWriterVersion": 2},
        "metadata": {"id": "a"},
        "setTransactions": [],
    }
    return json.dumps({**whole, **changed}).encode()


def listed(path: object = "/a", timestamp: object = 1) -> bytes:
    entry = {"path": path, "timestamp": timestamp, "batchId": 2}
    return b"\x03v1\n" + json.dumps(entry).encode()


NO_ZONE, DAMAGED = "There is no time zone", "the log entry of version 2 is damaged"
RESTORE = {"operation": "RESTORE", "operationParameters": {"version": "2"}}
FOUND = {
    "a zone that is a folder": Found("environment", b"\n\nAmerica", NO_ZONE),
    "a zone of 5,000 letters": Found("environment", b"\n\n" + b"9" * 5000, NO_ZONE),
    "a zone of many parts": Found("environment", b"\n\nEurope" + b"/Warsaw" * 2000, NO_ZONE),
    "a zone on the command line": Found(
        "command-line", b"history\n@/c\n--timezone\nEurope/" + b"9" * 300
    ),
    "the home of nobody": Found("environment", b"~nobody-here/x", "home folder of a user"),
    "a file of nobody": Found("environment", b"\n\n\n~nobody-here/x", "home folder of a user"),
    "a deep list in toml": Found("toml", b"checkpoints = " + DEEP, "nested too deep"),
    "a deep table in toml": Found(
        "toml", b"[kafka]\n" + b".".join([b"a"] * 3000) + b" = 1", "nested too deep"
    ),
    "a long number in toml": Found("toml", b"home = " + b"9" * 5000, "cannot be read"),
    "a NUL in toml": Found("toml", b'home = "a\\u0000b"', "has home = "),
    "a line of properties in many parts": Found("properties", b"a\\\n" * 340_000, seconds=0.8),
    "a login with many options": Found("jaas", b"a.B required" + b" y=z" * 60_000 + b";"),
    "a record of the year 3,170,843,000": Found("record", b'{"at":100000000000000000}'),
    "a checkpoint in 60,000 folders": Found("recent", b'["' + b"/" * 60_000 + b'a", "/b/a"]'),
    "a store at a NUL": Found(
        "kafka-properties",
        b"security.protocol=SSL\nssl.truststore.location=a\\u0000b",
        "which cannot be read: embedded null byte",
    ),
    "PEM without an end": Found("store", b"-----BEGIN A-----" * 40_000),
    "PEM with labels without an end": Found(
        "store", b"".join(b"-----BEGIN A%d-----" % n for n in range(40_000))
    ),
    "settings in settings": Found(
        "hadoop-site",
        b"<c><property><name>a</name><value>" + b"${a}" * 10 + b"</value></property></c>",
    ),
    "a deep entry of a sink's log": Found("sink-log", b"v1\n" + DEEP, "is damaged"),
    "a file of a sink with a NUL": Found(
        "sink-log", b'v1\n{"path":"file:///s%00.json"}', "which lies elsewhere"
    ),
    "a listed file without a path": Found("source-log", listed(path=[]), "is no list of files"),
    "a listed file of no time": Found(
        "source-log", listed(timestamp=float("inf")), "is no list of files"
    ),
    "a commit that is no object": Found("delta-commit", b"null", DAMAGED),
    "an action that is no object": Found("delta-commit", commit(txn=5), DAMAGED),
    "a writer without a name": Found("delta-commit", commit(txn={"version": 2}), DAMAGED),
    "a batch that is infinite": Found(
        "delta-commit", commit(txn={"appId": "a", "version": float("inf")}), DAMAGED
    ),
    "a file without a path": Found("delta-commit", commit(add={"path": 5}), DAMAGED),
    "a vector that lies nowhere": Found(
        "delta-commit",
        commit(add={"path": "a", "modificationTime": 1, "deletionVector": {"storageType": "u"}}),
        DAMAGED,
    ),
    "a protocol without versions": Found("delta-commit", commit(protocol={}), DAMAGED),
    "settings that are a number": Found(
        "delta-commit", commit(metaData={"id": "a", "configuration": 5}), DAMAGED
    ),
    "a writer that is a number": Found("delta-commit", commit(commitInfo=5), DAMAGED),
    "parameters that are a number": Found(
        "delta-commit", commit(commitInfo={"operation": "RESTORE", "operationParameters": 0})
    ),
    "a time that is a text": Found("delta-commit", commit(commitInfo={"timestamp": "2026"})),
    "rows that are none": Found(
        "delta-commit", commit(commitInfo={"operationMetrics": {"numOutputRows": [{}]}})
    ),
    "statistics that are a list": Found(
        "delta-commit", commit(add={"path": "a", "modificationTime": 1, "stats": "[]"})
    ),
    "a restore of itself": Found("delta-commit", commit(commitInfo=RESTORE)),
    "a summary that is a number": Found("delta-summary", b"0", "the summary of version 2"),
    "a summary of no writers": Found(
        "delta-summary", summary(setTransactions=None), "the summary of version 2"
    ),
    "a summary of a writer without a name": Found(
        "delta-summary", summary(setTransactions=[{}]), "the summary of version 2"
    ),
    "an interval of a million years": Found("delta-interval", b"interval 99999999999 days"),
    "an interval of 60,000 digits": Found("delta-interval", b"9" * 60_000),
    "a broker of no process": Found(
        "broker-note", b'{"pid":[],"port":1,"started":1.5,"controller_port":2}'
    ),
    "a broker below zero": Found(
        "broker-note", b'{"pid":-1,"port":1,"started":1.5,"controller_port":2}'
    ),
    "a deep note of a broker": Found("broker-note", DEEP),
    "a lease of a process below zero": Found(
        "note-old-lease", all_targets()["note-old-lease"].seeds()[0].replace(b"4000000", b"-1")
    ),
    "a deep journal of a run": Found("run", DEEP, "cannot be read"),
    "a deep event": Found("event", DEEP, "nested too deep"),
    "a deep lineage": Found(
        "changelog", lz4(java("v3") + java(DEEP.decode())), "it names no ancestors"
    ),
    "a lineage of no version": Found(
        "changelog",
        lz4(java("v3") + java('[{"version":Infinity,"checkpointUniqueId":"a"}]')),
        "it names no ancestors",
    ),
    "a changelog of blocks of a byte": Found(
        "changelog",
        b"\x28\xb5\x2f\xfd\x00\x40" + b"".join([ONE_BYTE + b"a"] * 30_000),
        "it does not begin within",
    ),
    "a plan of a check that says a number": Found(
        "plan",
        re.sub(b'"detail": "[^"]*"', b'"detail": 5', all_targets()["plan"].seeds()[0]),
        "This is not a plan",
    ),
    "a plan of a source without topics": Found(
        "plan",
        all_targets()["plan"].seeds()[0].replace(b'"topics"', b'"tropics"'),
        "This is not a plan",
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_is_one_line_in_time(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("EBBTIDE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    found = FOUND[name]
    watch = Watch(all_targets()[found.target], found.seconds)
    with watch.limits():
        watch.run(found.data)
    assert not watch.failures, watch.failures
    if found.says:
        with pytest.raises(watch.target.allowed, match=found.says):
            watch.target.play(found.data)


def test_a_range_of_versions_is_not_counted_through(tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    for version in (0, 1, 2, 5, 10**15):
        (log / f"{version:020}.json").write_text("{}")
    table = LoggedTable(str(tmp_path), "a", 5, EPOCH - EPOCH, EPOCH - EPOCH)
    assert VersionRange(None, 0, 2).missing_from(table) is None
    assert VersionRange(None, 3, 2).missing_from(table) is None
    assert VersionRange(None, 0, 2**62).missing_from(table) == (3, 2**62)
    assert VersionRange(None, 1, 5).missing_from(table) == (3, 4)
    assert VersionRange(None, 6, 7).missing_from(table) == (6, 7)
    assert table.between(-(2**62), 2**62) == [0, 1, 2, 5, 10**15]


def test_a_name_may_have_what_python_takes_for_the_end_of_a_line() -> None:
    add = {"path": "day=\u2028\x85/part-0.parquet", "modificationTime": 1}
    line = json.dumps({"add": add, "txn": None}, ensure_ascii=False)
    assert parse_actions(f"{line}\r\n\n{line}\n", 0) == ({"add": add}, {"add": add})


def test_an_offset_of_another_source_is_none_of_a_delta_table() -> None:
    for text in ("{}", "[]", '{"logOffset":3}', '{"reservoirId":"a","reservoirVersion":Infinity}'):
        with pytest.raises(ValueError, match="is no offset of a Delta table"):
            DeltaOffset.parse(text)


def test_a_process_with_a_number_below_zero_is_not_there() -> None:
    assert find_process(-1, 0.0) is None


def test_a_first_offset_that_is_cut_off_is_said(tmp_path: Path) -> None:
    from ebbtide.runtime.dead_letters import _first_offsets
    from ebbtide.storage import open_folder

    file = tmp_path / "sources" / "0" / "0"
    file.parent.mkdir(parents=True)
    folder = open_folder(str(tmp_path))
    assert _first_offsets(folder, "visits") == {}
    file.write_bytes(b'\0v1\n{"visits":{"0":5}}')
    assert _first_offsets(folder, "visits") == {0: 5}
    for cut in (b"\0v1", b"", b'\0v1\n{"visits"', b"\0v1\n" + DEEP):
        file.write_bytes(cut)
        with pytest.raises(CheckpointError, match="does not say where the query began"):
            _first_offsets(folder, "visits")


def test_a_null_in_a_delta_log_is_nothing(tmp_path: Path) -> None:
    """As old versions of delta-rs write a property without a value."""
    log = tmp_path / "_delta_log"
    log.mkdir()
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2, "writerFeatures": None}
    metadata = {"id": "a", "configuration": {"delta.logRetentionDuration": None, "b": "c"}}
    actions = ({"protocol": protocol, "add": None}, {"metaData": metadata})
    (log / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))
    state = DeltaLog(str(tmp_path)).read_state()
    assert (state.id, state.configuration) == ("a", {"b": "c"})
    vector = {"storageType": "u", "pathOrInlineDv": "ab"}
    with_null = TableFile.of({"path": "p", "deletionVector": {**vector, "offset": None}})
    assert with_null == TableFile.of({"path": "p", "deletionVector": vector})
