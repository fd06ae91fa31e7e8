"""Escapes, bombs and nonsense: refused by name, in time, and nothing outside is touched."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ebbtide.checkpoint import Backup, Journal, read_checkpoint
from ebbtide.checkpoint.verification import verify_checkpoint
from ebbtide.cli.output import show_table
from ebbtide.connectors.kafka import Record
from ebbtide.errors import CheckpointError, UsageError
from ebbtide.history.event_times import event_time
from ebbtide.parsing import MAX_LOG_BYTES
from ebbtide.rewind import (
    RewindPlan,
    RewindRequest,
    apply_rewind,
    plan_rewind,
    undo_rewind,
)
from ebbtide.rewind.backups import prune_backups
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import open_folder, open_writable
from tests.conftest import Cli
from tests.hostile import Case, make_case, run_commands, take_digest
from tests.trees import Shape, make, snapshot

LIMIT_KEY = '\0\x02v2\0\0\0W{"type":"struct","fields":[{"name":"key","type":"void"}]}'
"""The beginning of the schema file that Spark 3.5 and 4.2 write for a limit."""
GLOBAL_KEY = '\0\x02v2\0\0\0\x1d{"type":"struct","fields":[]}'
"""The same for an aggregation without a key."""
LONG_KEY = '\0\x02v2\0\0\0Y{"type":"struct","fields":[{"name":"value","type":"long"}]}'


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """A rewound checkpoint, and a folder that nobody may touch."""
    return make_case(tmp_path / "case", Shape("rocksdb", batches=6))


def request(folder: Path, batch: int = 2) -> RewindRequest:
    return RewindRequest(str(folder), ToBatch(batch), assume_stopped=True)


def edit(file: Path, change: Callable[[Any], object]) -> None:
    note = json.loads(file.read_text())
    change(note)
    file.write_text(json.dumps(note))


def first_backup(case: Case) -> Path:
    return min((case.checkpoint / ".ebbtide/backups").iterdir())


# Escapes


@pytest.mark.parametrize("id_", ["..", "../../../outside", "x/../../../../outside", "", "/"])
@pytest.mark.parametrize("sink", ["outside", "outside/_ebbtide"])
def test_a_note_leads_no_pruning_out_of_the_checkpoint(case: Case, id_: str, sink: str) -> None:
    def climb(note: Any) -> None:
        note["id"] = id_
        note["sink"]["path"] = str(case.home / sink)

    edit(first_backup(case) / "backup.json", climb)
    before = take_digest(case.outside)
    with pytest.raises(CheckpointError, match=r"backup\.json is damaged"):
        prune_backups(str(case.checkpoint), keep=1)
    assert take_digest(case.outside) == before


@pytest.mark.parametrize("path", ["../../../../outside/keep", "/etc/passwd", "a/../../../b"])
@pytest.mark.parametrize("part", ["taken", "kept"])
def test_a_note_leads_no_undo_out_of_the_checkpoint(case: Case, path: str, part: str) -> None:
    edit(max((case.checkpoint / ".ebbtide/backups").iterdir()) / "backup.json", _append(part, path))
    with pytest.raises(CheckpointError, match=r"backup\.json is damaged"):
        undo_rewind(str(case.checkpoint), assume_stopped=True)


def _append(part: str, path: str) -> Callable[[Any], object]:
    return lambda note: note[part].append(path)


def test_a_path_leads_out_of_no_folder(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_text("x")
    (tmp_path / "c").mkdir()
    (tmp_path / "c/link").symlink_to(tmp_path / "other")
    folder = open_writable(str(tmp_path / "c"))
    for path in ("../other/file", f"{tmp_path}/other/file", "link/file"):
        for access in (folder.read, folder.exists, folder.stat, folder.remove, folder.remove_tree):
            with pytest.raises(CheckpointError, match="leads out of"):
                access(path)
        with pytest.raises(CheckpointError, match="leads out of"):
            folder.move(path, "here")
        with pytest.raises(CheckpointError, match="leads out of"):
            folder.write(path, "")
    with pytest.raises(CheckpointError, match="leads out of"):
        folder.names("link")
    folder.remove_tree("link")
    assert not (tmp_path / "c/link").is_symlink()
    assert (tmp_path / "other/file").read_text() == "x"


@pytest.mark.parametrize("name", [".ebbtide", ".ebbtide/backups"])
def test_our_notes_are_not_followed_out(case: Case, name: str) -> None:
    shutil.move(case.checkpoint / name, case.outside / "notes")
    (case.checkpoint / name).symlink_to(case.outside / "notes")
    before = take_digest(case.outside)
    for change in (
        lambda: prune_backups(str(case.checkpoint), keep=1),
        lambda: undo_rewind(str(case.checkpoint), assume_stopped=True),
        lambda: apply_rewind(plan_rewind(request(case.checkpoint)), assume_stopped=True),
    ):
        with pytest.raises(CheckpointError, match="leads out of"):
            change()
    assert take_digest(case.outside) == before


def test_a_lease_is_written_over_no_other_file(case: Case) -> None:
    lease = case.checkpoint / ".ebbtide/leases/99.json"
    lease.symlink_to(case.outside / "keep")
    with pytest.raises(CheckpointError, match=r"leases/99\.json"):
        prune_backups(str(case.checkpoint), keep=1)
    lease.unlink()
    shutil.rmtree(lease.parent)
    lease.parent.symlink_to(case.outside)
    with pytest.raises(CheckpointError, match="leads out of"):
        prune_backups(str(case.checkpoint), keep=1)
    assert (case.outside / "keep").read_text() == "never touch keep"


@pytest.mark.parametrize("target", ["nowhere", "3.delta"])
def test_a_link_to_nothing_in_a_chain_is_a_missing_file(target: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs", snapshot_every=99))
    (folder / "state/0/1/3.delta").unlink()
    (folder / "state/0/1/3.delta").symlink_to(target)  # nowhere, or to itself
    reason = "operator 0 partition 1: version 3 is missing"
    assert read_checkpoint(str(folder)).restorable[3] == reason
    proofs = {proof.batch: proof.reason for proof in verify_checkpoint(str(folder)).proofs}
    assert proofs[3] == reason
    plan = plan_rewind(request(folder))
    assert "state/0/1/3.delta (it is a link that leads nowhere)" in plan.refusals[0].detail


def test_circles_of_links_end(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    (folder / "state/0/up").symlink_to(folder)
    (folder / "state/0/1/up").symlink_to("../..")
    (folder / "offsets/7").symlink_to("7")
    unknown = read_checkpoint(str(folder)).unknown
    assert "state/0/up (it is a link to a folder)" in unknown
    assert "offsets/7 (it is a link that leads nowhere)" in unknown


def test_state_behind_a_link_is_refused_before_anything_moves(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    shutil.move(folder / "state", tmp_path / "disk")
    (folder / "state").symlink_to(tmp_path / "disk")
    plan = plan_rewind(request(folder))
    assert "state (it is a link to a folder)" in plan.refusals[0].detail
    with pytest.raises(CheckpointError, match="is a link to a folder"):
        apply_rewind(plan, assume_stopped=True)
    assert not list(folder.glob("offsets/*7"))


def test_a_file_moves_to_another_filesystem(tmp_path: Path, tmp_path_factory: Any) -> None:
    """The unit tests' folder lies in memory, the other one on the disk, where there is memory."""
    disk = tmp_path_factory.mktemp("disk")
    (tmp_path / "a").write_text("content")
    folder = open_writable("/")
    folder.move(str(tmp_path / "a")[1:], str(disk / "b/a")[1:])
    assert (disk / "b/a").read_text() == "content"
    assert [path.name for path in disk.rglob("*")] == ["b", "a"]
    assert not (tmp_path / "a").exists()


