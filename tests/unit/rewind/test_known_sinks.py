"""Which sinks a rewind knows, which it must be told, and what a copy does not inherit."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from ebbtide.checkpoint import Backup, Journal, Owner
from ebbtide.checks import Check
from ebbtide.config import Settings
from ebbtide.errors import CheckpointError, UsageError
from ebbtide.notes import write_note
from ebbtide.pipeline import Delta, Files, ForeachBatch, Kafka, Pipeline, Sink
from ebbtide.rewind import (
    RewindPlan,
    RewindRequest,
    apply_rewind,
    finish_interrupted,
    plan_rewind,
    undo_rewind,
)
from ebbtide.rewind import fork as forks
from ebbtide.rewind.backups import prune_backups
from ebbtide.runtime.ownership import claim
from ebbtide.storage import WritableFolder, open_writable
from tests.conftest import Cli
from tests.outputs import QUERY, rows_of, shown, write_batches, write_files, written
from tests.power import cut
from tests.trees import Shape, make, snapshot


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint with batches 0 to 6, of a query that nobody knows."""
    return make(tmp_path / "c", Shape("hdfs"))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """What its query wrote."""
    write_batches(tmp_path / "tables" / "visits", range(7))
    return tmp_path / "tables" / "visits"


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """What a foreachBatch function of the query wrote, under one txnAppId."""
    both = tmp_path / "tables" / "a", tmp_path / "tables" / "b"
    for each in both:
        write_batches(each, range(7), "copier")
    return both


def plan(folder: Path | str, **flags: Any) -> RewindPlan:
    wanted = {"to_batch": 4, "assume_stopped": True} | flags
    return plan_rewind(RewindRequest.parse(str(folder), **wanted))


def sink_checks(plan: RewindPlan) -> list[Check]:
    return [check for check in plan.checks if check.name == "sink"]


def rewind(folder: Path | str, **flags: Any) -> Backup:
    return apply_rewind(plan(folder, **flags), assume_stopped=True)


def undo(folder: Path, **flags: Any) -> Backup:
    return undo_rewind(str(folder), assume_stopped=True, **flags)


def run(folder: Path, sink: Sink, home: Path) -> None:
    """As `ebbtide run` leaves its note."""
    source = Kafka("visits", schema="n INT, at TIMESTAMP")
    pipeline = Pipeline("p", source=source, event_time="at", transform=lambda r: r, sink=sink)
    with claim(str(folder), pipeline, Settings(home=home)):
        pass


def test_a_sink_that_nobody_knows_stops_the_rewind(folder: Path) -> None:
    before = snapshot(folder)
    (found,) = sink_checks(plan(folder))
    assert found.verdict == "refuse"
    assert "Delta and file sinks skip batches that they have seen" in found.detail
    assert "Name it with --sink-table or --sink-files, or use --sink none" in found.next
    assert f"ebbtide sinks {folder} --search DIR" in found.next
    with pytest.raises(CheckpointError, match="cannot be rewound to batch 4: it is not known"):
        rewind(folder)
    assert snapshot(folder) == before


def test_a_sink_that_takes_batches_again_is_waived_each_time(folder: Path) -> None:
    asked = plan(folder, sink="none")
    (found,) = sink_checks(asked)
    assert found.verdict == "warn"
    assert "it gets the output of batches 4 to 6 again" in found.detail
    saved = RewindPlan.from_dict(json.loads(json.dumps(asked.to_dict())))
    assert saved == asked
    apply_rewind(saved, assume_stopped=True)
    undo(folder)
    assert sink_checks(plan(folder))[0].verdict == "refuse"


def test_a_waived_plan_that_is_out_of_date_names_its_flag(folder: Path) -> None:
    asked = plan(folder, sink="none")
    (folder / "commits/6").unlink()
    with pytest.raises(CheckpointError, match="--to-batch 4 --sink none"):
        apply_rewind(asked, assume_stopped=True)


def test_the_command_that_finishes_a_rewind_names_the_waiver(folder: Path, inside: Cli) -> None:
    """Also where nothing has moved yet: then it is taken back, and planned again."""
    asked = plan(folder, sink="none")
    assert cut(folder, 7, lambda on: apply_rewind(asked, assume_stopped=True, folder=on))
    journal = Journal.read(open_writable(str(folder)))
    assert journal is not None
    assert journal.phase == "4 back up"
    command = journal.command(str(folder))
    assert command == f"ebbtide rewind {folder} --to-batch 4 --sink none --execute"
    finished = inside(*command.split()[1:], "--assume-stopped", "--yes")
    assert finished.returncode == 0, finished.stderr


