"""Spark's logs: offsets, commits, the query's id, where Kafka began, offsets of sources."""

from __future__ import annotations

from contextlib import suppress

from ebbtide.checkpoint import log_files
from ebbtide.connectors.base import SourceRange
from ebbtide.connectors.delta.source import DeltaOffset, check_table, find_range
from ebbtide.connectors.registry import connector_of_offset
from ebbtide.history.store import _plain
from ebbtide.parsing import parse_json
from ebbtide.report.overview import parse_source
from ebbtide.storage import open_folder
from ebbtide.times import in_utc
from tests.fuzz.seeds import choose, parts
from tests.fuzz.target import Target, scratch, to_text


def _read_offsets(data: bytes) -> None:
    entry = log_files.parse_offsets(to_text(data), "offsets/1")
    _ = entry.by_name, entry.partitions
    in_utc(entry.timestamp_ms)
    in_utc(entry.watermark_ms)
    batch = log_files.Batch(1, entry, log_files.CommitEntry(0))
    logs = log_files.Logs("c", "q", (batch,), "")
    logs.records(batch)
    _plain(entry.sources)
    for text in entry.sources:
        _show_offset(text)


def _show_offset(text: str | None) -> None:
    parse_source(text)
    source = connector_of_offset(text).source
    if text is not None and connector_of_offset(text).label:
        source.format_offset(parse_json(text))
        source.names_in(text)


def _read_commit(data: bytes) -> None:
    entry = log_files.parse_commit(to_text(data), "commits/1")
    in_utc(entry.next_watermark_ms)


def _read_query_id(data: bytes) -> None:
    folder = scratch() / "metadata"
    folder.mkdir(exist_ok=True)
    (folder / "metadata").write_bytes(data)
    log_files.read_query_id(open_folder(str(folder)))


def _read_start(data: bytes) -> None:
    text = log_files.parse_initial_offset(to_text(data))
    log_files.kafka_positions([text])
    if text is not None:
        log_files.parse_kafka_offset(text)


def _compare_offsets(data: bytes) -> None:
    """Three offsets of a Delta source, a line each: what a rewind reads again."""
    lines = [*to_text(data).split("\n"), "", ""][:3]
    for line in lines:
        _show_offset(line)
    check_table(None, SourceRange(0, *lines))
    with suppress(KeyError, TypeError, ValueError):  # its callers have looked at it before
        start, first, end = map(DeltaOffset.parse, lines)
        find_range(start, first, end)


_DELTA = (
    b'{"sourceVersion":1,"reservoirId":"a8ae","reservoirVersion":4,"index":-1,'
    b'"isStartingVersion":true}'
)
_OFFSETS = (
    *(b'{"visits":{"0":5,"1":7},"clicks":{"0":-1}}', b'{"logOffset":3}', _DELTA),
    *(_DELTA.replace(b"true", b"false").replace(b"-1", b"9223372036854775707"), b"-", b"17"),
)
_HEAD = (
    b'{"batchWatermarkMs":1756969200000,"batchTimestampMs":1756969205000,"conf":{'
    b'"spark.sql.shuffle.partitions":"4","spark.sql.streaming.stateStore.providerClass":"a.B"}'
)
_MIXED = b"v1\n" + _HEAD + b"}\n" + b"\n".join(_OFFSETS)
_NAMED = (
    b"v2\n"
    + _HEAD
    + b',"controlBatchInfo":{"a":1}}\nvisits:{"visits":{"0":5}}\n1:-\n0:{"logOffset":1}'
)

TARGETS = (
    Target(
        "offsets",
        lambda: choose(lambda path: "offsets" in parts(path), _MIXED, _NAMED),
        _read_offsets,
        share=60,
    ),
    Target(
        "commits",
        lambda: choose(
            lambda path: "commits" in parts(path),
            b'v3\n{"nextBatchWatermarkMs":9,"stateUniqueIds":{"0":[["a","b"],[]]}}',
        ),
        _read_commit,
        share=60,
    ),
    Target(
        "query-id",
        lambda: choose(lambda path: path.endswith("/metadata") and "state" not in parts(path)),
        _read_query_id,
    ),
    Target(
        "kafka-start",
        lambda: choose(lambda path: "sources" in parts(path) and path.endswith("/0")),
        _read_start,
        (ValueError,),
    ),
    Target(
        "source-offsets",
        lambda: [b"\n".join((one, two, one)) for one in _OFFSETS for two in _OFFSETS[:4]],
        _compare_offsets,
        share=40,
    ),
)