# Bombs


def test_metadata_of_a_snapshot_are_read_to_a_limit(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("rocksdb", partitions=1))
    with zipfile.ZipFile(folder / "state/0/0/3.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metadata", bytes(MAX_LOG_BYTES + 100))
    problem = plan_rewind(request(folder, 3)).refusals[0].detail
    assert f"its metadata have more than {MAX_LOG_BYTES:,} bytes" in problem


@pytest.mark.parametrize("count", [2**31 - 1, 10**11])
def test_a_huge_number_of_partitions(count: int, tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    entry = folder / "offsets/1"
    entry.write_text(entry.read_text().replace('partitions": "2"', f'partitions": "{count}"'))
    if count > 2**31:
        with pytest.raises(CheckpointError, match=r"offsets/1 is not a log .*partitions is '1000"):
            read_checkpoint(str(folder))
        return
    assert read_checkpoint(str(folder)).restorable[2] == "operator 0 has no partition 2"
    lacks = f"operator 0 lacks {count - 2} of {count} partitions, the first is 2"
    assert plan_rewind(request(folder)).refusals[0].detail == lacks


def test_a_huge_batch_is_no_loop_over_the_gap(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape())
    for log in ("offsets", "commits"):
        shutil.copy(folder / log / "6", folder / log / str(10**17))
    plan = plan_rewind(request(folder))
    assert plan.removals[:2] == (f"commits/{10**17}", f"offsets/{10**17}")


@pytest.mark.parametrize("name", ["²", "٣", "007", "9" * 19, "9" * 5000])
def test_numbers_are_those_that_spark_writes(name: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    if len(name) < 255:
        for place in ("offsets", "commits", "state/0/0", "state"):
            (folder / place / name).touch()
        (folder / f"state/0/0/{name}.delta").touch()
        unknown = read_checkpoint(str(folder)).unknown
        assert {f"offsets/{name}", f"state/0/0/{name}.delta"} <= set(unknown)
    entry = folder / "offsets/6"
    entry.write_text(entry.read_text().replace('"0": 6', f'"{name}": 6'))
    assert read_checkpoint(str(folder)).logs.batches[-1].positions == {}


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _zeros(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _huge(path: Path) -> None:
    os.truncate(path, 3 << 30)


@pytest.mark.parametrize("bomb", [_fifo, _zeros, _huge])
def test_a_pipe_a_device_or_a_huge_file_is_one_line(
    bomb: Callable[[Path], None], case: Case, inside: Cli
) -> None:
    journal = case.checkpoint / ".ebbtide/change.json"
    journal.write_text("{}")
    for path in (journal, case.plan, case.checkpoint / "offsets/2", case.checkpoint / "metadata"):
        bomb(path)
        # in a child, so that a hang fails the test and does not stop it
        assert run_commands(case, case.commands()) is None, path
        answer = inside("apply" if path == case.plan else "inspect", path.parent, "--yes")
        assert answer.returncode in (1, 2)


# Wrong types and depth


@pytest.mark.parametrize(
    ("path", "content", "says"),
    [
        ("metadata", '{"id":5}', "holds no query id"),
        ("metadata", '{"id":"\\ud800"}', "holds no query id"),
        ("metadata", "[" * 5000, "holds no query id"),
        ("offsets/4", 'v1\n{"conf":[1]}\n-', "its conf is not a map of texts"),
        ("offsets/4", 'v1\n{"conf":{"a":1}}\n-', "its conf is not a map of texts"),
        ("offsets/4", 'v1\n{"conf":{"spark.sql.shuffle.partitions":"²"}}\n-', "partitions is '²'"),
        ("offsets/4", 'v1\n{"conf":{"spark.sql.shuffle.partitions":"0"}}\n-', "partitions is '0'"),
        ("offsets/4", f'v1\n{{"batchTimestampMs":{2**63}}}\n-', "its batchTimestampMs is 9223"),
        ("offsets/4", 'v1\n{"batchTimestampMs":true}\n-', "its batchTimestampMs is True"),
        ("offsets/4", 'v1\n{"conf":' + "[" * 5000, "its second line is not JSON"),
        ("commits/4", 'v2\n{"stateUniqueIds":5}', "its stateUniqueIds are not"),
        ("commits/4", 'v2\n{"stateUniqueIds":{"0":[5]}}', "its stateUniqueIds are not"),
        ("commits/4", 'v2\n{"stateUniqueIds":{"0":[[5]]}}', "its stateUniqueIds are not"),
        ("commits/4", 'v2\n{"stateUniqueIds":{"0":"x"}}', "its stateUniqueIds are not"),
    ],
)
def test_nonsense_in_the_logs_is_named(path: str, content: str, says: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    (folder / path).write_text(content)
    with pytest.raises(CheckpointError, match=says) as refusal:
        read_checkpoint(str(folder))
    assert path in str(refusal.value)


@pytest.mark.parametrize(
    "metadata",
    [
        {"sstFiles": 5},
        {"sstFiles": [5]},
        {"sstFiles": [{"dfsSstFileName": "../../x", "sizeBytes": 1}]},
        {"sstFiles": [{"dfsSstFileName": "a.sst", "sizeBytes": "1"}]},
        {"sstFiles": [{"dfsSstFileName": "a.sst", "sizeBytes": -1}]},
        [],
    ],
)
def test_nonsense_in_a_snapshot_is_named(metadata: Any, tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("rocksdb", partitions=1))
    with zipfile.ZipFile(folder / "state/0/0/3.zip", "w") as archive:
        archive.writestr("metadata", f"v1\n{json.dumps(metadata)}")
    assert "state/0/0/3.zip is damaged" in plan_rewind(request(folder, 3)).refusals[0].detail
    assert read_checkpoint(str(folder)).shared_files(
        read_checkpoint(str(folder)).stores[0], "3.zip"
    ) in ([], ["state/0/0/SSTs/a.sst"])


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("change.json", {"phase": "6 lunch"}),
        ("change.json", {"backup": "gone"}),
        ("pipeline.json", {"sink": {"kind": 5, "name": "a"}}),
        ("pipeline.json", {"sink": {"name": "a"}}),
        ("pipeline.json", {"source": {"kind": "files", "path": 5}}),
        ("pipeline.json", {"source": {"kind": "kafka", "path": "t", "topic_ids": [{"id": 5}]}}),
        ("query-ids.json", {"ids": 5}),
        ("query-ids.json", {"ids": [5]}),
        ("timeline.json", {"timeline": [["origin", 0, "sideways"]]}),
        ("lease.json", {"host": "a", "processes": [[10**400, 1]], "renewed": 1}),
    ],
)
def test_nonsense_in_a_note_is_one_line(
    name: str, note: dict[str, Any], case: Case, inside: Cli
) -> None:
    id_ = first_backup(case).name
    journal = asdict(Journal("rewind", id_, None, 3, "exact", "--to-batch 3", 9, "5 sink"))
    whole = journal | note if name == "change.json" else note
    (case.checkpoint / ".ebbtide" / name).write_text(json.dumps(whole))
    words = ["undo"] if name == "query-ids.json" else ["rewind", "--to-batch", "3", "--execute"]
    answer = inside(*words, case.checkpoint, "--yes", "--assume-stopped")
    assert answer.returncode == 1, answer.stderr
    assert f"{name} is damaged" in answer.stderr


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("sinks.json", "Delete it, and name the sink again with --sink-table or --sink-files."),
        ("mode.json", "Delete it: the times of the log files then tell the mode of the last run."),
    ],
)
def test_a_damaged_note_that_can_be_done_without(
    name: str, advice: str, case: Case, inside: Cli
) -> None:
    note = case.checkpoint / ".ebbtide" / name
    note.parent.mkdir(exist_ok=True)
    note.write_text("cut")
    sink = case.checkpoint.parent / "sink"
    words = ("rewind", case.checkpoint, "--to-batch", "3", "--sink-files", sink, "--assume-stopped")
    refused = inside(*words)
    assert refused.returncode == 1
    assert refused.stderr.endswith(f"{name} is damaged. {advice}\n")
    note.unlink()
    assert inside(*words).returncode == 0


