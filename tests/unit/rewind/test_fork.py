"""A fork holds what its first batch needs and no more, whatever happens meanwhile."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import fsspec
import pytest

from ebbtide.checkpoint import Timeline, read_checkpoint
from ebbtide.checkpoint.verification import verify_checkpoint
from ebbtide.errors import CheckpointError, UsageError
from ebbtide.notes import read_note, write_note
from ebbtide.rewind import RewindRequest, apply_rewind, plan_rewind, undo_rewind
from ebbtide.rewind import fork as forks
from ebbtide.rewind.holders import read_leases
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import Folder, Listing, WritableFolder, open_writable
from tests.compat.kept import FIXTURES, unpack
from tests.conftest import Cli
from tests.outputs import write_files
from tests.power import barrier, cut
from tests.trees import JOIN_STORES, LAYOUTS, Shape, make, snapshot

SHAPES = {
    **{layout: Shape(layout, operator_metadata="v1") for layout in LAYOUTS},
    "tws": Shape("rocksdb", operator_metadata="v2", spark_checksums=True),
    "join": Shape("hdfs", stores=JOIN_STORES, operators=2),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("replan", [False, True], ids=["exact", "replan"])
def test_what_its_first_batch_needs(shape: Shape, replan: bool, tmp_path: Path) -> None:
    origin = make(tmp_path / "c", shape)
    before = snapshot(origin)
    for batch in range(8):  # the last one is not planned yet
        new = tmp_path / f"fork-{batch}"
        made = forks.fork_checkpoint(str(origin), str(new), batch, replan=replan)
        assert snapshot(origin) == before
        found = read_checkpoint(str(new))
        assert found.logs.query_id == made.query_id != read_checkpoint(str(origin)).logs.query_id
        anew = replan or batch == 7
        assert made.mode == ("replan" if anew else "exact")
        ids = [known.id for known in found.logs.batches]
        assert ids == list(range(max(0, batch - 2), batch if anew else batch + 1))
        assert [known.committed for known in found.logs.batches] == [id_ < batch for id_ in ids]
        # every checksum fits, the state loads, and there is no other
        report = verify_checkpoint(str(new))
        proof = report.next if anew else report.proofs[-1]
        assert proof is None or (proof.batch, proof.verdict) == (batch, "good")
        chains = found.chains(batch)
        assert len(chains) == len(read_checkpoint(str(origin)).chains(batch))
        versions = {path for chain in chains.values() for path in chain.files}
        assert {
            store.path(f.name) for store in found.stores for f in store.versions.files_above(0)
        } == versions
        assert not found.unknown
        linked = [path for path in snapshot(new) if _same_file(origin / path, new / path)]
        own = {"metadata", *(path for path in made.bytes if "/_metadata/v2/" in path)}
        assert set(snapshot(new)) - set(linked) <= own


KEPT = sorted(FIXTURES.glob("*/*.tar.gz"))


@pytest.mark.parametrize("archive", KEPT, ids=[f"{a.parent.name}-{a.name[:-7]}" for a in KEPT])
def test_checkpoints_that_spark_wrote(archive: Path, tmp_path: Path) -> None:
    """Of every version and layout, at the oldest batch that can run again and at the last one."""
    origin = unpack(archive, tmp_path / "c")
    before, found = snapshot(origin), read_checkpoint(str(origin))
    again = [batch for batch, reason in found.restorable.items() if reason is None]
    for batch in (again[0], again[-1]):
        new = tmp_path / f"{batch}"
        forks.fork_checkpoint(str(origin), str(new), batch, replan=bool(found.why_no_repeat(batch)))
        report = verify_checkpoint(str(new))
        proofs = {p.batch: p.verdict for p in (*report.proofs, report.next) if p is not None}
        assert proofs.get(batch, "good") == "good"
        for path in new.glob("state/*/_metadata/v2/*"):
            named = re.findall(r'file:([^"]*_stateSchema/[^"]*)', path.read_text())
            assert named
            assert all(Path(schema).is_relative_to(new) for schema in named)
            assert all(Path(schema).exists() for schema in named)
    assert snapshot(origin) == before


def _same_file(one: Path, other: Path) -> bool:
    return one.exists() and os.path.samefile(one, other)


def test_what_it_says_of_itself(tmp_path: Path) -> None:
    origin = make(tmp_path / "c", Shape("hdfs"))
    folder = open_writable(str(origin))
    write_note(folder, "pipeline.json", {"pipeline": "p", "sink": {"kind": "kafka", "name": "t"}})
    write_note(folder, "dead-letters.json", {"done": {"0": 6}, "written": {}, "replayed": {}})
    made = forks.fork_checkpoint(str(origin), str(tmp_path / "n"), 4)
    new = open_writable(str(tmp_path / "n"))
    assert Timeline.read(new) == Timeline().branch(4, "exact", made.name)
    assert made.name.startswith("fork-")
    # what is in the sink is the first's: a rewind of the fork does not take it back
    assert read_note(new, "pipeline.json") == {"pipeline": "p"}
    assert made.sink == {"kind": "kafka", "name": "t"}
    # as after a rewind: what the first has set aside already is not set aside again
    assert read_note(new, "dead-letters.json") == read_note(folder, "dead-letters.json")
    note = read_note(new, "fork.json") or {}
    assert (note["origin"], note["first_batch"]) == (str(origin), 4)
    line = json.loads((tmp_path / "n" / ".ebbtide" / "audit.jsonl").read_text())
    assert (line["action"], line["result"], line["files"]) == ("fork", "done", len(made.bytes))
    # a fork of a fork: each part of the timeline that came before its first batch is named
    again = forks.fork_checkpoint(str(tmp_path / "n"), str(tmp_path / "m"), 4)
    names = [part.name for part in Timeline.read(open_writable(str(tmp_path / "m"))).parts]
    assert names == ["origin", again.name]


def test_schemas_are_looked_for_in_the_fork(tmp_path: Path) -> None:
    origin = make(tmp_path / "my ckpt", Shape("rocksdb", operator_metadata="v2"))
    schema = next((origin / "state/0/_stateSchema/default").glob("0_*")).name
    place = "state/0/_stateSchema/default"
    for path in origin.glob("state/0/_metadata/v2/?"):
        named = [f"file:{origin}/{place}/{schema}", f"file:/moved/from/{place}/{schema}"]
        path.write_text("v2\n" + json.dumps({"stateStoreInfo": [{"stateSchemaFilePaths": named}]}))
    forks.fork_checkpoint(str(origin), str(tmp_path / "a fork"), 2)
    found = (tmp_path / "a fork/state/0/_metadata/v2/0").read_text()
    (info,) = json.loads(found.split("\n")[1])["stateStoreInfo"]
    assert info["stateSchemaFilePaths"] == [f"file:{tmp_path}/a fork/{place}/{schema}"] * 2
    assert (tmp_path / "a fork" / place / schema).exists()
    assert not list((tmp_path / "a fork").glob("state/0/_metadata/v2/.*"))


def test_a_kill_leaves_nothing_that_spark_starts_on(tmp_path: Path) -> None:
    origin, new = make(tmp_path / "c", Shape("v2", partitions=1)), tmp_path / "n"

    def fork(on: WritableFolder) -> None:
        forks.fork_checkpoint(str(origin), str(new), 3, folder=on)

    before, cuts = snapshot(origin), 0
    while cut(new, cuts, fork):
        if new.exists() and snapshot(new):
            line = barrier(new)
            if line is None:  # all is done, and only the lease is not given back
                break
            assert f"Make it again: ebbtide fork {origin} {new} --at-batch 3" in line
        cuts += 1
        # what is half made goes when it is made anew, half of the time here
        if cuts % 2:
            shutil.rmtree(new, ignore_errors=True)
    assert cuts > 20
    assert barrier(new) is None
    assert verify_checkpoint(str(new)).proofs[-1].verdict == "good"
    assert snapshot(origin) == before


@dataclass(frozen=True)
class Cleaned(WritableFolder):
    """A folder into which a fork is made while Spark cleans up the original."""

    doomed: list[Path] = field(default_factory=list)

    def changing(self, what: str, path: str) -> None:
        if what == "link" and self.doomed:
            self.doomed.pop().unlink()
        super().changing(what, path)


def test_a_file_that_vanishes_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    origin, found = make(tmp_path / "c", Shape("hdfs")), open_writable(str(tmp_path / "n"))
    on = Cleaned(found.url, found.filesystem, found.root, doomed=[origin / "state/0/1/5.delta"])
    with pytest.raises(CheckpointError, match=r"has lost a file .*state/0/1/5\.delta.*is running"):
        forks.fork_checkpoint(str(origin), str(tmp_path / "n"), 5, folder=on)
    assert not (tmp_path / "n").exists()


def test_a_fork_that_is_being_made_is_not_disturbed(tmp_path: Path) -> None:
    origin, new = make(tmp_path / "c", Shape("v2", partitions=1)), tmp_path / "n"
    refused: list[str] = []

    def at_once(done: int, of: int) -> None:
        if done in (1, of):
            with pytest.raises(CheckpointError) as told:
                forks.fork_checkpoint(str(origin), str(new), 5)
            refused.append(str(told.value))

    made = forks.fork_checkpoint(str(origin), str(new), 3, on_file=at_once)
    assert len(refused) == 2
    assert all(f"{new} is being made by another fork (process" in line for line in refused)
    found = read_checkpoint(str(new))
    assert (found.logs.query_id, found.logs.next_id) == (made.query_id, 3)
    assert verify_checkpoint(str(new)).proofs[-1].verdict == "good"
    (lease,) = read_leases(open_writable(str(new)))
    assert (lease.purpose, lease.released) == ("fork", True)


def test_of_many_forks_to_one_folder_one_is_made(tmp_path: Path) -> None:
    origin, new = make(tmp_path / "c", Shape("v2", partitions=8, batches=30)), tmp_path / "n"
    command = [sys.executable, "-m", "ebbtide", "fork", str(origin), str(new), "--at-batch", "28"]
    running = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    told = {process.pid: process.communicate()[1] for process in running}
    lost = [told[process.pid] for process in running if process.returncode]
    assert len(lost) == 3, told
    assert all("being made" in line or "is not empty" in line for line in lost), lost
    assert verify_checkpoint(str(new)).proofs[-1].verdict == "good"
    assert barrier(new) is None


@pytest.mark.parametrize("batch", [0, 4])
def test_a_folder_that_would_skip_the_first_batches_is_refused(
    batch: int, inside: Cli, tmp_path: Path
) -> None:
    origin, used = make(tmp_path / "c", Shape("hdfs")), tmp_path / "used"
    write_files(used, range(5))
    new = tmp_path / "n"
    refused = inside("fork", origin, new, "--at-batch", str(batch), "--sink-files", used)
    assert (refused.returncode, new.exists()) == (1, False)
    assert f"{used} would skip" in refused.stderr
    itself = inside("fork", origin, new, "--at-batch", "4", "--sink-files", new)
    assert (itself.returncode, new.exists()) == (2, False)


def test_a_fork_prepares_the_folder_of_another_job(inside: Cli, tmp_path: Path) -> None:
    origin, new = make(tmp_path / "c", Shape("hdfs")), tmp_path / "n"
    taken = tmp_path / "taken"
    write_files(taken, range(4))
    refused = inside("fork", origin, new, "--at-batch", "4", "--sink-files", taken)
    assert (refused.returncode, new.exists()) == (1, False)
    assert f"{taken} holds the log of another query" in refused.stderr
    done = inside("fork", origin, new, "--at-batch", "4", "--sink-files", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert snapshot(tmp_path / "out") == {"_spark_metadata/3.compact": b"v1"}
    assert f'.option("path", "{tmp_path}/out")\n' in done.stderr


def test_what_is_refused(tmp_path: Path) -> None:
    origin = make(tmp_path / "c", Shape("hdfs", batches=7, committed=6))
    before = snapshot(origin)
    (tmp_path / "full").mkdir()
    (tmp_path / "link").symlink_to(origin)
    (tmp_path / "full" / "letter.txt").write_text("dear")
    for new, batch, says in (
        ("full", 4, "is not empty: it holds letter.txt"),
        ("n", 7, "has no batch 7. It has 0 to 6"),
        ("n", -1, "has no batch -1"),
        ("c/inside", 4, "lies inside the checkpoint itself"),
        ("link/inside", 4, "lies inside the checkpoint itself"),
    ):
        with pytest.raises((CheckpointError, UsageError), match=says):
            forks.fork_checkpoint(str(origin), str(tmp_path / new), batch)
    assert (tmp_path / "full" / "letter.txt").read_text() == "dear"
    (origin / "state/0/1/2.delta").unlink()
    with pytest.raises(CheckpointError, match=r"cannot be forked at batch 2: .*See which batches"):
        forks.fork_checkpoint(str(origin), str(tmp_path / "n"), 2)
    assert not (tmp_path / "n").exists()
    del before["state/0/1/2.delta"]
    assert snapshot(origin) == before


def test_between_filesystems(tmp_path: Path) -> None:
    origin = make(tmp_path / "c", Shape("changelog"))
    memory = fsspec.filesystem("memory")
    for old, new in (
        (str(origin), "memory://a"),
        ("memory://a", "memory://b"),
        ("memory://b", str(tmp_path / "n")),
    ):
        forks.fork_checkpoint(old, new, 4)
        assert verify_checkpoint(new).proofs[-1].verdict == "good"
    there = snapshot(tmp_path / "n")
    assert {path: there[path] for path in there if path != "metadata"}.items() <= snapshot(
        origin
    ).items()
    memory.rm("/a", recursive=True)
    memory.rm("/b", recursive=True)


def test_the_command(inside: Cli, tmp_path: Path) -> None:
    origin, new = make(tmp_path / "c", Shape("hdfs")), tmp_path / "n"
    done = inside("fork", origin, new, "--at-batch", "4")
    assert done.returncode == 0
    assert "state of operator 0" in done.stdout
    assert "it also writes to the sink of the first" in done.stderr
    assert f'To run it, set in your job: .option("checkpointLocation", "{new}")\n' in done.stderr
    owner = {"pipeline": "visits-counter", "sink": {"kind": "files", "name": "out"}}
    write_note(open_writable(str(origin)), "pipeline.json", owner)
    told = inside("fork", origin, tmp_path / "m", "--at-batch", "4", "-o", "json")
    found = json.loads(told.stdout)
    assert (found["first_batch"], found["mode"], found["pipeline"]) == (
        4,
        "exact",
        "visits-counter",
    )
    assert f"To run it: ebbtide run visits-counter --checkpoint {tmp_path}/m" in told.stderr
    assert (
        f'In a job of your own, set: .option("checkpointLocation", "{tmp_path}/m")\n' in told.stderr
    )
    assert "the file sink out skips batches that it has seen" in told.stderr
    again = inside("fork", origin, new, "--at-batch", "4")
    assert (again.returncode, again.stdout) == (1, "")
    assert "is not empty" in again.stderr


def test_a_fork_is_of_one_timeline_though_an_undo_goes_on_meanwhile(tmp_path: Path) -> None:
    """It silently had some files of the old timeline, and some of the new one."""
    shape = Shape("hdfs", batches=3, partitions=1, hadoop_checksums=False)
    folder, new = make(tmp_path / "c", shape), tmp_path / "f"
    request = RewindRequest(str(folder), ToBatch(1), assume_stopped=True, remedy="none")
    apply_rewind(plan_rewind(request), assume_stopped=True)
    for path, content in snapshot(make(tmp_path / "o", replace(shape, seed="new"))).items():
        if not (folder / path).exists():  # the query ran on
            (folder / path).write_bytes(content)

    def undo_meanwhile(done: int, _: int) -> None:
        if done == 2:
            undo_rewind(str(folder), assume_stopped=True)

    with pytest.raises(CheckpointError, match="was rewound, undone or pruned while it was copied"):
        forks.fork_checkpoint(str(folder), str(new), 3, on_file=undo_meanwhile)
    assert not new.exists()
    forks.fork_checkpoint(str(folder), str(new), 3)
    states = {content for path, content in snapshot(new).items() if path.endswith(".delta")}
    assert len(states) == 3
    assert all(content.startswith(b"old ") for content in states)


def test_a_batch_that_goes_while_the_original_is_read_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rewind took it between the reading of the logs and the listing: it was a KeyError."""
    folder = make(tmp_path / "c", Shape(batches=3))
    origin = open_writable("memory://test-fork-vanished/c")
    for path, content in snapshot(folder).items():
        origin.filesystem.pipe_file(f"{origin.root}/{path}", content)
    scan = WritableFolder.scan

    def scan_later(found: WritableFolder) -> dict[str, Listing]:
        if found.exists("commits/1"):
            found.filesystem.rm_file(f"{found.root}/commits/1")
        return scan(found)

    monkeypatch.setattr(Folder, "scan", scan_later)
    with pytest.raises(CheckpointError, match="has lost a file while it was copied: commits/1"):
        forks.fork_checkpoint(origin.url, str(tmp_path / "f"), 2)
