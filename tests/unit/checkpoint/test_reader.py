"""Logs and reader over small trees, built here and by Hypothesis."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.checkpoint import layout, log_files, read_checkpoint
from ebbtide.errors import CheckpointError
from ebbtide.notes import read_note, remove_note, write_note
from ebbtide.storage import open_folder
from tests.conftest import Cli
from tests.trees import build

OFFSETS = st.dictionaries(
    st.integers(0, 50).map(str), st.integers(0, 2**62), min_size=1, max_size=5
)


@given(
    watermark=st.integers(0, 2**53),
    at=st.integers(0, 2**53),
    sources=st.lists(st.none() | OFFSETS.map(lambda o: json.dumps({"t": o})), max_size=4),
    version=st.sampled_from(["v1", "v2"]),
)
def test_offsets_of_both_formats_read_alike(
    watermark: int, at: int, sources: list[str | None], version: str
) -> None:
    meta = {"batchWatermarkMs": watermark, "batchTimestampMs": at, "conf": {"a": "b"}}
    lines = ["-" if source is None else source for source in sources]
    if version == "v2":
        lines = [
            line if source is None else f"{n}:{line}"
            for n, (line, source) in enumerate(zip(lines, sources, strict=True))
        ]
    entry = log_files.parse_offsets("\n".join([version, json.dumps(meta), *lines]), "offsets/3")
    assert (entry.watermark_ms, entry.timestamp_ms, entry.conf) == (watermark, at, {"a": "b"})
    assert entry.sources == tuple(sources)


@pytest.mark.parametrize("text", ["", "v9\n{}", "v1", "v1\nnot json", "v1\n[1]", "\0\0"])
def test_what_is_no_offset_log_is_named(text: str) -> None:
    with pytest.raises(CheckpointError, match=r"offsets/3 is not a log file"):
        log_files.parse_offsets(text, "offsets/3")


def test_commits_of_every_format() -> None:
    for version in ("v1", "v2", "v3"):
        text = f'{version}\n{{"nextBatchWatermarkMs":9,"stateUniqueIds":{{}}}}'
        assert log_files.parse_commit(text, "commits/1").next_watermark_ms == 9


@given(OFFSETS)
def test_kafka_offsets(offsets: dict[str, int]) -> None:
    found = log_files.parse_kafka_offset(json.dumps({"visits": offsets}))
    assert found == {"visits": {int(p): o for p, o in offsets.items()}}


def test_a_checkpoint_is_read(tmp_path: Path) -> None:
    found = read_checkpoint(str(build(tmp_path / "c", batches=4, committed=3)))
    assert found.logs.query_id == "7b3c"
    assert [
        (b.id, b.commit.next_watermark_ms if b.commit else None) for b in found.logs.batches
    ] == [
        (0, 5),
        (1, 5),
        (2, 5),
        (3, None),
    ]
    assert found.logs.latest_committed is not None
    assert found.logs.latest_committed.id == 2
    assert found.unknown == ()


def test_any_fsspec_filesystem_will_do(tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(str(build(tmp_path / "c", 2, 2)), "/bucket/c", recursive=True)
    assert len(read_checkpoint("memory://bucket/c").logs.batches) == 2
    folder = open_folder("memory://bucket/c")
    write_note(folder, "x.json", {"a": 1})
    assert read_note(folder, "x.json") == {"a": 1}
    remove_note(folder, "x.json")
    assert read_note(folder, "x.json") is None


def test_inspect_shows_batches(inside: Cli, tmp_path: Path) -> None:
    folder = build(tmp_path / "c", batches=3, committed=2)
    found = json.loads(inside("inspect", folder, "-o", "json").stdout)
    assert found["query_id"] == "7b3c"
    assert found["latest_batch"] == 2
    shown = {
        "id": 2,
        "committed": False,
        "restorable": True,
        "reason": None,
        "timestamp": "1970-01-01T00:00:01.002Z",
        "watermark": "1970-01-01T00:02:00.000Z",
        "records": 3,
        "sources": [{"visits": {"0": 2, "1": 4}}],
    }
    assert found["batches"][2] == found["batches"][2] | shown
    assert (found["oldest_restorable"], found["operators"]) == (0, [])
    table = inside("inspect", folder).stdout
    assert "visits 0:2" in table
    assert max(map(len, table.splitlines())) <= 80


def test_inspect_refuses_what_is_no_checkpoint(inside: Cli, tmp_path: Path) -> None:
    answer = inside("inspect", tmp_path)
    assert answer.returncode == 1
    assert "is not a checkpoint: it has no file 'metadata'" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_query_that_is_known_is_named(tmp_path: Path, inside: Cli) -> None:
    folder = build(tmp_path / "c", 3, 3)
    assert "Query 7b3c. Times" in inside("inspect", folder).stderr
    write_note(open_folder(str(folder)), layout.OWNER, {"pipeline": "pages"})
    assert "Query pages, 7b3c. Times" in inside("inspect", folder).stderr