def test_what_was_named_once_is_remembered(
    folder: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewind(folder, sink_table=table, sink="restore")
    assert rows_of(table) == written(range(4))
    undo(folder)
    # under another name of the checkpoint, too
    os.symlink(folder, folder.with_name("link"))
    monkeypatch.chdir(folder.parent)
    for name in ("link", f"file://{folder}", f"{folder}/", "c"):
        (found,) = sink_checks(plan(name, sink="restore"))
        assert "goes back from version" in found.detail, name
    rewind(folder, sink="restore")
    assert rows_of(table) == written(range(4))


def test_a_plan_remembers_nothing(folder: Path, table: Path) -> None:
    plan(folder, sink_table=table, sink="restore")
    assert not (folder / ".ebbtide").exists()


@pytest.mark.parametrize("flags", [{}, {"sink": "restore"}, {"sink": "append-again"}], ids=str)
def test_a_table_that_shows_nothing_of_the_query_is_another(
    folder: Path, tmp_path: Path, flags: dict[str, str]
) -> None:
    write_batches(tmp_path / "other", range(9), None)
    (found,) = sink_checks(plan(folder, sink_table=tmp_path / "other", **flags))
    assert found.verdict == "refuse"
    assert f"shows no batch of query {QUERY}, so it is most likely another table" in found.detail
    assert "--sink none" in found.next


def test_a_table_that_the_query_wrote_before_another(folder: Path, tmp_path: Path) -> None:
    """Its batches end before those that are done: what is written now is elsewhere."""
    write_batches(tmp_path / "old", range(3))
    (found,) = sink_checks(plan(folder, sink_table=tmp_path / "old"))
    assert (found.verdict, "seems to write another table" in found.detail) == ("refuse", True)
    write_files(tmp_path / "files", range(3))
    (found,) = sink_checks(plan(folder, sink_files=tmp_path / "files"))
    assert (found.verdict, "seems to write to another folder" in found.detail) == ("refuse", True)


def test_the_sink_of_a_run_is_known(folder: Path, tmp_path: Path) -> None:
    for sink, verdict in ((Kafka("out"), "warn"), (ForeachBatch(print), "warn")):
        run(folder, sink, tmp_path)
        (found,) = sink_checks(plan(folder))
        assert found.verdict == verdict
    write_files(tmp_path / "out", range(7))
    run(folder, Files(str(tmp_path / "out")), tmp_path)
    rewind(folder)
    assert len(shown(tmp_path / "out")) == 8


def test_the_sink_of_a_run_cannot_be_waived_or_left_out(
    folder: Path, table: Path, tmp_path: Path
) -> None:
    run(folder, Delta(str(table)), tmp_path)
    write_batches(tmp_path / "copy", range(7))
    for flags in ({"sink": "none"}, {"sink_table": tmp_path / "copy", "sink": "restore"}):
        *_, found = sink_checks(plan(folder, **flags))
        assert found.verdict == "refuse"
        assert f"{table} was not named: its log notes batches up to 6" in found.detail
    assert sink_checks(plan(folder, sink_table=table, sink="restore"))[-1].verdict == "ok"
    # a table that was moved is named where it lies now
    table.rename(tmp_path / "moved")
    assert plan(folder, sink_table=tmp_path / "moved", sink="restore").refusals == ()


def test_the_commands_warn_before_they_ask(
    folder: Path, tmp_path: Path, inside: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, asked = snapshot(folder), list[str]()
    warning = "Warning: sink: not checked (--sink none): it gets the output of batches 4 to 6 again"

    def answer(question: str, **_more: object) -> bool:
        asked.append(question)
        return False

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", answer)
    flags = ("--to-batch", "4", "--assume-stopped")
    refused = inside("rewind", folder, *flags, "--execute")
    assert (refused.returncode, asked) == (1, [])
    assert "Name it with --sink-table" in refused.stderr
    file = tmp_path / "plan.json"
    inside("rewind", folder, *flags, "--sink", "none", "--save-plan", file)
    for command in (["rewind", folder, *flags, "--sink", "none", "--execute"], ["apply", file]):
        shown = inside(*command)
        assert warning in " ".join(shown.stderr.split()), command
        assert shown.returncode == 1
    assert len(asked) == 2
    assert snapshot(folder) == before
    assert inside("apply", file, "--yes", "--assume-stopped").returncode == 0
    shown = inside("undo", folder, "--assume-stopped")
    assert "The sink stays as it is now" in shown.stderr
    assert len(asked) == 3


def copy(folder: Path) -> Path:
    return Path(shutil.copytree(folder, folder.with_name("copy")))


@pytest.mark.parametrize("known", ["run", "named"])
def test_a_copy_does_not_inherit_the_sink(
    known: str, folder: Path, table: Path, tmp_path: Path
) -> None:
    if known == "run":
        run(folder, Delta(str(table)), tmp_path)
    else:
        rewind(folder, sink_table=table, sink="restore")
        undo(folder)
    (found,) = sink_checks(plan(copied := copy(folder)))
    assert found.verdict == "refuse"
    assert f"this checkpoint was copied or moved from {folder}, which writes to" in found.detail
    with pytest.raises(UsageError, match="needs a known sink, but it is not known where the query"):
        plan(copied, sink="restore")
    # named for the copy, it is remembered there
    rewind(copied, sink_table=table, sink="append-again")
    assert "copied" not in sink_checks(plan(copied))[0].detail


def test_a_copy_that_runs_has_a_sink_of_its_own(folder: Path, tmp_path: Path) -> None:
    run(folder, Kafka("out"), tmp_path)
    run(copied := copy(folder), Kafka("test"), tmp_path)
    assert "topic test gets the output" in sink_checks(plan(copied))[0].detail
    assert "topic out gets the output" in sink_checks(plan(folder))[0].detail


def test_a_note_of_an_older_version_may_be_a_copy(folder: Path, table: Path) -> None:
    sink = {"kind": "delta", "name": "visits", "path": str(table)}
    write_note(open_writable(str(folder)), "pipeline.json", Owner(sink=sink).to_dict())
    (found,) = sink_checks(plan(folder))
    assert found.verdict == "refuse"
    assert "an older version of Ebbtide noted visits" in found.detail


def test_a_fork_has_no_sink_yet(folder: Path, table: Path, tmp_path: Path) -> None:
    run(folder, Delta(str(table)), tmp_path)
    forks.fork_checkpoint(str(folder), str(tmp_path / "fork"), 4)
    assert sink_checks(plan(tmp_path / "fork"))[0].detail.startswith("it is not known where ")


@pytest.mark.parametrize("kind", ["delta", "files"])
def test_an_undo_or_prune_in_a_copy_leaves_the_sink_alone(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    write, read = (write_batches, rows_of) if kind == "delta" else (write_files, shown)
    write(out, range(7))
    flags = {"sink_table": out, "sink": "restore"} if kind == "delta" else {"sink_files": out}
    rewind(folder, **flags)
    after, copied = read(out), copy(folder)
    with pytest.raises(CheckpointError, match="an undo would also change") as refusal:
        undo(copied)
    assert "--leave-sink" in refusal.value.next_step
    undo(copied, leave_sink=True)
    assert read(out) == after
    # nor does it delete what the original has set aside
    shutil.rmtree(copied)
    prune_backups(str(copied := copy(folder)), keep=0)
    undo(folder)
    assert read(out) != after
    assert len(read(out)) == 14


def test_a_backup_of_an_older_version_may_be_a_copys(folder: Path, table: Path) -> None:
    backup = rewind(folder, sink_table=table, sink="restore")
    note = folder / ".ebbtide" / Backup.note(backup.id)
    note.write_text(json.dumps({**json.loads(note.read_text()), "location": None}))
    undo(folder)  # the table was named for this very checkpoint
    assert rows_of(table) == written(range(7))
    backup = rewind(folder, sink="restore")
    note = folder / ".ebbtide" / Backup.note(backup.id)
    note.write_text(json.dumps({**json.loads(note.read_text()), "location": None}))
    with pytest.raises(CheckpointError, match="does not say where it was made, so this checkpoint"):
        undo(copy(folder))


def test_a_moved_checkpoint_says_where_it_writes(
    folder: Path, table: Path, inside: Cli, tmp_path: Path
) -> None:
    rewind(folder, sink_table=table, sink="restore")
    folder.rename(moved := tmp_path / "moved")
    with pytest.raises(CheckpointError, match="was made in") as refusal:
        undo(moved)
    said = f"ebbtide sinks {moved} --sink-table {table}"
    assert said in refusal.value.next_step
    assert inside(*said.split()[1:]).returncode == 0
    undo(moved)
    assert rows_of(table) == written(range(7))


def test_a_copy_of_an_interrupted_rewind_does_not_go_on(folder: Path, table: Path) -> None:
    asked = plan(folder, sink_table=table, sink="restore")

    def change(on: WritableFolder) -> None:
        apply_rewind(asked, assume_stopped=True, folder=on)

    kept, journal = copy(folder), None
    n = 0
    while journal is None or journal.phase != "5 sink":
        shutil.rmtree(folder)
        shutil.copytree(kept, folder, symlinks=True)
        asked = plan(folder, sink_table=table, sink="restore")
        assert cut(folder, n, change)
        journal, n = Journal.read(open_writable(str(folder))), n + 1
    shutil.rmtree(kept)
    # the sink was noted before anything changed, so it need not be named again
    assert journal.command("c") == "ebbtide rewind c --to-batch 4 --sink restore --execute"
    with pytest.raises(CheckpointError, match="Finish it there, then make a new copy"):
        finish_interrupted(str(copy(folder)), "rewind", lambda _: True)
    assert rows_of(table) == written(range(7))
    finish_interrupted(str(folder), "rewind", lambda _: True)
    assert rows_of(table) == written(range(4))


def test_several_tables_go_back_together(folder: Path, two: tuple[Path, Path]) -> None:
    before = snapshot(folder)
    asked = plan(folder, sink_table=two, sink="restore")
    assert [check.verdict for check in sink_checks(asked)] == ["ok", "ok"]
    plain = asked.to_dict()
    assert plain["sink"] == plain["sinks"][0]
    assert [sink["path"] for sink in plain["sinks"]] == [str(table) for table in two]
    assert RewindPlan.from_dict(json.loads(json.dumps(plain))) == asked
    backup = apply_rewind(asked, assume_stopped=True)
    assert [rows_of(table) for table in two] == [written(range(4), "copier")] * 2
    assert [change.path for change in backup.sinks] == [str(table) for table in two]
    audit = json.loads((folder / ".ebbtide/audit.jsonl").read_text())
    assert [sink["to_version"] for sink in audit["sinks"]] == [3, 3]
    assert audit["sink"] == audit["sinks"][0]
    for table in two:
        assert DeltaTable(str(table)).transaction_version("copier") == 3
    undo(folder)
    assert [rows_of(table) for table in two] == [written(range(7), "copier")] * 2
    assert snapshot(folder) == before
    # both are remembered
    assert len(sink_checks(plan(folder, sink="restore"))) == 2


def test_a_table_beside_that_the_function_writes_too(folder: Path, two: tuple[Path, Path]) -> None:
    first, second = two
    write_batches(first.with_name("stranger"), range(7), "another")
    asked = plan(folder, sink_table=first, sink="restore")
    own, other = sink_checks(asked)
    assert (own.verdict, other.verdict) == ("ok", "refuse")
    assert f"{second} was not named: it lies beside {first}" in other.detail
    assert other.next == f"If the query writes there, add --sink-table {second}."


def test_a_known_folder_with_a_damaged_log_is_not_left_out(folder: Path, tmp_path: Path) -> None:
    write_files(out := tmp_path / "out", range(7))
    opened = open_writable(str(folder))
    sink = {"kind": "files", "name": "out", "path": str(out)}
    write_note(opened, "pipeline.json", {"sink": sink, "location": opened.address})
    (out / "_spark_metadata/6").write_text("v1\nhalf of an en")
    (check,) = (one for one in sink_checks(plan(folder, sink="none")) if one.verdict == "refuse")
    assert check.detail.startswith(f"{out} was not named: the query wrote there before")
    assert check.next == f"Add --sink-files {out}."


def test_a_copy_of_the_table_beside_it_does_not_stop_the_rewind(
    folder: Path, two: tuple[Path, Path], tmp_path: Path
) -> None:
    alone = tmp_path / "alone"
    shutil.copytree(two[0], alone / "a")
    shutil.copytree(two[0], alone / "a_backup")
    checks = sink_checks(plan(folder, sink_table=alone / "a", sink="restore"))
    assert [check.verdict for check in checks] == ["ok", "warn"]
    assert "so one is a copy" in checks[1].detail


def test_a_checkpoint_without_a_batch_has_no_sink_to_find(
    two: tuple[Path, Path], inside: Cli, tmp_path: Path
) -> None:
    write_files(two[0].parent / "files", range(3))
    (tmp_path / "new").mkdir()
    (tmp_path / "new/metadata").write_text('{"id":"7"}')
    found = inside("sinks", tmp_path / "new", "--search", two[0].parent, "-o", "json")
    assert (found.returncode, json.loads(found.stdout)) == (0, []), found.stderr


def test_a_table_beside_with_another_last_batch_may_be_anothers(
    folder: Path, tmp_path: Path
) -> None:
    for name, last in (("a", 7), ("b", 6), ("older", 3), ("newer", 9)):
        write_batches(tmp_path / name, range(last), "copier")
    checks = sink_checks(plan(folder, sink_table=tmp_path / "a", sink="restore"))
    assert [check.verdict for check in checks] == ["ok", "warn"]
    assert f"{tmp_path / 'b'} was not named" in checks[1].detail


def late_writer(table: Path, monkeypatch: pytest.MonkeyPatch, *also: Path) -> None:
    """Somebody writes to a table just before it is restored."""
    real = DeltaTable.restore

    def restore(self: DeltaTable, *arguments: Any, **more: Any) -> Any:
        if self.table_uri.rstrip("/").endswith(str(table)):
            for each in (table, *also):
                write_batches(each, (9,), None)
        return real(self, *arguments, **more)

    monkeypatch.setattr(DeltaTable, "restore", restore)


def test_one_table_that_refuses_leaves_all_as_they_were(
    folder: Path, two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(folder)
    asked = plan(folder, sink_table=two, sink="restore")
    late_writer(two[1], monkeypatch)
    with pytest.raises(CheckpointError, match="The checkpoint is as it was before"):
        apply_rewind(asked, assume_stopped=True)
    assert snapshot(folder) == before
    assert Backup.read_all(open_writable(str(folder))) == []
    assert rows_of(two[0]) == written(range(7), "copier")
    assert DeltaTable(str(two[0])).transaction_version("copier") == 6
    assert len(rows_of(two[1])) == 16


def test_a_table_that_cannot_go_forward_again_is_named(
    folder: Path, two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(folder)
    asked = plan(folder, sink_table=two, sink="restore")
    late_writer(two[1], monkeypatch, two[0])
    with pytest.raises(CheckpointError, match=f"but {two[0]} was restored already") as refusal:
        apply_rewind(asked, assume_stopped=True)
    assert refusal.value.next_step == "Restore it yourself, to version 6."
    assert snapshot(folder) == before
    assert Journal.read(open_writable(str(folder))) is None


def test_a_refusal_that_is_cut_short_is_taken_back_later(
    folder: Path, two: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(folder)
    shutil.copytree(tmp_path, kept := tmp_path.with_name(f"{tmp_path.name}-kept"))
    late_writer(two[1], monkeypatch)

    def change(on: WritableFolder) -> None:
        asked = plan(folder, sink_table=two, sink="restore")
        with pytest.raises(CheckpointError, match="as it was before"):
            apply_rewind(asked, assume_stopped=True, folder=on)

    n, is_cut, phases = 0, True, set[str]()
    while is_cut:
        for place in ("c", "tables"):
            shutil.rmtree(tmp_path / place)
            shutil.copytree(kept / place, tmp_path / place)
        is_cut, n = cut(folder, n, change), n + 1
        journal = Journal.read(open_writable(str(folder)))
        if journal is None or journal.phase not in ("4 back up", "5 sink back"):
            continue
        phases.add(journal.phase)
        assert finish_interrupted(str(folder), "rewind", lambda _: True) is None
        assert snapshot(folder) == before, n
        assert rows_of(two[0]) == written(range(7), "copier"), n
    assert phases == {"4 back up", "5 sink back"}
    shutil.rmtree(kept)


def test_a_saved_plan_without_its_sink_is_refused(folder: Path, table: Path) -> None:
    asked = plan(folder, sink_table=table, sink="restore")
    assert RewindPlan.from_dict(asked.to_dict()) == asked
    unknown = replace(asked, sinks=(), checks=()).to_dict()
    with pytest.raises(CheckpointError, match="cannot be rewound to batch 4: it is not known"):
        apply_rewind(RewindPlan.from_dict(unknown), assume_stopped=True)


def test_the_command_that_looks_for_sinks(
    folder: Path,
    table: Path,
    two: tuple[Path, Path],
    inside: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = table.parent
    write_batches(
        tables / "deep" / "er" / "other", range(3), "0b5c7d3e-0000-4000-8000-00000000000a"
    )
    write_files(tables / "deep" / "files", range(7))
    write_files(tables / "deep" / "longer", range(9))
    os.symlink(tables, tables / "deep" / "loop")
    found = json.loads(inside("sinks", folder, "--search", tmp_path, "-o", "json").stdout)
    assert [(one["path"], one["match"]) for one in found] == [
        (str(table), "certain"),
        (str(two[0]), "possible"),
        (str(two[1]), "possible"),
        (str(tables / "deep" / "files"), "possible"),
    ]
    assert "up to 6 under this query's id" in found[0]["detail"]
    assert "as copier (txnAppId)" in found[1]["detail"]
    assert "ends with batch 6, the checkpoint with batch 6; it names no query" in found[3]["detail"]
    monkeypatch.chdir(tables / "deep" / "er")
    shown = inside("sinks", folder, "--search", ".")
    assert shown.returncode == 0
    assert f"Found no sink of this query in {tables}/deep/er. Search another" in shown.stderr
    assert "There is no folder" in inside("sinks", folder, "--search", tmp_path / "no").stderr


def test_tables_that_the_library_cannot_read(folder: Path, table: Path, inside: Cli) -> None:
    """A log is plain text; only one that is damaged says nothing."""
    first = table / "_delta_log" / f"{0:020}.json"
    features = '{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["new"],'
    protocol = f'{{"protocol":{features}"writerFeatures":["new"]}}}}'
    lines = [line for line in first.read_text().splitlines() if '"protocol"' not in line]
    first.write_text("\n".join([protocol, *lines]))
    (table.parent / "damaged/_delta_log").mkdir(parents=True)
    (table.parent / "damaged/_delta_log" / f"{0:020}.json").write_text("{")
    found = json.loads(inside("sinks", folder, "--search", table.parent, "-o", "json").stdout)
    assert [(one["match"], one["batch"]) for one in found] == [("certain", 6), ("possible", None)]
    assert "its log cannot be read" in found[1]["detail"]


def test_the_command_that_shows_the_sink(
    folder: Path, table: Path, inside: Cli, tmp_path: Path
) -> None:
    assert "No sink is known. To look for it: ebbtide sinks" in inside("sinks", folder).stderr
    assert "no sign of the query" in inside("sinks", folder, "--sink-files", table).stderr
    inside("sinks", folder, "--sink-table", table)
    (found,) = json.loads(inside("sinks", folder, "-o", "json").stdout)
    assert (found["path"], found["detail"]) == (str(table), "named for this checkpoint")
    run(folder, Kafka("out"), tmp_path)
    (found,) = json.loads(inside("sinks", folder, "-o", "json").stdout)
    assert (found["path"], found["detail"]) == ("out", "noted by its run")
    (found,) = json.loads(inside("sinks", copy(folder), "-o", "json").stdout)
    assert (found["match"], found["detail"]) == ("possible", f"noted for {folder}")


def test_the_path_of_a_sink_can_be_copied(folder: Path, tmp_path: Path, inside: Cli) -> None:
    long = tmp_path / "a-folder-with-a-rather-long-name" / "of several words" / "and-one-more"
    write_batches(long / "out", range(7))
    inside("sinks", folder, "--sink-table", long / "out")
    lines = inside("sinks", folder, COLUMNS="80").stdout.splitlines()
    assert lines == [str(long / "out"), "  delta, certain: named for this checkpoint"]
    searched = inside("sinks", folder, "--search", tmp_path, COLUMNS="80").stdout.splitlines()
    assert str(long / "out") in searched
    assert all(len(line) <= 80 for line in searched if line.startswith(" "))


@pytest.mark.parametrize(("late_ms", "match"), [(0, "likely"), (60_000, None)])
def test_a_file_sink_is_likely_if_it_was_written_meanwhile(
    late_ms: int, match: str | None, folder: Path, tmp_path: Path, inside: Cli
) -> None:
    """`trees.make` plans batch n at 1000 + n ms."""
    write_files(tmp_path / "out", range(7))
    for entry in (tmp_path / "out/_spark_metadata").glob("[0-9]"):
        version, *lines = entry.read_text().splitlines()
        at = 1_500 + int(entry.name) + late_ms
        timed = [json.dumps({**json.loads(line), "modificationTime": at}) for line in lines]
        entry.write_text("\n".join([version, *timed]))
    found = json.loads(inside("sinks", folder, "--search", tmp_path, "-o", "json").stdout)
    assert [one["match"] for one in found] == ([match] if match else [])
