"""Records of one batch neither hide nor spoil each other."""

from __future__ import annotations

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from ebbtide.connectors.spark.arrow_json import ArrowJson
from ebbtide.connectors.spark.arrow_times import parse_times

ARROW = ArrowJson(
    (("page", "string"), ("id", "int"), ("event_time", "timestamp")), "event_time", is_utc=True
)
TIME = '"event_time":"2025-09-04T07:00:00Z"'
MICROS = 1_756_969_200_000_000


def good(number: int) -> bytes:
    return f'{{"page":"page_{number}","id":{number},{TIME}}}'.encode()


def parse(*records: bytes | None) -> tuple[list[object], list[bool]]:
    parsed = ARROW.parse(pa.array(records, pa.binary()))
    ids = [row if ok else None for row, ok in zip(parsed.columns[1], parsed.proven, strict=True)]
    return [None if id_ is None else id_.as_py() for id_ in ids], parsed.proven.tolist()


def test_rows_stay_beside_their_records() -> None:
    assert parse(good(1), None, good(2), b"", b"x", good(3))[0] == [1, None, 2, None, None, 3]
    assert parse() == ([], [])
    assert parse(None, None)[1] == [False, False]
    assert parse(b"", b"")[1] == [False, False]


@pytest.mark.parametrize(
    "pair",
    [
        # together they are as many objects as records, or one that begins in the first
        (good(1) + good(2), b'{"page":"'),
        (b'{"page":"}', b'{","id":1,' + TIME.encode() + b"}" + good(2)),
        (b'{"page":{}', b"{},"[:2] + b',"id":1}'),
        (b'{"id":1,"a":{}', b'{"b":1}}'),
        (good(1) + b"\n" + good(2), b"{}"),
        (good(1) + b"\x00}", good(2) + good(3)),
    ],
)
def test_records_that_fit_together_prove_nothing(pair: tuple[bytes, bytes]) -> None:
    ids, proven = parse(good(7), *pair, good(8))
    assert proven[1:3] == [False, False]
    assert ids[0] in (7, None)
    assert ids[3] in (8, None)


@pytest.mark.parametrize("bad", [b'{"id":1.5}', b"{bad}", b'{"page":"\xff"}', b'{"id":"1"}'])
def test_a_bad_record_costs_its_neighbours_little(bad: bytes) -> None:
    records = [good(n) for n in range(1_000)]
    records[500] = bad
    parsed = ARROW.parse(pa.array(records, pa.binary()))
    assert parsed.proven.sum() >= 1_000 - 16
    assert not parsed.proven[500]
    assert parsed.columns[1][999].as_py() == 999


def test_many_bad_records_are_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    read_all = ArrowJson._read_all

    def count_reads(self: ArrowJson, texts: Any) -> Any:
        reads.append(len(texts))
        return read_all(self, texts)

    monkeypatch.setattr(ArrowJson, "_read_all", count_reads)
    ARROW.parse(pa.array([b"{bad}", good(1)] * 5_000, pa.binary()))
    assert len(reads) <= 200


def test_a_part_of_a_batch_is_read_from_its_place() -> None:
    values = pa.array([good(n) for n in range(10)], pa.binary())
    parsed = ARROW.parse(values.slice(4, 3))
    assert parsed.columns[1].to_pylist() == [4, 5, 6]


@pytest.mark.parametrize(
    ("record", "proven"),
    [
        (f"{{{TIME}}}", True),
        ('{"id":1}', False),  # no event time
        (f'{{"id":1,"id":2,{TIME}}}', False),
        (f'{{"more":NaN,{TIME}}}', False),
        (f'{{"page":"Information","more":"NaN",{TIME}}}', True),
        (f'{{"more":{"[" * 900}{"]" * 900},{TIME}}}', True),
        (f'{{"more":{"[" * 1_001}{"]" * 1_001},{TIME}}}', False),
        (f'{{"more":{"1" * 1_001},{TIME}}}', False),
        (f'{{"more":"{"x" * 60_000}",{TIME}}}', False),
        (f" {{{TIME}}}", False),
    ],
)
def test_what_only_arrow_accepts_is_not_proven(record: str, proven: bool) -> None:
    assert parse(record.encode())[1] == [proven]


def test_batches_keep_what_is_not_proven() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([good(1), b"x"], pa.binary())], ["value"])
    (out,) = ARROW.parse_batches(iter([batch]))
    assert out.schema.names == [*ARROW.columns, "value"]
    assert out.to_pylist() == [
        dict(zip(out.schema.names, ("page_1", 1, MICROS, None), strict=True)),
        dict(zip(out.schema.names, (None, None, None, b"x"), strict=True)),
    ]


def test_times_of_several_forms_and_lengths() -> None:
    texts = ["2025-09-04T07:00:00Z", "2025-09-04 09:00:00+02:00", None, "2025-09-04T07:00:00.5"]
    for is_utc in (True, False):
        micros, exact = parse_times(pa.array(texts), is_utc=is_utc)
        last = MICROS + 500_000 if is_utc else None
        assert micros.to_pylist() == [MICROS, MICROS, None, last]
        assert exact.tolist() == [True, True, True, is_utc]
