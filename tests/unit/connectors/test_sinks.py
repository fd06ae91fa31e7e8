"""What Delta tables and file sinks do with batches that run again, and how they go back."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable

from ebbtide.checkpoint import Backup, read_checkpoint
from ebbtide.checks import Check
from ebbtide.connectors import SinkPlace
from ebbtide.errors import CheckpointError, UsageError
from ebbtide.rewind import (
    RewindPlan,
    RewindRequest,
    apply_rewind,
    plan_rewind,
    undo_rewind,
)
from ebbtide.rewind.backups import prune_backups
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import open_folder
from tests.conftest import Cli
from tests.outputs import QUERY, rows_of, shown, write_batches, write_files, written
from tests.power import PowerCutError, cut
from tests.trees import Shape, make, snapshot


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint with batches 0 to 6."""
    return make(tmp_path / "c", Shape("hdfs"))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """What its query wrote."""
    write_batches(tmp_path / "table", range(7))
    return tmp_path / "table"


def plan(folder: Path, sink: Path, batch: int = 4, remedy: str | None = None) -> RewindPlan:
    named = "sink_table" if (sink / "_delta_log").exists() else "sink_files"
    flags: dict[str, Any] = {"to_batch": batch, "sink": remedy, named: str(sink)}
    return plan_rewind(RewindRequest.parse(str(folder), assume_stopped=True, **flags))


def check(plan: RewindPlan) -> Check:
    (found,) = (check for check in plan.checks if check.name == "sink")
    return found


def rewind(folder: Path, sink: Path, batch: int = 4, remedy: str = "restore") -> Backup:
    return apply_rewind(plan(folder, sink, batch, remedy), assume_stopped=True)


def query_id(folder: Path) -> str:
    return read_checkpoint(str(folder)).logs.query_id


def run_on(folder: Path, last: int) -> None:
    """The query runs on: the same batches again, as another timeline."""
    other = make(folder.parent / "other", Shape("hdfs", batches=last + 1, seed="new"))
    for path, content in snapshot(other).items():
        if not (folder / path).exists() and not path.endswith(("metadata.crc", ".tmp")):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)


def test_a_table_that_would_skip_stops_the_rewind(folder: Path, table: Path) -> None:
    found = check(plan(folder, table))
    assert found.verdict == "refuse"
    assert "batches 4 to 6 would be skipped, and new data up to batch 6 lost" in found.detail
    assert "--sink restore (the table back to version 3)" in found.next
    assert "6 rows would be there twice" in found.next


def test_a_table_goes_back_and_an_undo_brings_it_back(folder: Path, table: Path) -> None:
    before = snapshot(folder)
    asked = plan(folder, table, remedy="restore")
    assert check(asked).verdict == "ok"
    assert "from version 6 to version 3" in check(asked).detail
    assert RewindPlan.from_dict(json.loads(json.dumps(asked.to_dict()))) == asked
    apply_rewind(asked, assume_stopped=True)
    assert rows_of(table) == written(range(4))
    new = query_id(folder)
    assert new != QUERY
    assert not (folder / ".metadata.crc").exists()
    # the query runs on, with its new id: nothing is skipped
    run_on(folder, 5)
    write_batches(table, (4, 5), new)
    undo_rewind(str(folder), assume_stopped=True)
    assert rows_of(table) == written(range(7))
    assert snapshot(folder) == before
    # and back again
    undo_rewind(str(folder), assume_stopped=True)
    assert rows_of(table) == sorted(written(range(4)) + written((4, 5), new))
    assert query_id(folder) == new


def test_rows_are_left_and_come_again_if_asked(folder: Path, table: Path) -> None:
    asked = plan(folder, table, remedy="append-again")
    assert check(asked).verdict == "warn"
    assert "6 rows would be there twice" in check(asked).detail
    apply_rewind(asked, assume_stopped=True)
    assert rows_of(table) == written(range(7))
    assert DeltaTable(str(table)).version() == 6
    new = query_id(folder)
    write_batches(table, (4,), new)
    run_on(folder, 4)
    undo_rewind(str(folder), assume_stopped=True)
    assert rows_of(table) == written(range(7))
    assert query_id(folder) == QUERY