@pytest.mark.parametrize(
    "nonsense",
    [
        {"backup": "../../.."},
        {"restores": "../../../outside"},
        {"mode": "sideways"},
        {"first_batch": -5},
    ],
)
def test_a_journal_of_nonsense_is_not_followed(
    nonsense: dict[str, Any], case: Case, inside: Cli
) -> None:
    """Without a barrier, no change is under way, and it is removed."""
    id_ = first_backup(case).name
    journal = asdict(Journal("rewind", id_, None, 3, "exact", "--to-batch 3", 9, "5 sink"))
    note = case.checkpoint / ".ebbtide" / "change.json"
    note.write_text(json.dumps(journal | nonsense))
    outside = take_digest(case.outside)
    words = ["rewind", case.checkpoint, "--to-batch", "3", "--execute"]
    answer = inside(*words, "--yes", "--assume-stopped")
    assert answer.returncode == 0, answer.stderr
    assert not note.exists()
    assert take_digest(case.outside) == outside


def test_names_that_are_no_text(inside: Cli, tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    bad = b"caf\xe9"
    for place in ("", "offsets", "state/0/0", ".ebbtide/history", ".ebbtide/backups"):
        (folder / place).mkdir(parents=True, exist_ok=True)
        with open(os.fsencode(folder / place) + b"/" + bad, "wb"):
            pass
    for command in ("inspect", "verify", "history", "backups"):
        answer = inside(command, folder)
        assert answer.returncode == 0, answer.stderr
    assert "offsets/caf\\udce9 (its name is no Unicode)" in inside("inspect", folder).stderr
    assert inside("rewind", folder, "--to-batch", "2", "--assume-stopped").returncode == 1
    for wrong in (os.fsdecode(bad), "a\0b"):
        with pytest.raises(UsageError, match="is no path and no URL"):
            open_folder(wrong)


@pytest.mark.parametrize("value", [b"[" * 100_000, b'{"at":' * 5_000, b'{"at":1e999}', b"\xff"])
def test_a_record_nested_too_deep_has_no_event_time(value: bytes) -> None:
    assert event_time(Record("t", 0, 0, 0, None, value), "at", "UTC") is None


# Plans


@pytest.mark.parametrize(
    "change",
    [
        {"checkpoint": "{other}"},
        {"mode": "sideways"},
        {"mode": "replan"},
        {"first_batch": 3},
        {"first_batch": -1},
        {"removals": ["../outside/keep"]},
        {"target": "--to-batch 3"},
        {"digest": 5},
    ],
)
def test_an_edited_plan_is_refused(change: dict[str, Any], inside: Cli, case: Case) -> None:
    other = case.home / "other"
    shutil.copytree(case.checkpoint, other)  # times are kept: it has the same listings
    values = {k: v.format(other=other) if isinstance(v, str) else v for k, v in change.items()}
    edit(case.plan, lambda plan: plan.update(values))
    before = snapshot(case.checkpoint), snapshot(other), take_digest(case.outside)
    answer = inside("apply", case.plan, "--yes", "--assume-stopped")
    assert (answer.returncode, "or it was edited" in answer.stderr) == (2, True)
    assert (snapshot(case.checkpoint), snapshot(other), take_digest(case.outside)) == before


def test_a_plan_is_of_one_place_only(case: Case) -> None:
    other = case.home / "other"
    plan = plan_rewind(request(case.checkpoint))
    case.checkpoint.rename(other)
    moved = json.loads(json.dumps(plan_rewind(request(other)).to_dict()))
    assert moved["fingerprint"] != plan.fingerprint
    assert RewindPlan.from_dict(moved).checkpoint == str(other)


def test_a_path_with_colons_is_a_path(inside: Cli, tmp_path: Path) -> None:
    folder = make(tmp_path / "a::b", Shape("hdfs"))
    assert open_folder(str(folder)).root == str(folder)
    assert open_folder(f"file://{folder}").root == str(folder)
    answer = inside(
        "rewind",
        folder,
        "--to-batch",
        "2",
        "--execute",
        "--yes",
        "--assume-stopped",
        "--sink",
        "none",
    )
    assert answer.returncode == 0, answer.stderr
    assert len(Backup.read_all(open_folder(str(folder)))) == 1


# The number of partitions


@pytest.mark.parametrize(
    ("schema", "metadata", "verdict"),
    [
        (GLOBAL_KEY, None, "ok"),
        (LIMIT_KEY, None, "ok"),
        (LIMIT_KEY, "v1", "ok"),
        (None, None, "warn"),
        ("nonsense", None, "refuse"),
        (LONG_KEY, None, "refuse"),
    ],
)
@pytest.mark.parametrize("layout", ["hdfs", "changelog"])
def test_an_operator_without_a_key_has_one_partition(
    layout: str, schema: str | None, metadata: str | None, verdict: str, tmp_path: Path
) -> None:
    folder = make(tmp_path / "c", Shape(layout, partitions=3, operator_metadata=metadata))
    for partition in (1, 2):
        shutil.rmtree(folder / f"state/0/{partition}")
    file = folder / "state/0/0/_metadata/schema"
    file.unlink() if schema is None else file.write_text(schema)
    plan = plan_rewind(request(folder))
    assert {check.name: str(check.verdict) for check in plan.checks}["state"] == verdict


@pytest.mark.parametrize("partitions", [1, 3])
def test_in_format_2_the_commits_name_the_number_of_partitions(
    partitions: int, tmp_path: Path
) -> None:
    folder = make(tmp_path / "c", Shape("v2", partitions=partitions))
    for entry in (folder / "offsets").glob("[0-9]"):
        configured = entry.read_text().replace(f': "{partitions}"', ': "3"')
        entry.write_text(configured)
    for partition in range(1, partitions):
        shutil.rmtree(folder / f"state/0/{partition}")
    plan = plan_rewind(request(folder))
    verdict = {check.name: str(check.verdict) for check in plan.checks}["state"]
    assert verdict == ("ok" if partitions == 1 else "refuse")


def test_one_configured_partition_is_no_reason_to_warn(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs", partitions=1))
    (folder / "state/0/0/_metadata/schema").unlink()
    plan = plan_rewind(request(folder))
    assert {check.name: str(check.verdict) for check in plan.checks}["state"] == "ok"


def test_a_long_table_shows_its_last_rows(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(("batch",), [(batch,) for batch in range(1_200)])
    answer = capsys.readouterr()
    assert "The last 1,000 of 1,200 rows; -o json shows all of them." in answer.err
    assert "1199" in answer.out
    assert " 199 " not in answer.out
