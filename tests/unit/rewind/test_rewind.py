"""Plan, apply and undo over built checkpoints of every layout."""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import struct
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ebbtide.checkpoint import Backup, Journal, Owner, Timeline, read_checkpoint
from ebbtide.checkpoint.changelog import read_lineage
from ebbtide.checkpoint.verification import verify_checkpoint
from ebbtide.checks import Check, CheckKind
from ebbtide.connectors.base import Replayed
from ebbtide.connectors.kafka.records import Topic
from ebbtide.connectors.kafka.source import check_kafka
from ebbtide.errors import CheckpointError, UsageError
from ebbtide.notes import write_note
from ebbtide.rewind import (
    RewindPlan,
    RewindRequest,
    apply_rewind,
    finish_interrupted,
    plan_rewind,
    undo_rewind,
)
from ebbtide.rewind.backups import prune_backups
from ebbtide.rewind.journal import write_journal
from ebbtide.rewind.lease import RUN, hold_lease
from ebbtide.rewind.target import (
    ByDuration,
    ShiftBy,
    Target,
    ToBatch,
    ToDatetime,
    ToEarliest,
    ToLatestGood,
    ToOffsets,
)
from ebbtide.storage import WritableFolder, open_writable
from ebbtide.times import parse_duration
from tests.conftest import Cli
from tests.trees import JOIN_STORES, LAYOUTS, Shape, make, snapshot


def rewind(folder: Path, batch: int, *, replan: bool = False) -> Backup:
    plan = plan_rewind(
        RewindRequest(
            str(folder), ToBatch(batch), replan=replan, assume_stopped=True, remedy="none"
        )
    )
    return apply_rewind(plan, assume_stopped=True)


def undo(folder: Path, backup: str | None = None) -> Backup:
    return undo_rewind(str(folder), backup, assume_stopped=True)


def names(folder: Path, place: str) -> list[str]:
    return sorted(path.name for path in (folder / place).iterdir() if path.is_file())


def versions(folder: Path) -> dict[str, list[int]]:
    found = read_checkpoint(str(folder))
    return {str(store): list(store.versions.all) for store in found.stores}


def test_a_rewind_takes_what_the_scenario_says(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("rocksdb", operator_metadata="v1"))
    before = snapshot(folder)
    rewind(folder, 5)
    assert names(folder, "offsets")[-2:] == ["4", "5"]
    assert "6" not in names(folder, "offsets")
    assert [n for n in names(folder, "commits") if n.isdigit()] == ["0", "1", "2", "3", "4"]
    assert set(map(tuple, versions(folder).values())) == {(1, 2, 3, 4, 5)}
    gone = set(before) - set(snapshot(folder))
    assert not [path for path in gone if "SSTs" in path or path.startswith("sources")]
    assert ".6.crc" not in names(folder, "offsets")
    assert all(f".{v}.zip.crc" not in names(folder, "state/0/1") for v in (6, 7))