def test_others_are_named_and_not_undone(folder: Path, table: Path) -> None:
    write_batches(table, (0,), None)
    found = check(plan(folder, table, remedy="restore"))
    assert found.verdict == "refuse"
    assert "others have changed the table since" in found.detail
    assert "version 7 (WRITE" in found.detail
    assert check(plan(folder, table, remedy="append-again")).verdict == "warn"


def test_those_before_the_batch_do_not_matter(folder: Path, tmp_path: Path) -> None:
    write_batches(tmp_path / "t", range(4))
    write_batches(tmp_path / "t", (0,), None)
    write_batches(tmp_path / "t", range(4, 7))
    rewind(folder, tmp_path / "t")
    assert rows_of(tmp_path / "t") == sorted(written(range(4)) + written((0,), None))


def test_merged_files_are_nobodys_work(folder: Path, table: Path) -> None:
    DeltaTable(str(table)).optimize.compact()
    rewind(folder, table)
    assert rows_of(table) == written(range(4))


def test_an_undo_is_refused_where_it_would_undo_others(folder: Path, table: Path) -> None:
    rewind(folder, table)
    write_batches(table, (0,), None)
    with pytest.raises(CheckpointError, match="cannot go back with the checkpoint: others"):
        undo_rewind(str(folder), assume_stopped=True)
    assert query_id(folder) != QUERY
    undo_rewind(str(folder), assume_stopped=True, leave_sink=True)
    assert query_id(folder) == QUERY
    assert rows_of(table) == sorted(written(range(4)) + written((0,), None))


def test_a_table_written_to_meanwhile_is_left_alone(folder: Path, table: Path) -> None:
    before = snapshot(folder)
    asked = plan(folder, table, remedy="restore")
    write_batches(table, (7,), None)
    with pytest.raises(CheckpointError, match="has changed since the plan"):
        apply_rewind(asked, assume_stopped=True)
    assert snapshot(folder) == before
    assert Backup.read_all(open_folder(str(folder))) == []


