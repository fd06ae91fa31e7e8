"""Which Delta tables go back with Delta's library, which with Spark, and which not at all."""

from __future__ import annotations

import json
import shutil
import string
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from deltalake import CommitProperties, DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from ebbtide.checkpoint import SinkChange, read_checkpoint
from ebbtide.checks import Check
from ebbtide.connectors import spark_process
from ebbtide.connectors.delta.log import DeltaCommit, DeltaLog, find_state, open_table
from ebbtide.errors import CheckpointError, pip_line
from ebbtide.rewind import RewindRequest, apply_rewind, plan_rewind, undo_rewind
from ebbtide.rewind.lease import CHANGE, hold_lease, read_lease
from ebbtide.storage import open_writable
from tests.outputs import QUERY, rows_of, write_batches, write_partitions, written
from tests.trees import Shape, make

PLAIN = ["a b", "100%", "a=b", "a/b", "2025-01-01 10:00:00", "", None]
"""Values that Spark and Delta's library spell alike in the name of a file."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint with batches 0 to 6."""
    return make(tmp_path / "c", Shape("hdfs"))


def check(folder: Path, table: Path, remedy: str | None = "restore", batch: int = 4) -> Check:
    """What a plan says of the sink."""
    flags: dict[str, Any] = {"to_batch": batch, "sink": remedy, "sink_table": str(table)}
    plan = plan_rewind(RewindRequest.parse(str(folder), assume_stopped=True, **flags))
    return next(check for check in plan.checks if check.name == "sink")


def rewind(folder: Path, table: Path, batch: int = 4) -> None:
    flags: dict[str, Any] = {"to_batch": batch, "sink": "restore", "sink_table": str(table)}
    plan = plan_rewind(RewindRequest.parse(str(folder), assume_stopped=True, **flags))
    apply_rewind(plan, assume_stopped=True)


def undo(folder: Path) -> None:
    undo_rewind(str(folder), assume_stopped=True)