def test_replan_also_takes_the_first_batch(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    rewind(folder, 5, replan=True)
    assert [n for n in names(folder, "offsets") if n.isdigit()] == ["0", "1", "2", "3", "4"]


def test_batch_0_anew_leaves_no_state_at_all(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("rocksdb", operator_metadata="v2"))
    before = snapshot(folder)
    rewind(folder, 0, replan=True)
    assert list((folder / "state").iterdir()) == []
    assert names(folder, "commits") == []
    assert (folder / "sources/0/0").exists()
    undo(folder)
    assert snapshot(folder) == before


def test_operator_metadata_of_later_batches_goes(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("rocksdb", operator_metadata="v2"))
    assert "3" in names(folder, "state/0/_metadata/v2")
    rewind(folder, 2)
    assert names(folder, "state/0/_metadata/v2") == [".0.crc", "0"]
    folder = make(tmp_path / "d", Shape("rocksdb", operator_metadata="v2"))
    (folder / "state/0/_metadata/v2/0").unlink()
    (folder / "state/0/_metadata/v2/.0.crc").unlink()
    rewind(folder, 2)
    assert "3" in names(folder, "state/0/_metadata/v2"), "the only one left describes the state"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("stores", [("default",), JOIN_STORES], ids=["one", "join"])
def test_both_kinds_of_checksums_go_with_their_file(
    layout: str, stores: tuple[str, ...], tmp_path: Path
) -> None:
    shape = Shape(layout, batches=5, stores=stores, spark_checksums=True, partitions=1, operators=2)
    folder = make(tmp_path / "c", shape)
    before = snapshot(folder)
    rewind(folder, 3)
    left = snapshot(folder)
    for path in left:
        name = path.rpartition("/")[2]
        if name.endswith(".crc"):
            main = name.removeprefix(".").removesuffix(".crc")
            assert str(Path(path).parent / main) in left, path
    assert not verify_checkpoint(str(folder)).broken
    undo(folder)
    assert snapshot(folder) == before


@pytest.mark.parametrize(
    ("target", "batch"),
    [
        (ToBatch(3), 3),
        (ShiftBy(-2), 5),
        (ToDatetime.parse("1970-01-01 00:00:01.004"), 4),
        (ToDatetime.parse("1970-01-01T01:00:01.004", "Europe/Warsaw"), 4),
        (ToDatetime.parse("1969-12-31T00:00Z"), 0),
        (ByDuration.parse("P30000D"), 0),
        (ToOffsets.parse('{"visits":{"0":3}}'), 4),
        (ToOffsets.parse('{"visits":{"0":4,"1":3}}'), 2),
        (ToEarliest(), 0),
        (ToLatestGood(), 6),
    ],
    ids=str,
)
def test_targets(target: Target, batch: int, tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    assert plan_rewind(RewindRequest(str(folder), target)).first_batch == batch


def test_the_newest_good_batch_is_below_the_damage(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs", snapshot_every=4))
    (folder / "state/0/1/4.delta").unlink()
    assert plan_rewind(RewindRequest(str(folder), ToLatestGood())).first_batch == 6
    for version in (5, 6):
        (folder / f"state/0/1/{version}.delta").unlink()
    (folder / "state/0/1/5.snapshot").unlink()
    assert plan_rewind(RewindRequest(str(folder), ToLatestGood())).first_batch == 3


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (ToBatch(7), "Batch 7 has not been planned yet"),
        (ToBatch(-1), "There is no batch -1"),
        (ShiftBy(-8), "There is no batch -1"),
        (
            ToDatetime.parse("2300-01-01"),
            "No batch was planned at or after 2300-01-01T00:00:00.000Z",
        ),
        (ToOffsets.parse('{"visits":{"0":6}}'), "has not been read yet"),
        (ToOffsets.parse('{"clicks":{"0":6}}'), "does not read topic clicks partition 0"),
    ],
    ids=str,
)
def test_targets_that_do_not_lead_anywhere(target: Target, says: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    with pytest.raises(CheckpointError, match=says):
        plan_rewind(RewindRequest(str(folder), target))


def test_targets_that_spark_has_cleaned_up(tmp_path: Path) -> None:
    folder = str(make(tmp_path / "c", Shape("hdfs", first=50)))
    with pytest.raises(CheckpointError, match=r"Spark has cleaned up batch 3 .* again is 51"):
        plan_rewind(RewindRequest(folder, ToBatch(3)))
    with pytest.raises(CheckpointError, match=r"are gone: the oldest left, 50"):
        plan_rewind(RewindRequest(folder, ToDatetime.parse("1970-01-01")))
    with pytest.raises(CheckpointError, match=r"gone; the oldest left is 50"):
        plan_rewind(RewindRequest(folder, ToOffsets.parse('{"visits":{"0":1}}')))
    assert plan_rewind(RewindRequest(folder, ToEarliest())).first_batch == 51
    refused = plan_rewind(
        RewindRequest(folder, ToBatch(50), assume_stopped=True, remedy="none")
    ).refusals
    assert [check.detail for check in refused] == ["offsets/49 is gone"]
    assert plan_rewind(RewindRequest(folder, ToEarliest(), replan=True)).first_batch == 52
    refused = plan_rewind(
        RewindRequest(folder, ToBatch(51), replan=True, assume_stopped=True, remedy="none")
    ).refusals
    assert [check.detail for check in refused] == [
        "to plan again, Spark also reads offsets/49, which is gone"
    ]


def test_wrong_targets_are_usage_errors() -> None:
    for make_target in (
        lambda: ShiftBy(2),
        lambda: ToDatetime.parse("yesterday"),
        lambda: ByDuration.parse("2 hours"),
        lambda: ByDuration.parse("P900000D"),
        lambda: ToOffsets.parse("{}"),
        lambda: ToOffsets.parse("12"),
    ):
        with pytest.raises(UsageError):
            make_target()


def test_a_plan_survives_json(tmp_path: Path) -> None:
    plan = plan_rewind(RewindRequest(str(make(tmp_path / "c", Shape("v2"))), ToBatch(4)))
    assert RewindPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    wrong: list[object] = [{}, [], {"format": 9}, plan.to_dict() | {"removals": 3}]
    for broken in wrong:
        with pytest.raises(UsageError, match="not a plan"):
            RewindPlan.from_dict(broken)


def test_a_plan_names_each_store_and_its_chain(tmp_path: Path) -> None:
    plan = plan_rewind(RewindRequest(str(make(tmp_path / "c", Shape("hdfs"))), ToBatch(5)))
    assert [(need.operator, need.partition, need.version) for need in plan.state] == [
        (0, 0, 5),
        (0, 1, 5),
    ]
    assert plan.state[1].chain == ("state/0/1/4.snapshot", "state/0/1/5.delta")
    assert plan.bytes["commits/6"] == 29
    assert (plan.batches, plan.records) == (2, (6 - 4) + (12 - 8))
    logs = [path for path in plan.removals if not path.startswith("state")]
    assert [path for path in logs if "crc" not in path] == ["commits/6", "offsets/6", "commits/5"]


@pytest.mark.parametrize(
    "change",
    [
        lambda c: (c / "commits/6").unlink(),
        lambda c: (c / "offsets/7").write_text((c / "offsets/6").read_text()),
        lambda c: (c / "offsets/2").write_text((c / "offsets/3").read_text()),
        lambda c: (c / "state/0/1/6.delta").write_bytes(b"other"),
        lambda c: (c / "state/0/0/4.snapshot").write_bytes(b"other"),
        lambda c: (c / "state/0/0/.tmp.1.tmp").touch(),
        lambda c: (c / "metadata").write_text('{"id":"another"}'),
    ],
)
def test_a_change_between_plan_and_apply_refuses(change: object, tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    plan = plan_rewind(RewindRequest(str(folder), ToBatch(5), assume_stopped=True, remedy="none"))
    change(folder)  # type: ignore[operator]
    changed = snapshot(folder)
    with pytest.raises(CheckpointError, match="has changed since the plan was made"):
        apply_rewind(plan, assume_stopped=True)
    assert snapshot(folder) == changed


def test_an_edited_plan_is_refused(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    (tmp_path / "precious").touch()
    plan = plan_rewind(RewindRequest(str(folder), ToBatch(5), assume_stopped=True, remedy="none"))
    for removals in (("../precious",), plan.removals[1:], (*plan.removals, "metadata")):
        with pytest.raises(CheckpointError, match="the plan was edited"):
            apply_rewind(replace(plan, removals=removals), assume_stopped=True)
    assert (tmp_path / "precious").exists()


def test_undo_after_the_query_ran_on_swaps_timelines(tmp_path: Path) -> None:
    """The new timeline has cleaned up every version up to the cut, and orphaned SST files."""
    for layout in ("hdfs", "rocksdb", "changelog", "v2"):
        folder = make(tmp_path / layout, Shape(layout, batches=9))
        old = snapshot(folder)
        rewind(folder, 4)
        notes = folder / ".ebbtide"
        notes.rename(tmp_path / "notes")
        shutil.rmtree(folder)
        make(folder, Shape(layout, batches=7, first=20, seed="new"))
        (tmp_path / "notes").rename(notes)
        new = snapshot(folder)
        undo(folder)
        report = verify_checkpoint(str(folder))
        assert [p.batch for p in report.proofs if p.verdict == "good"][-5:] == [4, 5, 6, 7, 8]
        back = snapshot(folder)
        assert all(
            back[path] == content
            for path, content in old.items()
            if path in back and path.split("/")[0] != "sources" and not path.endswith("tmp")
        )
        assert {f"commits/{n}" for n in range(2, 9)} <= set(back)
        assert not {f"commits/{n}" for n in range(20, 27)} & set(back)
        undo(folder)
        again = snapshot(folder)
        assert all(again.get(path) == content for path, content in new.items())
        report = verify_checkpoint(str(folder))
        assert [p.batch for p in report.proofs if p.verdict == "good"][-6:] == list(range(21, 27))


def test_backups_stack_and_know_their_timeline(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs", batches=9))
    old = snapshot(folder)
    first = rewind(folder, 6)
    after_first = snapshot(folder)
    second = rewind(folder, 3)
    opened = open_writable(str(folder))
    assert [backup.id for backup in Backup.read_all(opened)] == [first.id, second.id]
    with pytest.raises(CheckpointError, match=r"belongs to another timeline.*before 6"):
        undo(folder, first.id)
    undo(folder)
    assert snapshot(folder) == after_first
    undo(folder, first.id)
    assert snapshot(folder) == old
    assert Timeline.read(opened) == Timeline()


def test_a_backup_does_not_come_back_under_another_plan(tmp_path: Path) -> None:
    """An exact rewind keeps the plan of its first batch; one with --replan after it does not."""
    for batch in (0, 5):
        folder = make(tmp_path / str(batch), Shape("hdfs"))
        old = snapshot(folder)
        first = rewind(folder, batch)
        rewind(folder, batch, replan=True)
        with pytest.raises(CheckpointError, match="belongs to another timeline"):
            undo(folder, first.id)
        undo(folder)
        undo(folder, first.id)
        assert snapshot(folder) == old


def test_a_backup_of_another_query_does_not_come_back(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    rewind(folder, 4)
    (folder / "metadata").write_text('{"id":"another"}')
    with pytest.raises(CheckpointError, match="is of another query"):
        undo(folder)
    (folder / "metadata").write_text('{"id":"7b3c"}')
    (folder / "commits/3").unlink()  # the backup has it under a second name
    (folder / "commits/3").write_text('v1\n{"nextBatchWatermarkMs":6}')
    with pytest.raises(CheckpointError, match="is of another query"):
        undo(folder)


def test_an_undo_can_be_undone(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("changelog"))
    rewind(folder, 3)
    rewound = snapshot(folder)
    undo(folder)
    undo(folder)
    assert snapshot(folder) == rewound
    assert len(Backup.read_all(open_writable(str(folder)))) == 1


def test_nothing_is_copied_on_one_filesystem(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("rocksdb"))
    inodes = {p.name: p.stat().st_ino for p in folder.rglob("*.zip")}
    ssts = {p.stat().st_ino for p in folder.rglob("*.sst")}
    backup = rewind(folder, 3)
    place = folder / ".ebbtide/backups" / backup.id
    moved = {p.name: p.stat().st_ino for p in (place / "taken").rglob("*.zip")}
    assert moved
    assert set(moved.values()) <= set(inodes.values()) | {
        p.stat().st_ino for p in folder.rglob("*.zip")
    }
    assert {p.stat().st_ino for p in (place / "kept").rglob("*.sst")} <= ssts


def test_a_damaged_backup_is_not_half_restored(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    backup = rewind(folder, 3)
    (folder / f".ebbtide/backups/{backup.id}/taken/commits/5").unlink()
    before = snapshot(folder)
    with pytest.raises(CheckpointError, match=r"not complete: .*/taken/commits/5 is missing"):
        undo(folder)
    assert snapshot(folder) == before


@dataclass(frozen=True)
class StillRunning(WritableFolder):
    """Spark's maintenance, still alive, removes a file that is just about to be moved."""

    def changing(self, what: str, path: str) -> None:
        if what == "move" and path == "state/0/1/6.delta":
            (Path(self.root) / path).unlink()
            raise FileNotFoundError(path)


def test_a_file_that_vanishes_does_not_hold_up_a_rewind(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    opened = open_writable(str(folder))
    plan = plan_rewind(RewindRequest(str(folder), ToBatch(4), assume_stopped=True, remedy="none"))
    running = StillRunning(opened.url, opened.filesystem, opened.root)
    backup = apply_rewind(plan, assume_stopped=True, folder=running)
    assert backup.vanished == ("state/0/1/6.delta",)
    assert json.loads((folder / ".ebbtide/audit.jsonl").read_text())["vanished"] == 1
    undo(folder)
    assert read_checkpoint(str(folder)).restorable[4] is None


@dataclass(frozen=True)
class LateUpload(WritableFolder):
    """Spark's maintenance uploads a snapshot while the logs are being moved."""

    def changing(self, what: str, path: str) -> None:
        if what == "move" and path == "commits/6":
            (Path(self.root) / "state/0/0/6.snapshot").write_text("old timeline")


def test_what_appears_meanwhile_is_taken_too(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    opened = open_writable(str(folder))
    plan = plan_rewind(RewindRequest(str(folder), ToBatch(3), assume_stopped=True, remedy="none"))
    late = LateUpload(opened.url, opened.filesystem, opened.root)
    backup = apply_rewind(plan, assume_stopped=True, folder=late)
    assert backup.appeared == ("state/0/0/6.snapshot",)
    assert not (folder / "state/0/0/6.snapshot").exists()
    assert all(max(found) <= 3 for found in versions(folder).values())


@dataclass(frozen=True)
class Eraser(WritableFolder):
    """Spark's maintenance removes what the first batch needs."""

    def changing(self, what: str, path: str) -> None:
        if what == "move" and path == "commits/6":
            (Path(self.root) / "state/0/0/1.delta").unlink(missing_ok=True)


def test_what_the_first_batch_needs_is_brought_back(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    opened = open_writable(str(folder))
    plan = plan_rewind(RewindRequest(str(folder), ToBatch(3), assume_stopped=True, remedy="none"))
    eraser = Eraser(opened.url, opened.filesystem, opened.root)
    apply_rewind(plan, assume_stopped=True, folder=eraser)
    assert read_checkpoint(str(folder)).restorable[3] is None


@dataclass(frozen=True)
class Scratched(WritableFolder):
    """What the first batch needs is damaged while the logs are being moved."""

    def changing(self, what: str, path: str) -> None:
        if what == "move" and path == "commits/6":
            for sst in (Path(self.root) / "state/0/0/SSTs").glob("000001-*"):
                sst.write_bytes(b"x")


def test_a_rewind_that_does_not_read_back_can_be_undone(inside: Cli, tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("rocksdb"))
    opened = open_writable(str(folder))
    before = set(snapshot(folder))
    plan = plan_rewind(RewindRequest(str(folder), ToBatch(3), assume_stopped=True, remedy="none"))
    for disk in (Scratched(opened.url, opened.filesystem, opened.root), opened):
        with pytest.raises(CheckpointError, match=r"has 1 bytes, not .* back: ebbtide undo"):
            apply_rewind(plan, assume_stopped=True, folder=disk)
    undone = inside("undo", folder, "--yes", "--assume-stopped")
    assert undone.returncode == 0, undone.stderr
    assert set(snapshot(folder)) == before
    assert "the query cannot go on from here" in undone.stderr


def test_a_finished_rewind_does_not_swallow_the_next(tmp_path: Path) -> None:
    """The power was cut after the barrier had come down, and the query ran on."""
    folder = make(tmp_path / "c", Shape("hdfs"))
    opened = open_writable(str(folder))
    backup = rewind(folder, 3)
    journal = Journal("rewind", backup.id, None, 3, "exact", "--to-batch 3", 7, "10 finish")
    write_journal(opened, journal)
    other = make(tmp_path / "other", Shape("hdfs", batches=9))
    shutil.copytree(other, folder, dirs_exist_ok=True)
    assert finish_interrupted(str(folder), "rewind", lambda _journal: True) is None
    rewind(folder, 3)
    assert [n for n in names(folder, "commits") if n.isdigit()] == ["0", "1", "2"]


def test_a_cut_line_in_the_audit_log_is_left_alone(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    (folder / ".ebbtide").mkdir()
    (folder / ".ebbtide/audit.jsonl").write_text('{"at": "2026')
    rewind(folder, 3)
    lines = (folder / ".ebbtide/audit.jsonl").read_text().splitlines()
    assert (lines[0], json.loads(lines[1])["action"]) == ('{"at": "2026', "rewind")


def test_a_barrier_without_a_journal_is_seen(inside: Cli, tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    (folder / "offsets/7").write_text("ebbtide: A rewind was interrupted.\n")
    with pytest.raises(CheckpointError, match="the barrier of a rewind whose journal is gone"):
        rewind(folder, 3)
    assert "journal is gone" in inside("inspect", folder).stderr
    assert inside("verify", folder).returncode == 1


def test_pruning_by_age_and_count(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs", batches=9))
    made = [rewind(folder, batch) for batch in (7, 6, 5, 4)]
    where = str(folder)
    assert prune_backups(where, older_than=parse_duration("P1D")) == []
    assert prune_backups(where, keep=9) == []
    assert prune_backups(where, keep=3) == made[:1]
    assert prune_backups(where, older_than=parse_duration("PT0S"), keep=1) == made[1:3]
    assert [backup.id for backup in Backup.read_all(open_writable(where))] == [made[3].id]
    undo(folder)
    audit = (folder / ".ebbtide/audit.jsonl").read_text().splitlines()
    assert [json.loads(line)["action"] for line in audit] == ["rewind"] * 4 + ["prune"] * 3 + [
        "undo"
    ]
    assert {"at", "by", "fingerprint", "result"} <= set(json.loads(audit[0]))


def test_recent_writes_refuse_and_name_their_age(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    verdict = plan_rewind(RewindRequest(str(folder), ToBatch(3), remedy="none")).refusals[0]
    assert verdict.name == "not running"
    assert "it wrote 0 s ago" in verdict.detail
    assert "--assume-stopped" in verdict.next
    old = time.time() - 300
    for path in folder.rglob("*"):
        os.utime(path, (old, old))
    plan = plan_rewind(RewindRequest(str(folder), ToBatch(3), remedy="none"))
    assert plan.refusals == ()
    # … it wrote between the plan and the apply
    os.utime(folder / "commits/6")
    with pytest.raises(CheckpointError, match="may be running: it wrote 0 s ago"):
        apply_rewind(plan)


def test_a_query_that_pauses_long_may_just_be_waiting(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    for n in range(7):
        text = (folder / f"offsets/{n}").read_text()
        text = text.replace(f'"batchTimestampMs": {1000 + n}', f'"batchTimestampMs": {n * 600_000}')
        (folder / f"offsets/{n}").write_text(text)
    old = time.time() - 900
    for path in folder.rglob("*"):
        os.utime(path, (old, old))
    assert (
        "it wrote 15 min ago"
        in plan_rewind(RewindRequest(str(folder), ToBatch(3), remedy="none")).refusals[0].detail
    )


def test_our_own_lease_decides(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    opened = open_writable(str(folder))
    lease = {
        "host": socket.gethostname(),
        "processes": [[os.getpid(), None]],
        "renewed": time.time(),
    }
    from ebbtide.processes import start_time

    lease["processes"] = [[os.getpid(), start_time(os.getpid())]]
    write_note(opened, "lease.json", lease)
    refused = plan_rewind(
        RewindRequest(str(folder), ToBatch(3), assume_stopped=True, remedy="none")
    ).refusals[0]
    assert f"the query is running (process {os.getpid()})" in refused.detail
    write_note(opened, "lease.json", lease | {"released": True})
    assert plan_rewind(RewindRequest(str(folder), ToBatch(3), remedy="none")).refusals == ()
    # a silent lease of another host proves nothing
    silent = {"host": "elsewhere", "renewed": time.time() - 100}
    write_note(opened, "lease.json", lease | silent)
    assert (
        "it wrote"
        in plan_rewind(RewindRequest(str(folder), ToBatch(3), remedy="none")).refusals[0].detail
    )
    # somebody else ran it since
    write_note(opened, "lease.json", lease | {"released": True, "renewed": time.time() - 300})
    assert (
        "it wrote"
        in plan_rewind(RewindRequest(str(folder), ToBatch(3), remedy="none")).refusals[0].detail
    )


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda c: (c / "state/0/1/4.zip").unlink(), "version 4 is missing"),
        (lambda c: next(iter((c / "state/0/0/SSTs").glob("000001-*"))).unlink(), "is missing"),
        (
            lambda c: next(iter((c / "state/0/0/SSTs").glob("000002-*"))).write_bytes(b"x"),
            "has 1 bytes, not",
        ),
        (lambda c: (c / "state/0/1/4.zip").write_bytes(b"PK no zip"), "is damaged"),
        (lambda c: shutil.rmtree(c / "state/0/1"), "lacks 1 of 2 partitions"),
        (lambda c: (c / "state/0/1/4.parquet").touch(), "not written by Spark"),
        (lambda c: (c / "commits/3").unlink(), "batch 3 is not committed"),
    ],
)
def test_what_does_not_load_refuses(damage: object, says: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("rocksdb", operator_metadata="v1"))
    damage(folder)  # type: ignore[operator]
    before = snapshot(folder)
    plan = plan_rewind(RewindRequest(str(folder), ToBatch(4), assume_stopped=True, remedy="none"))
    assert says in plan.refusals[0].detail
    with pytest.raises(CheckpointError, match="cannot be rewound"):
        apply_rewind(plan, assume_stopped=True)
    assert snapshot(folder) == before


def test_version_2_follows_ids_not_names(tmp_path: Path) -> None:
    """A version of another timeline beside the right one is not taken for it."""
    folder = make(tmp_path / "c", Shape("v2"))
    right = next(iter((folder / "state/0/1").glob("4_*.changelog")))
    wrong = right.with_name("4_0000-other.changelog")
    shutil.copy(right, wrong)
    chain = next(
        n for n in plan_rewind(RewindRequest(str(folder), ToBatch(4))).state if n.partition == 1
    ).chain
    assert all("0000-other" not in path for path in chain)
    for path in (folder / "state/0/1").glob("4_*.zip"):
        path.unlink()
    right.unlink()
    refused = plan_rewind(
        RewindRequest(str(folder), ToBatch(4), assume_stopped=True, remedy="none")
    ).refusals
    assert "with the id that commits/3 names is missing" in refused[0].detail


@pytest.mark.parametrize("layout", ["none", "hdfs"])
def test_offsets_without_a_partition_count_cannot_be_repeated(layout: str, tmp_path: Path) -> None:
    """As Spark 4.2 writes them in a query's first run with format 2; here up to batch 3."""
    folder = make(tmp_path / "c", Shape(layout))
    for n in range(7):
        text = (folder / f"offsets/{n}").read_text()
        text = text.replace("v1", "v2").replace('\n{"vis', '\n0:{"vis')
        if n <= 3:
            text = text.replace('{"spark.sql.shuffle.partitions": "2"}', "{}")
        (folder / f"offsets/{n}").write_text(text)

    def refusals(batch: int, *, replan: bool = False) -> list[str]:
        plan = plan_rewind(
            RewindRequest(
                str(folder), ToBatch(batch), replan=replan, assume_stopped=True, remedy="none"
            )
        )
        return [check.detail for check in plan.refusals]

    for batch in (1, 3, 4):
        assert "does not name the number of partitions" in refusals(batch)[0]
        assert refusals(batch, replan=True) == []
    assert refusals(0) == refusals(5) == []
    (folder / "offsets/6").unlink()
    (folder / "commits/6").unlink()
    (folder / "offsets/5").unlink()
    (folder / "commits/5").unlink()
    assert plan_rewind(RewindRequest(str(folder), ToLatestGood())).first_batch == 0
    assert plan_rewind(RewindRequest(str(folder), ToLatestGood(), replan=True)).first_batch == 4


def test_nobody_asked_kafka() -> None:
    silent = (Replayed("visits", 0, current=6, new=3),)
    (check,) = check_kafka(silent, None, 3, None)
    assert (check.verdict, check.next) == ("warn", "Add --bootstrap-servers.")
    held = (replace(silent[0], status="ok"),)
    (check,) = check_kafka(held, {"visits": Topic("visits", "", {0: (0, 9)})}, 3, None)
    assert check.verdict == "ok"


def test_a_plan_that_asked_kafka_is_not_applied_without_asking(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    plan = plan_rewind(RewindRequest(str(folder), ToBatch(5), assume_stopped=True, remedy="none"))
    held = CheckKind.KAFKA.ok("holds the whole range: at most 6 records")
    asked = replace(plan, checks=tuple(held if c.kind == "kafka" else c for c in plan.checks))
    before = snapshot(folder)
    says = r"has kafka as ok, but now nobody asked Kafka .* Add --bootstrap-servers\. Or make a new"
    with pytest.raises(CheckpointError, match=says):
        apply_rewind(asked, assume_stopped=True)
    assert snapshot(folder) == before
    assert apply_rewind(plan, assume_stopped=True).taken, "nobody asked, and the plan says so"


def test_a_remote_file_of_the_same_size_is_another_file(tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    place = f"/bucket/{tmp_path.name}"
    memory.put(str(make(tmp_path / "c", Shape("hdfs"))), place, recursive=True)
    plan = plan_rewind(
        RewindRequest(f"memory:/{place}", ToBatch(5), assume_stopped=True, remedy="none")
    )
    content = memory.cat_file(f"{place}/state/0/0/4.snapshot")
    memory.pipe_file(f"{place}/state/0/0/4.snapshot", content[::-1])
    with pytest.raises(CheckpointError, match="has changed since the plan was made"):
        apply_rewind(plan, assume_stopped=True)
    memory.rm(place, recursive=True)


def test_nothing_at_all_is_left_for_batch_0_anew(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    assert [n for n in names(folder, "offsets") if n.endswith(".tmp")]
    rewind(folder, 0, replan=True)
    assert names(folder, "offsets") == names(folder, "commits") == []


def test_gaps_are_kept_for_an_undo(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("none", batches=31))
    for n in set(range(31)) - {0, 10, 20, 30}:
        for log in ("offsets", "commits"):
            (folder / log / str(n)).unlink()
            (folder / log / f".{n}.crc").unlink()
    backup = rewind(folder, 30)
    assert {"offsets/10", "offsets/20", "commits/20", "offsets/30"} <= set(backup.kept)


def test_backups_are_pruned_beside_a_running_query(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs", batches=9))
    for batch in (7, 6):
        rewind(folder, batch)
    with hold_lease(open_writable(str(folder)), RUN):
        assert len(prune_backups(str(folder), keep=1)) == 1


def test_sinks_that_skip_and_cannot_be_looked_at_are_refused(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    opened = open_writable(str(folder))

    def check(kind: str) -> Check:
        owner = Owner(sink={"kind": kind, "name": "out"}, location=opened.address)
        write_note(opened, "pipeline.json", owner.to_dict())
        return plan_rewind(RewindRequest(str(folder), ToBatch(4))).checks[-1]

    assert (check("delta").verdict, check("files").verdict) == ("refuse", "refuse")
    assert "where it lies was not noted" in check("delta").detail
    assert (check("kafka").verdict, check("kafka").detail) == (
        "warn",
        "out gets the output of batches 4 to 6 again",
    )


def test_an_aggregation_without_a_key_has_one_partition(tmp_path: Path) -> None:
    """Whatever is configured; Spark's metadata names the configured number all the same."""
    folder = make(tmp_path / "c", Shape("hdfs", operator_metadata="v1"))
    shutil.rmtree(folder / "state/0/1")
    schema = folder / "state/0/0/_metadata/schema"
    schema.write_bytes(b'\0\2v2\0\0\0\1\0\x1d{"type":"struct","fields":[]}\0\0\0\1')
    assert (
        plan_rewind(
            RewindRequest(str(folder), ToBatch(4), assume_stopped=True, remedy="none")
        ).refusals
        == ()
    )
    assert not verify_checkpoint(str(folder)).broken
    schema.write_bytes(b'\0\2v2\0\0\0\1\0\x1d{"type":"struct","fields":[{"name":"k"}]}\0')
    refused = plan_rewind(
        RewindRequest(str(folder), ToBatch(4), assume_stopped=True, remedy="none")
    ).refusals
    assert "lacks 1 of 2 partitions" in refused[0].detail


def test_lineage_is_read_no_further_than_it_goes() -> None:
    lineage = b'[{"version":3,"checkpointUniqueId":"a-long-id"}]'
    head = b"\0\2v4" + struct.pack(">H", len(lineage)) + lineage
    block = head + b"x" * 30_000
    packed = b"LZ4Block" + struct.pack("<BiiI", 0x16, len(block), len(block), 0) + block
    stream = io.BytesIO(packed * 1_000)
    assert read_lineage(stream) == {3: "a-long-id"}
    assert stream.tell() <= 2 * len(packed)
    for broken in (b"", b"LZ4Block", packed[:40], b"ZV\1"):
        with pytest.raises(ValueError, match="it "):
            read_lineage(io.BytesIO(broken))


def test_gaps_of_asynchronous_progress_are_understood(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("none", batches=10))
    for n in (1, 2, 4, 5, 7):
        for log in ("offsets", "commits"):
            (folder / log / str(n)).unlink()
            (folder / log / f".{n}.crc").unlink()
    found = read_checkpoint(str(folder))
    assert [batch.id for batch in found.logs.batches] == [0, 3, 6, 8, 9]
    assert set(found.restorable.values()) == {None}
    with pytest.raises(CheckpointError, match=r"have gaps. Try --to-batch 3"):
        plan_rewind(RewindRequest(str(folder), ToBatch(5)))
    rewind(folder, 6)
    assert [n for n in names(folder, "offsets") if n.isdigit()] == ["0", "3", "6"]


def test_rewind_on_the_command_line(inside: Cli, tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("rocksdb"))
    before = snapshot(folder)
    flags = ("--to-batch", "5", "--assume-stopped", "--sink", "none")
    dry = inside("rewind", folder, *flags, "-o", "json")
    assert dry.returncode == 0, dry.stderr
    plan = json.loads(dry.stdout)
    assert (plan["first_batch"], plan["mode"]) == (5, "exact")
    assert {"name", "verdict", "detail", "next"} == set(plan["checks"][0])
    assert "commits/6" in plan["removals"]
    assert plan["sources"][0]["partitions"][1]["records"] == 4
    assert snapshot(folder) == before
    assert not (folder / ".ebbtide").exists()
    table = inside("rewind", folder, *flags)
    assert max(map(len, table.stdout.splitlines())) <= 80
    assert "Nothing has changed. To do it: ebbtide rewind" in table.stderr
    done = inside("rewind", folder, *flags, "--execute", "--yes")
    assert done.returncode == 0, done.stderr
    assert "To undo it: ebbtide undo" in done.stderr
    row = inside("backups", folder).stdout.splitlines()[-1].split()
    assert "rewind-to-5" in row[0]
    files = len(plan["removals"])
    assert f"{files} files go into a backup" in table.stderr
    assert row[5] == str(files), "counted as in the plan"
    assert inside("undo", folder, "--assume-stopped").returncode == 2
    assert inside("undo", folder, "--assume-stopped", "--yes").returncode == 0
    assert snapshot(folder) == before


def test_a_saved_plan_on_the_command_line(inside: Cli, tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    file = tmp_path / "plan.json"
    flags = ("--shift-by", "-2", "--sink", "none", "--assume-stopped", "--save-plan", file)
    saved = inside("rewind", folder, *flags)
    assert saved.returncode == 0, saved.stderr
    (folder / "offsets/6").write_text((folder / "offsets/5").read_text())
    refused = inside("apply", file, "--yes", "--assume-stopped")
    assert refused.returncode == 1
    assert "has changed since the plan was made" in refused.stderr
    inside("rewind", folder, *flags)
    assert inside("apply", file, "--yes", "--assume-stopped").returncode == 0
    assert read_checkpoint(str(folder)).logs.batches[-1].id == 5


def test_state_that_is_gone_altogether_is_missed(tmp_path: Path) -> None:
    """In format version 2, the commit log names the operators that have state."""
    folder = make(tmp_path / "c", Shape("v2"))
    shutil.rmtree(folder / "state/0")
    missing = "operator 0 has no state: state/0 is gone"
    verified = verify_checkpoint(str(folder))
    assert verified.next is not None
    assert verified.next.reason == missing
    assert [proof.verdict for proof in verified.proofs][-1] == "broken"
    request = RewindRequest(str(folder), ToBatch(5), assume_stopped=True, remedy="none")
    with pytest.raises(CheckpointError, match=missing):
        plan_rewind(request).require_allowed()


def test_a_backup_names_the_batches_that_ran(inside: Cli, tmp_path: Path) -> None:
    """Not a range that ends before it begins, nor one of one batch."""
    folder = make(tmp_path / "c", Shape("hdfs", batches=7, committed=6))
    never = "nothing was rewound, or the backups were pruned."
    assert f"There is no backup: {never}" in inside("backups", folder).stderr
    assert f"c has no backup: {never}" in inside("undo", folder, "--assume-stopped").stderr
    rewind(folder, 6, replan=True)
    assert " 6 (planned) " in inside("backups", folder).stdout
    undo = ("undo", folder, "--assume-stopped", "--yes")
    assert "no committed batch comes back; what runs from batch 6 on" in inside(*undo).stderr
    one = inside("rewind", folder, "--shift-by", "-1", "--sink", "none", "--assume-stopped")
    assert "to batch 5 (the last batch, up to 5)" in one.stderr + one.stdout
    rewind(folder, 5)
    assert inside("backups", folder).stdout.split("\n")[-2].split()[2] == "5"
    assert "batch 5 comes back" in inside(*undo).stderr
    rewind(folder, 4)
    assert "batches 4 to 5 come back" in inside(*undo).stderr