def test_a_table_written_to_at_the_last_moment_is_left_alone(
    folder: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(folder)
    asked = plan(folder, table, remedy="restore")
    real = DeltaTable.restore

    def late(self: DeltaTable, *arguments: object, **more: object) -> object:
        write_batches(table, (7,), None)
        return real(self, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(DeltaTable, "restore", late)
    with pytest.raises(CheckpointError, match="The checkpoint is as it was before"):
        apply_rewind(asked, assume_stopped=True)
    assert snapshot(folder) == before
    assert rows_of(table) == sorted(written(range(7)) + written((7,), None))


def test_from_the_first_batch_the_table_loses_all_rows(folder: Path, table: Path) -> None:
    rewind(folder, table, 0)
    assert rows_of(table) == []
    undo_rewind(str(folder), assume_stopped=True)
    assert rows_of(table) == written(range(7))


def test_a_second_rewind_follows_what_the_table_shows(folder: Path, table: Path) -> None:
    rewind(folder, table, 2)
    second = query_id(folder)
    run_on(folder, 6)
    write_batches(table, range(2, 7), second)
    # of the second timeline, though the first one wrote a batch 4, too
    rewind(folder, table, 4)
    assert rows_of(table) == sorted(written(range(2)) + written((2, 3), second))
    # before the second timeline began
    run_on(folder, 6)
    third = query_id(folder)
    write_batches(table, range(4, 7), third)
    rewind(folder, table, 1)
    assert rows_of(table) == written(range(1))


def test_an_older_backup_that_knows_nothing_of_the_sink(folder: Path, table: Path) -> None:
    old = apply_rewind(
        plan_rewind(RewindRequest(str(folder), ToBatch(2), assume_stopped=True, remedy="none")),
        assume_stopped=True,
    )
    run_on(folder, 6)
    rewind(folder, table)
    with pytest.raises(CheckpointError, match="does not say how it was"):
        undo_rewind(str(folder), old.id, assume_stopped=True)
    undo_rewind(str(folder), old.id, assume_stopped=True, leave_sink=True)
    assert query_id(folder) == QUERY


def test_vacuumed_files_stop_a_restore(folder: Path, table: Path) -> None:
    whole = DeltaTable(str(table))
    whole.optimize.compact()
    DeltaTable(str(table)).vacuum(
        retention_hours=0, dry_run=False, enforce_retention_duration=False
    )
    found = check(plan(folder, table, remedy="restore"))
    assert found.verdict == "refuse"
    assert "data files of version 3 are gone (vacuumed)" in found.detail
    assert check(plan(folder, table, remedy="append-again")).verdict == "warn"


@pytest.mark.parametrize("batch", [0, 4])
def test_an_append_only_table_loses_no_row(folder: Path, tmp_path: Path, batch: int) -> None:
    table = tmp_path / "t"
    write_batches(table, range(7), appendOnly="true")
    found = check(plan(folder, table, batch, remedy="restore"))
    assert found.verdict == "refuse"
    assert "append-only (delta.appendOnly)" in found.detail
    assert "append-again" in found.next
    # nor by an undo, once there are new ones
    rewind(folder, table, batch, "append-again")
    undo_rewind(str(folder), assume_stopped=True)
    rewind(folder, table, batch, "append-again")
    write_batches(table, (batch,), query_id(folder))
    run_on(folder, batch)
    with pytest.raises(CheckpointError, match="append-only"):
        undo_rewind(str(folder), assume_stopped=True)


def test_a_log_that_was_cleaned_up_stops_a_restore(folder: Path, table: Path) -> None:
    DeltaTable(str(table)).create_checkpoint()
    for version in range(6):
        (table / "_delta_log" / f"{version:020}.json").unlink()
    found = check(plan(folder, table, remedy="restore"))
    assert found.verdict == "refuse"
    assert "does not show batch 4 or one before it" in found.detail
    assert check(plan(folder, table, remedy="append-again")).verdict == "warn"


def test_a_writer_with_notes_of_its_own_is_recognised(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "t"
    write_batches(table, range(7), "my-app")
    found = check(plan(folder, table))
    assert found.verdict == "refuse"
    assert "batches 4 to 6 would be skipped" in found.detail
    assert "my-app, which foreachBatch passes as txnAppId" in found.detail
    rewind(folder, table)
    assert rows_of(table) == written(range(4), "my-app")
    assert DeltaTable(str(table)).transaction_version("my-app") == 3
    assert query_id(folder) == QUERY
    write_batches(table, (4,), "my-app")
    undo_rewind(str(folder), assume_stopped=True)
    assert rows_of(table) == written(range(7), "my-app")
    assert DeltaTable(str(table)).transaction_version("my-app") == 6


def test_several_writers_with_notes_of_their_own_are_named(folder: Path, tmp_path: Path) -> None:
    for app in ("one", "two"):
        write_batches(tmp_path / "t", range(7), app)
    found = check(plan(folder, tmp_path / "t"))
    assert "two (up to 6), one (up to 6)" in found.detail
    assert check(plan(folder, tmp_path / "t", remedy="restore")).verdict == "refuse"


def test_a_table_that_another_query_writes(folder: Path, tmp_path: Path) -> None:
    write_batches(tmp_path / "t", range(7), None)
    found = check(plan(folder, tmp_path / "t"))
    assert (found.verdict, "shows no batch of query 7b3c" in found.detail) == ("refuse", True)
    assert "most likely another table" in found.detail
    assert check(plan(folder, tmp_path / "t", remedy="restore")).verdict == "refuse"


def test_a_table_restored_by_hand_only_needs_a_new_id(folder: Path, table: Path) -> None:
    """As after Spark's RESTORE: the rows are gone, and the noted batches are not."""
    DeltaTable(str(table)).restore(3, commit_properties=CommitProperties(custom_metadata={}))
    found = check(plan(folder, table))
    assert "batches 4 to 6 would be skipped" in found.detail
    assert "no row is there twice" in found.next
    rewind(folder, table, remedy="append-again")
    assert rows_of(table) == written(range(4))
    assert query_id(folder) != QUERY


def test_a_sink_that_is_not_there_is_another(folder: Path, tmp_path: Path) -> None:
    """Batch 4 is done, so it must have been written somewhere: a name is mistyped."""
    wanted = RewindRequest(str(folder), ToBatch(4), assume_stopped=True)
    for named in (
        replace(wanted, sink_tables=(str(tmp_path / "t"),)),
        replace(wanted, sink_files=str(tmp_path / "f")),
    ):
        assert check(plan_rewind(named)).verdict == "refuse"


@pytest.mark.parametrize("kind", ["delta", "files"])
def test_a_batch_that_the_sink_has_not_seen(kind: str, tmp_path: Path) -> None:
    """The batch that is stuck: it runs again, and an undo takes out what was written since."""
    folder = make(tmp_path / "c", Shape("hdfs", batches=5, committed=4))
    sink = tmp_path / "out"
    write, read = (write_batches, rows_of) if kind == "delta" else (write_files, shown)
    write(sink, range(4))
    before = read(sink)
    asked = plan(folder, sink)
    assert check(asked).verdict == "ok"
    apply_rewind(asked, assume_stopped=True)
    write(sink, range(4, 9), query_id(folder))
    run_on(folder, 8)
    undo_rewind(str(folder), assume_stopped=True)
    assert read(sink) == before
    assert query_id(folder) == QUERY
    if kind == "delta":
        # under its old id nothing above batch 3 is noted, so nothing is skipped
        assert DeltaTable(str(sink)).transaction_version(QUERY) == 3


def as_a_stream(table: Path) -> None:
    """As Spark's own sink calls its commits."""
    for commit in (table / "_delta_log").glob("*.json"):
        text = commit.read_text().replace('"operation":"WRITE"', '"operation":"STREAMING UPDATE"')
        commit.write_text(text)


def test_another_query_is_not_taken_for_a_function(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "t"
    write_batches(table, range(7), "another-query")
    as_a_stream(table)
    found = check(plan(folder, table, remedy="restore"))
    assert (found.verdict, "shows no batch of query 7b3c" in found.detail) == ("refuse", True)
    # and once our query has written there, the other is named
    write_batches(table, range(7))
    write_batches(table, (7,), "another-query")
    assert "others have changed" in check(plan(folder, table, remedy="restore")).detail


def test_numbers_that_are_no_batches_are_not_taken_for_some(folder: Path, tmp_path: Path) -> None:
    write_batches(tmp_path / "t", range(1000, 1007), "my-app")
    found = check(plan(folder, tmp_path / "t", remedy="restore"))
    assert (found.verdict, "my-app (up to 1006)" in found.detail) == ("refuse", True)


def test_former_ids_outlive_pruned_backups(folder: Path, table: Path) -> None:
    rewind(folder, table)
    run_on(folder, 6)
    write_batches(table, range(4, 7), query_id(folder))
    prune_backups(str(folder), keep=0)
    rewind(folder, table, 2)
    assert rows_of(table) == written(range(2))


def test_a_former_id_that_nobody_noted_stops_a_restore(folder: Path, tmp_path: Path) -> None:
    """The table shows batches from 4 on, and what it holds from before may be theirs, too."""
    write_batches(tmp_path / "t", range(4), None)
    write_batches(tmp_path / "t", range(4, 7))
    found = check(plan(folder, tmp_path / "t", 2, remedy="restore"))
    assert found.verdict == "refuse"


def test_the_same_rewind_again_before_the_query_ran(folder: Path, table: Path) -> None:
    rewind(folder, table)
    rewind(folder, table)
    assert rows_of(table) == written(range(4))
    undo_rewind(str(folder), assume_stopped=True)
    undo_rewind(str(folder), Backup.read_all(open_folder(str(folder)))[0].id, assume_stopped=True)
    assert rows_of(table) == written(range(7))
    assert query_id(folder) == QUERY


def test_a_change_by_another_checkpoint_is_not_ours(
    folder: Path, table: Path, tmp_path: Path
) -> None:
    other = make(tmp_path / "d", Shape("hdfs"))
    (other / ".metadata.crc").unlink()
    (other / "metadata").write_text('{"id":"other"}')
    rewind(folder, table, 6)
    write_batches(table, (0,), "other")
    # the other one's rewind undoes its own row, in a commit with our mark
    rewind(other, table, 0)
    with pytest.raises(CheckpointError, match="others have changed the table"):
        undo_rewind(str(folder), assume_stopped=True)


def test_a_commit_that_arrived_although_it_failed(
    folder: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = DeltaTable.restore

    def late(self: DeltaTable, *arguments: object, **more: object) -> object:
        real(self, *arguments, **more)  # type: ignore[arg-type]
        raise OSError("timed out")

    monkeypatch.setattr(DeltaTable, "restore", late)
    rewind(folder, table)
    assert rows_of(table) == written(range(4))
    monkeypatch.undo()
    undo_rewind(str(folder), assume_stopped=True)
    assert rows_of(table) == written(range(7))


def test_a_table_that_does_not_answer_after_an_interruption(
    folder: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was set back before: to take the rewind back now would lose the way to the rows."""
    real = DeltaTable.restore

    def cut_off(self: DeltaTable, *arguments: object, **more: object) -> object:
        real(self, *arguments, **more)  # type: ignore[arg-type]
        raise PowerCutError

    asked = plan(folder, table, remedy="restore")
    monkeypatch.setattr(DeltaTable, "restore", cut_off)
    assert cut(folder, 1 << 60, lambda on: apply_rewind(asked, assume_stopped=True, folder=on))
    monkeypatch.undo()
    os.rename(table / "_delta_log", table / "away")
    with pytest.raises(CheckpointError, match="was interrupted"):
        apply_rewind(asked, assume_stopped=True)
    os.rename(table / "away", table / "_delta_log")
    apply_rewind(asked, assume_stopped=True)
    assert rows_of(table) == written(range(4))
    undo_rewind(str(folder), assume_stopped=True)
    assert rows_of(table) == written(range(7))


def test_a_table_that_cannot_be_read_gets_rows_again_if_asked(folder: Path, table: Path) -> None:
    """As after RESTORE with Spark, where our library does not know a feature of the table."""
    first = table / "_delta_log" / f"{0:020}.json"
    for commit in (table / "_delta_log").glob("*.json"):
        commit.write_text(
            commit.read_text().replace('"minReaderVersion":1', '"minReaderVersion":99')
        )
    assert "99" in first.read_text()
    found = check(plan(folder, table, remedy="restore"))
    assert (found.verdict, "--sink append-again" in found.next) == ("refuse", True)
    rewind(folder, table, remedy="append-again")
    assert query_id(folder) != QUERY


def test_a_functions_own_notes_are_set_back_alone_if_asked(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "t"
    write_batches(table, range(7), "my-app")
    rewind(folder, table, remedy="append-again")
    assert rows_of(table) == written(range(7), "my-app")
    assert DeltaTable(str(table)).transaction_version("my-app") == 3


def test_an_edited_plan_is_refused(folder: Path, table: Path) -> None:
    saved = plan(folder, table, remedy="restore").to_dict()
    saved["sink"]["new_query_id"] = False
    with pytest.raises(UsageError, match="or it was edited"):
        RewindPlan.from_dict(saved)


def test_a_file_sink_comes_back_after_spark_cleaned_its_log(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs", batches=8))
    sink = tmp_path / "files"
    write_files(sink, range(8))
    before = shown(sink)
    rewind(folder, sink, 5)
    write_files(sink, range(5, 12), "new")
    run_on(folder, 11)
    for n in range(9):  # all before the entry that holds them
        (sink / "_spark_metadata" / str(n)).unlink()
        (sink / "_spark_metadata" / f".{n}.crc").unlink()
    undo_rewind(str(folder), assume_stopped=True)
    assert shown(sink) == before
    assert len(list(sink.glob("day*/part-*"))) == 16
    undo_rewind(str(folder), assume_stopped=True)
    assert len(shown(sink)) == 24


def test_a_file_sink_that_cannot_be_written_to(folder: Path, tmp_path: Path) -> None:
    write_files(tmp_path / "files", range(7))
    (tmp_path / "files/_ebbtide").write_text("in the way")
    found = check(plan(folder, tmp_path / "files"))
    assert (found.verdict, "cannot be written to" in found.detail) == ("refuse", True)


@pytest.mark.parametrize("batch", [0, 3, 9, 10, 12])
def test_a_file_sink_goes_back_with_the_checkpoint(tmp_path: Path, batch: int) -> None:
    """Whether the batch lies before, at or after an entry that holds all before it."""
    folder = make(tmp_path / "c", Shape("hdfs", batches=14))
    sink = tmp_path / "files"
    write_files(sink, range(14))
    before, files = snapshot(folder), snapshot(sink)
    asked = plan(folder, sink, batch)
    assert check(asked).verdict == "ok"
    assert f"would skip batches {batch} to 13, so its log goes back" in check(asked).detail
    apply_rewind(asked, assume_stopped=True)
    assert shown(sink) == sorted(f"old {n} {i}" for n in range(batch) for i in range(2))
    visible = [p for p in sink.rglob("part-*") if "_ebbtide" not in str(p)]
    assert len(visible) == 2 * batch
    write_files(sink, range(batch, 13), "new")
    assert len(shown(sink)) == 26
    run_on(folder, 12)
    undo_rewind(str(folder), assume_stopped=True)
    assert {p: c for p, c in snapshot(sink).items() if not p.startswith("_ebbtide")} == files
    assert snapshot(folder) == before
    undo_rewind(str(folder), assume_stopped=True)
    assert len([row for row in shown(sink) if row.startswith("new")]) == 2 * (13 - batch)
    prune_backups(str(folder), keep=0)
    assert not list((sink / "_ebbtide").iterdir())


def test_a_file_sink_whose_log_has_gaps_is_refused(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs", batches=14))
    write_files(tmp_path / "files", range(14))
    os.unlink(tmp_path / "files/_spark_metadata/5")
    found = check(plan(folder, tmp_path / "files", 7))
    assert (found.verdict, "not all there" in found.detail) == ("refuse", True)
    # from there on the entry of batch 9 stands for all before it
    assert check(plan(folder, tmp_path / "files", 12)).verdict == "ok"


def test_a_file_sink_that_was_moved_is_refused(folder: Path, tmp_path: Path) -> None:
    write_files(tmp_path / "files", range(7))
    os.rename(tmp_path / "files", tmp_path / "moved")
    with pytest.raises(CheckpointError, match="which lies elsewhere"):
        plan(folder, tmp_path / "moved")


def test_what_cannot_be_asked_of_a_sink(folder: Path, tmp_path: Path) -> None:
    write_files(tmp_path / "files", range(7))
    with pytest.raises(UsageError, match="cannot append again"):
        plan(folder, tmp_path / "files", remedy="append-again")
    with pytest.raises(UsageError, match="needs a known sink"):
        plan_rewind(RewindRequest(str(folder), ToBatch(4), assume_stopped=True, remedy="restore"))
    with pytest.raises(UsageError, match="exclude each other"):
        RewindRequest(str(folder), ToBatch(4), sink_tables=("a",), sink_files="b")
    with pytest.raises(UsageError, match="--sink-table and --sink none exclude each other"):
        RewindRequest(str(folder), ToBatch(4), sink_tables=("a",), remedy="none")
    (named,) = SinkPlace.named({"--sink-table": ["out", "./out/"]})
    assert named.path == str(Path("out").absolute())


def test_the_commands_say_what_they_do(folder: Path, table: Path, inside: Cli) -> None:
    flags = (folder, "--to-batch", "4", "--sink-table", table, "--assume-stopped")
    refused = inside("rewind", *flags)
    assert refused.returncode == 1
    assert "batches 4 to 6 would be skipped" in " ".join(refused.stderr.split())
    planned = inside("rewind", *flags, "--sink", "restore")
    assert planned.returncode == 0
    assert f"--sink restore --sink-table {table}" in planned.stderr
    done = inside("rewind", *flags, "--sink", "restore", "--execute")
    assert done.returncode == 0, done.stderr
    assert f"The query has a new id: {query_id(folder)}" in done.stderr
    undone = inside("undo", folder, "--yes", "--assume-stopped")
    assert undone.returncode == 0, undone.stderr
    assert "was at version 7, and is now as it was at version 6." in undone.stderr
    assert rows_of(table) == written(range(7))
    audit = (folder / ".ebbtide/audit.jsonl").read_text().splitlines()
    assert json.loads(audit[0])["sink"]["to_version"] == 3