def edit(table: Path, version: int, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """Change the actions of a commit."""
    commit = table / "_delta_log" / f"{version:020}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    change(actions)
    commit.write_text("".join(f"{json.dumps(action)}\n" for action in actions))


def require(table: Path, *features: str, version: int = 0, writer: int = 7) -> None:
    """As if the table asked for features that a writer must know."""
    protocol = {"minReaderVersion": 1, "minWriterVersion": writer}
    if writer == 7:
        protocol["writerFeatures"] = list(features)  # type: ignore[assignment]

    def change(actions: list[dict[str, Any]]) -> None:
        next(action for action in actions if "protocol" in action)["protocol"] = protocol

    edit(table, version, change)


# --- names of files and folders ---------------------------------------------------------------


@pytest.mark.parametrize("compacted", [False, True])
def test_partitions_that_are_spelled_alike_go_back_without_spark(
    compacted: bool, folder: Path, tmp_path: Path
) -> None:
    # the library cannot merge files with such a name
    table, values = tmp_path / "table", PLAIN if compacted else [*PLAIN, string.punctuation]
    write_partitions(table, range(7), values)
    before = rows_of(table)
    if compacted:
        DeltaTable(str(table)).optimize.compact()
    assert "Spark" not in check(folder, table).detail
    rewind(folder, table)
    assert rows_of(table) == sorted(f"{batch} {value}" for batch in range(4) for value in values)
    undo(folder)
    assert rows_of(table) == before
    rewind(folder, table, 0)
    assert rows_of(table) == []
    # Spark compares the names as they stand in the log
    log = DeltaLog(str(table))
    files = [file for commit in log.after(-1, log.newest) for file in commit.files]
    assert {f for kind, f in files if kind == "remove"} == {f for kind, f in files if kind == "add"}


@pytest.mark.parametrize("value", ["Köln", "日本"])
@pytest.mark.parametrize("batch", [0, 4])
def test_partitions_that_are_spelled_differently_go_back_with_spark(
    value: str, batch: int, folder: Path, tmp_path: Path
) -> None:
    """Delta's library would take out a file p=K%C3%B6ln/…, which Spark does not know."""
    table = tmp_path / "table"
    write_partitions(table, range(7), ["plain", value])
    found = check(folder, table, batch=batch)
    assert found.verdict == "ok"
    assert "with Spark, which takes a minute" in found.detail
    assert f"would mistake p={value}/part-" in found.detail


def test_only_what_changes_is_looked_at(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "table"
    write_partitions(table, range(2), ["Köln"])
    write_partitions(table, range(2, 7), ["plain"])
    rewind(folder, table)
    assert rows_of(table) == ["0 Köln", "1 Köln", "2 plain", "3 plain"]


@pytest.mark.parametrize("name", ["a b", "100%", "#1", "a?b", "Köln", "it's", "[a]", "a;b&c"])
def test_a_table_in_a_folder_with_any_name(name: str, folder: Path, tmp_path: Path) -> None:
    table = tmp_path / name
    write_batches(tmp_path / "t", range(7))
    (tmp_path / "t").rename(table)
    DeltaTable(str(table)).optimize.compact()
    rewind(folder, table)
    assert rows_of(table) == written(range(4))
    undo(folder)
    assert rows_of(table) == written(range(7))
    DeltaTable(str(table)).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert "(vacuumed): part-" in check(folder, table).detail


def test_a_name_that_the_library_takes_for_another(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "%41"
    write_batches(tmp_path / "A", range(2))
    write_batches(tmp_path / "t", range(7))
    (tmp_path / "t").rename(table)
    state, opened = find_state(str(table)), open_table(str(table))
    assert state is not None
    assert opened is not None
    assert (state.version, state.noted(QUERY), opened.version) == (6, 6, 6)
    files = [unquote(file) for file in opened.snapshot_files(4)]
    assert (len(files), opened.missing(files)) == (5, [])
    found = check(folder, table)
    assert found.verdict == "ok"
    assert "from version 6 to version 3" in found.detail
    assert "with Spark, which takes a minute: Delta's library cannot read it" in found.detail


# --- others -----------------------------------------------------------------------------------


CHANGES: dict[str, Callable[[DeltaTable], object]] = {
    "UPDATE": lambda table: table.update({"row": "'x'"}, predicate="row = '7b3c 1 0'"),
    "DELETE": lambda table: table.delete("row = '7b3c 1 0'"),
    "MERGE": lambda table: (
        table.merge(pa.table({"row": ["7b3c 1 0"]}), "t.row = s.row", "s", "t")
        .when_matched_delete()
        .execute()
    ),
    "SET TBLPROPERTIES": lambda table: table.alter.set_table_properties({"delta.appendOnly": "0"}),
    "ADD COLUMN": lambda table: table.alter.add_columns(Field("more", PrimitiveType("string"))),
    "WRITE": lambda table: write_deltalake(
        table, pa.table({"other": [1]}), mode="overwrite", schema_mode="overwrite"
    ),
}


@pytest.mark.parametrize("operation", CHANGES)
def test_whatever_others_did_is_not_undone(operation: str, folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "table"
    write_batches(table, range(7))
    CHANGES[operation](DeltaTable(str(table)))
    found = check(folder, table)
    assert found.verdict == "refuse"
    assert f"version 7 ({operation}" in found.detail


def test_a_log_that_begins_with_a_checkpoint(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "table"
    write_batches(table, range(3))
    DeltaTable(str(table)).create_checkpoint()
    write_batches(table, range(3, 7))
    for version in range(3):
        (table / "_delta_log" / f"{version:020}.json").unlink()
    # several versions in one file, as some writers add it
    actions = [(table / "_delta_log" / f"{v:020}.json").read_text() for v in range(3, 6)]
    (table / "_delta_log" / f"{3:020}.{5:020}.compacted.json").write_text("".join(actions))
    rewind(folder, table)
    assert rows_of(table) == written(range(4))
    undo(folder)
    assert rows_of(table) == written(range(7))
    assert check(folder, table, batch=2).verdict == "refuse"


@pytest.mark.parametrize("to_time", [False, True])
def test_a_restore_by_others_is_named(to_time: bool, folder: Path, tmp_path: Path) -> None:
    """Batches 2 to 6 were taken out, and the query ran on: they would come back, 2 and 3 not."""
    table = tmp_path / "table"
    write_batches(table, range(7))
    DeltaTable(str(table)).restore(1, commit_properties=CommitProperties())
    if to_time:
        edit(table, 7, lambda actions: actions[0]["commitInfo"].update(operationParameters={}))
    found = check(folder, table)
    assert found.verdict == "refuse"
    assert "others have changed the table since" in found.detail
    assert "version 7 (RESTORE" in found.detail
    write_batches(table, (7,))
    found = check(make(tmp_path / "d", Shape("hdfs", batches=8)), table)
    assert (found.verdict, "version 7 (RESTORE" in found.detail) == ("refuse", not to_time)
    # the batch after it does not undo it
    assert check(tmp_path / "d", table, batch=7).verdict == "ok"


def test_our_own_restores_are_not_those_of_others(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "table"
    write_batches(table, range(7))
    rewind(folder, table, 2)
    write_batches(table, range(2, 5), read_checkpoint(str(folder)).logs.query_id)
    undo(folder)
    rewind(folder, table, 1)
    undo(folder)
    assert rows_of(table) == written(range(7))


def test_a_mark_that_spark_wrote_is_read() -> None:
    marks = {"ebbtide": "backup", "ebbtide-query": QUERY}
    info = {"operation": "DELETE", "userMetadata": json.dumps(marks)}
    ours = DeltaCommit(3, ({"commitInfo": info},))
    assert (ours.mark, ours.restores, ours.is_of([QUERY])) == ("backup", -1, True)
    for text in ("by hand", "[1]", ""):
        theirs = DeltaCommit(3, ({"commitInfo": {"operation": "DELETE", "userMetadata": text}},))
        assert (theirs.mark, theirs.is_restore, theirs.is_of([QUERY])) == (None, False, False)


# --- features ---------------------------------------------------------------------------------


def test_features_that_the_library_cannot_write(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "table"
    write_batches(table, range(7))
    require(table, "appendOnly", "rowTracking", "domainMetadata")
    found = check(folder, table)
    assert found.verdict == "ok"
    assert "cannot write its features domainMetadata, rowTracking" in found.detail


@pytest.mark.parametrize("remedy", ["restore", "append-again"])
def test_without_spark_the_extra_is_named(
    remedy: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a function's table even append-again sets back what it has noted."""
    table = tmp_path / "table"
    write_batches(table, range(7), "my-app")
    require(table, "inCommitTimestamp")
    monkeypatch.setitem(sys.modules, "pyspark", None)
    found = check(folder, table, remedy)
    assert found.verdict == "refuse"
    assert "needs the extra 'spark'" in found.detail
    assert "inCommitTimestamp" in found.detail
    assert found.next == f"Type: {pip_line('spark')}"
    assert found.next.endswith("'pyspark==4.2.*'")
    # with Spark, Delta's jar is enough: no Python package of it is needed
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "delta", None)
    assert check(folder, table, remedy).verdict != "refuse"


def test_a_protocol_that_the_query_itself_has_changed(folder: Path, tmp_path: Path) -> None:
    """As a new column of some types does; the library panics then, and the change hangs."""
    table = tmp_path / "table"
    write_batches(table, range(7))
    features = {"readerFeatures": ["timestampNtz"], "writerFeatures": ["timestampNtz"]}
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}
    edit(table, 5, lambda actions: actions.append(protocol))
    assert "before a change of the protocol" in check(folder, table).detail
    rewind(folder, table, 6)
    assert rows_of(table) == written(range(6))


def test_old_tables_with_identity_columns(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "table"
    write_batches(table, range(7))
    require(table, writer=6)
    assert "its features identityColumns" in check(folder, table).detail


@pytest.mark.parametrize("feature", ["catalogManaged", "coordinatedCommits-preview"])
def test_commits_that_lie_elsewhere(feature: str, folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "table"
    write_batches(table, range(7))
    require(table, feature)
    found = check(folder, table)
    assert found.verdict == "refuse"
    assert f"do not all lie in its log ({feature})" in found.detail


def test_what_the_library_cannot_read_is_read_from_the_log(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "%41"
    write_batches(tmp_path / "t", range(7), logRetentionDuration="interval 2 days")
    (tmp_path / "t").rename(table)
    DeltaTable(str(shutil.copytree(table, tmp_path / "copy"))).create_checkpoint()
    log = DeltaLog(str(table))
    from_commits = log.read_state()
    assert from_commits.configuration == {"delta.logRetentionDuration": "interval 2 days"}
    # as Spark sums up a version; what came before it may be gone
    summary = {
        "protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["x"]},
        "metadata": {"id": "id", "configuration": {"a": "b"}},
        "setTransactions": [{"appId": QUERY, "version": 2}, {"appId": "other", "version": 9}],
    }
    (table / "_delta_log" / f"{3:020}.crc").write_text(json.dumps(summary))
    for version in range(3):
        (table / "_delta_log" / f"{version:020}.json").unlink()
    state = DeltaLog(str(table)).read_state()
    assert (state.version, state.id, set(state.features)) == (6, "id", {"x"})
    assert (state.noted(QUERY), state.noted("other"), state.noted("none")) == (6, 9, None)
    (table / "_delta_log" / f"{3:020}.crc").unlink()
    found = check(folder, table)
    assert found.verdict == "refuse"
    assert "its log has neither version 2 nor a summary of it" in found.detail


def test_a_deletion_vector_that_was_vacuumed(folder: Path, tmp_path: Path) -> None:
    """The file is still there, but which of its rows were deleted at that version is not."""
    table = tmp_path / "table"
    write_batches(table, range(7))
    name = json.loads((table / "_delta_log" / f"{3:020}.json").read_text().splitlines()[1])
    old = {"storageType": "u", "pathOrInlineDv": ".e!S$C@d*qQg1(ThuB&G", "offset": 1}
    new = {"storageType": "u", "pathOrInlineDv": "<P<ns++[ftNgFz#4ZpI*", "offset": 1}
    sizes = {"sizeInBytes": 34, "cardinality": 1}
    file = name["add"]
    edit(table, 3, lambda actions: actions[1]["add"].update(deletionVector=old | sizes))
    edit(
        table,
        5,
        lambda actions: actions.extend(
            [
                {
                    "remove": {"path": file["path"], "dataChange": True, "deletionTimestamp": 1}
                    | {"deletionVector": old | sizes}
                },
                {"add": {**file, "deletionVector": new | sizes}},
            ]
        ),
    )
    found = check(folder, table)
    assert found.verdict == "refuse"
    assert "deletion_vector_c172e539-7934-4180-a261-181b36021bd6.bin" in found.detail
    (table / "deletion_vector_c172e539-7934-4180-a261-181b36021bd6.bin").touch()
    assert check(folder, table).verdict == "ok"


def test_the_process_with_spark_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    """Before it has a session; a table must not be set back after the change was run again."""
    change = asdict(SinkChange("delta", str(tmp_path), 6, 3))
    job = json.dumps({"function": "none:none", "change": change, "marks": {}})
    with subprocess.Popen(
        [sys.executable, "-c", spark_process.CODE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        said, _ = process.communicate(f"{job}\n")
    assert (process.returncode, said) == (1, "")


def test_a_lease_is_renewed_while_spark_takes_its_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others take over if it does not change for a minute."""
    monkeypatch.setattr("ebbtide.rewind.lease._RENEW_SECONDS", 0.001)
    opened = open_writable(str(folder))
    with hold_lease(opened, CHANGE):
        first = read_lease(opened, CHANGE)
        for _ in range(1_000):
            if (last := read_lease(opened, CHANGE)) != first:
                break
            time.sleep(0.005)
        assert first is not None
        assert last is not None
        assert last.renewed > first.renewed


def test_an_undo_before_there_is_a_table(tmp_path: Path) -> None:
    folder, table = make(tmp_path / "c", Shape("hdfs", batches=1, committed=0)), tmp_path / "table"
    rewind(folder, table, 0)
    undo(folder)
    assert read_checkpoint(str(folder)).logs.query_id == QUERY


def test_an_undo_that_would_need_spark_is_refused_without_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table"
    write_batches(table, range(7))
    rewind(folder, table)
    require(table, "rowTracking", version=7)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(CheckpointError, match="needs the extra 'spark'"):
        undo(folder)
    assert rows_of(table) == written(range(4))
