"""One process at a time has a checkpoint, wherever it and the others run."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest

from ebbtide import processes
from ebbtide.checkpoint import read_logs
from ebbtide.checks import REFUSE
from ebbtide.errors import CheckpointError, StorageError
from ebbtide.notes import read_note, remove_note, write_note
from ebbtide.rewind import RewindRequest, apply_rewind, holders, plan_rewind, restore_offsets
from ebbtide.rewind.activity import describe_activity
from ebbtide.rewind.backups import prune_backups
from ebbtide.rewind.holders import CHANGE, FORK, RUN, Lease, list_numbers, read_lease, read_leases
from ebbtide.rewind.lease import (
    _EXPIRES_SECONDS,
    Claim,
    LeaseLostError,
    hold_lease,
    remove_unused,
)
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import WritableFolder, open_writable
from ebbtide.storage.options import ANSWER_SECONDS
from tests.leases import ELSEWHERE, Clock, on_another_host, plant, renew
from tests.trees import Shape, in_the_way_of, make, snapshot


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WritableFolder]:
    """An empty one."""
    if request.param == "disk":
        yield open_writable(str(tmp_path / "c"))
        return
    name = uuid4().hex
    yield open_writable(f"memory://{name}")
    with suppress(FileNotFoundError):
        fsspec.filesystem("memory").rm(f"/{name}", recursive=True)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """That of the holder."""
    return Clock(monkeypatch)


def never(_seconds: float) -> None:
    raise AssertionError("nothing to wait for")


def test_a_replay_that_was_stalled_plans_no_batch(folder: WritableFolder, clock: Clock) -> None:
    with hold_lease(folder, RUN) as claimed:
        clock.stalled = 120
        with on_another_host(), hold_lease(folder, CHANGE):
            with pytest.raises(LeaseLostError, match="was taken over"):
                restore_offsets(claimed.writable, 5, "v1")
    assert "offsets" not in folder.names()


def test_a_damaged_lease_says_what_to_do(folder: WritableFolder) -> None:
    folder.write(".ebbtide/leases/1.json", "")
    with pytest.raises(CheckpointError, match=r"1\.json is damaged.* remove that file"):
        with hold_lease(folder, CHANGE):
            pass


def test_an_unanswered_request_ends_before_a_lease() -> None:
    assert ANSWER_SECONDS * 2 < _EXPIRES_SECONDS


def test_each_one_that_takes_it_gets_the_next_number(folder: WritableFolder) -> None:
    for number in (1, 2, 3):
        with hold_lease(folder, CHANGE, pause=never):
            (held,) = read_leases(folder)
            assert (held.number, held.is_held()) == (number, True)
        (released,) = read_leases(folder)
        assert (released.number, released.released) == (number, True)
        assert list_numbers(folder, holders.ANY) == [number], "older ones are removed"


def test_who_holds_it_here_is_told_at_once(folder: WritableFolder) -> None:
    with hold_lease(folder, RUN, pause=never):
        with pytest.raises(CheckpointError, match=rf"running already \(process {os.getpid()}\)"):
            with hold_lease(folder, CHANGE, pause=never):
                pass


def test_a_process_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    program = (
        "import os; from ebbtide.rewind.lease import hold_lease; "
        "from ebbtide.storage import open_writable\n"
        f"with hold_lease(open_writable({str(tmp_path)!r}), 'change'): os._exit(7)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 7
    folder = open_writable(str(tmp_path))
    (left,) = read_leases(folder)
    assert not left.released
    with hold_lease(folder, CHANGE, pause=never):
        pass


def test_the_jvm_of_a_killed_driver_is_waited_for(tmp_path: Path) -> None:
    folder = open_writable(str(tmp_path))
    waits = list[float]()

    def end(seconds: float) -> None:
        waits.append(seconds)
        jvm.kill()
        time.sleep(seconds)

    with subprocess.Popen(["sleep", "60"]) as jvm:
        both = ((2**22 + 7, 1), (jvm.pid, processes.start_ticks(jvm.pid) or 0))
        plant(folder, replace(ELSEWHERE, machine=processes.machine(), processes=both))
        with hold_lease(folder, RUN, pause=end):
            assert processes.has_ended(*both[1])
    assert waits


def test_a_lease_is_held_whatever_host_name_and_process_id_say(folder: WritableFolder) -> None:
    """Containers of one deployment share both."""
    here = ((os.getpid(), processes.start_ticks(os.getpid()) or 0),)
    gone = ((2**22 + 7, 1),)
    for own in (here, gone):
        theirs = [plant(folder, replace(ELSEWHERE, host=os.uname().nodename, processes=own))]

        def goes_on(_seconds: float, theirs: list[Lease] = theirs) -> None:
            theirs.append(renew(folder, theirs[-1]))

        with pytest.raises(CheckpointError, match="running already \\(on host"):
            with hold_lease(folder, RUN, pause=goes_on):
                pass
        assert len(theirs) == 2, "the first change is enough"
        remove_note(folder, "leases/1.renewed.json")


@pytest.mark.parametrize("skew_seconds", [-3600, 3600])
def test_the_clocks_of_two_hosts_are_not_compared(
    folder: WritableFolder,
    skew_seconds: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(holders, "LASTS_SECONDS", 0.3)
    theirs = plant(folder, replace(ELSEWHERE, renewed=time.time() + skew_seconds))
    with pytest.raises(CheckpointError, match=r"on host elsewhere, last renewed .* by its clock"):
        with hold_lease(folder, CHANGE, pause=lambda _: renew(folder, theirs)):
            pass
    remove_note(folder, "leases/1.renewed.json")
    began = time.monotonic()
    with hold_lease(folder, CHANGE):
        assert time.monotonic() - began >= 0.3
    assert "Waiting up to 0 s to see whether it is renewed" in caplog.text
    with hold_lease(folder, CHANGE, pause=never):  # that was given back in order
        pass


def test_one_that_is_given_back_meanwhile_is_not_waited_for(folder: WritableFolder) -> None:
    theirs = plant(folder)
    with hold_lease(folder, RUN, pause=lambda _: renew(folder, theirs, released=True)):
        pass


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_holder_that_was_stalled_writes_nothing_more(
    folder: WritableFolder, is_finished: bool, clock: Clock
) -> None:
    with hold_lease(folder, CHANGE) as claimed:
        claimed.writable.write("before", "")
        clock.stalled = 3600
        with on_another_host():
            taking = hold_lease(folder, RUN)
            taking.__enter__()
            if is_finished:
                taking.__exit__(None, None, None)
        after = [folder.read(path) for path in folder.names(".ebbtide", "leases")]
        changes: list[Callable[[], None]] = [
            lambda: claimed.writable.write("after", ""),
            lambda: claimed.writable.remove("before"),
            lambda: claimed.writable.beside(folder.url).write("after", ""),
            lambda: write_note(claimed.writable, "history.json", {}),
            claimed.check,
            claimed.renew,
            claimed.require,
        ]
        for change in changes:
            with pytest.raises(LeaseLostError, match=r"was taken over by .*elsewhere"):
                change()
    assert [folder.read(path) for path in folder.names(".ebbtide", "leases")] == after
    assert sorted(folder.names()) == [".ebbtide", "before"]
    (theirs,) = read_leases(folder)
    assert (theirs.host, theirs.released) == ("elsewhere", is_finished)


def test_a_renewal_that_was_stalled_in_between_takes_nothing_back(
    folder: WritableFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked, is stalled, and then writes; others have taken over, and removed it."""
    write = Claim._write

    def stalled(claimed: Claim, note: Lease) -> None:
        clock.stalled = 3600
        with on_another_host():
            hold_lease(folder, RUN).__enter__()
        write(claimed, note)

    with hold_lease(folder, CHANGE) as claimed:
        with monkeypatch.context() as patch:
            patch.setattr(Claim, "_write", stalled)
            with pytest.raises(LeaseLostError, match="was taken over"):
                claimed.renew()
        with pytest.raises(LeaseLostError):
            claimed.writable.write("after", "")
    assert list_numbers(folder) == [2]
    assert list_numbers(folder, holders.ANY) == [1, 2], "what the stalled one has written late"
    (theirs,) = read_leases(folder)
    assert theirs.host == "elsewhere"


def test_one_that_slept_goes_on_if_nobody_took_it(folder: WritableFolder, clock: Clock) -> None:
    """The lid of a laptop was closed."""
    with hold_lease(folder, RUN) as claimed:
        clock.stalled = 3600
        claimed.require()
        claimed.writable.write("after", "")
        assert list_numbers(folder) == [2]
        with on_another_host(seconds=60), pytest.raises(CheckpointError, match="running already"):
            with hold_lease(folder, CHANGE, pause=lambda _: claimed.renew()):
                pass
    (released,) = read_leases(folder)
    assert (released.number, released.released) == (2, True)


def test_one_that_was_removed_by_hand_is_taken_again(folder: WritableFolder) -> None:
    with hold_lease(folder, RUN) as claimed:
        folder.remove_tree(".ebbtide/leases")
        claimed.renew()
        assert list_numbers(folder) == [2]
        # or by somebody who begins to count again
        folder.remove_tree(".ebbtide/leases")
        plant(folder, replace(ELSEWHERE, number=2))
        with pytest.raises(LeaseLostError, match="taken over by a process on host elsewhere"):
            claimed.renew()


def test_a_renewal_that_fails_is_tolerated_until_the_lease_expires(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    folder = open_writable(str(tmp_path / "c"))
    with hold_lease(folder, RUN) as claimed:
        with in_the_way_of(tmp_path / "c" / ".ebbtide"):
            for _ in range(2):
                claimed.renew()
            assert "Not a directory" in (claimed.problem or "")
            claimed.require()
            assert caplog.text.count("cannot be renewed") == 1
            assert "stops if that fails for 50 s" in caplog.text
            clock.stalled = 51
            claimed.renew()
            with pytest.raises(LeaseLostError, match=r"not be renewed for 51 s: .*Not a directory"):
                claimed.require()
            with pytest.raises(LeaseLostError):
                claimed.writable.write("after", "")
        claimed.renew()
        assert claimed.problem is None
        assert "is renewed again" in caplog.text
        claimed.writable.write("after", "")
    assert read_lease(folder).released  # type: ignore[union-attr]


def test_a_store_that_hangs_keeps_no_holder_from_stopping(
    folder: WritableFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr("ebbtide.rewind.lease._ANSWER_SECONDS", 0.1)
        patch.setattr(WritableFolder, "write", lambda *_: hangs.wait(30))
        with hold_lease(folder, RUN) as claimed:
            clock.stalled = 51
            with pytest.raises(LeaseLostError, match="for 51 s: the store does not answer"):
                claimed.require()
    hangs.set()


def test_two_that_find_it_free_at_the_same_moment(folder: WritableFolder) -> None:
    """Both have looked before one of them creates its lease."""
    for _ in range(20):
        both, told = threading.Barrier(2), list[str]()

        def take(both: threading.Barrier = both, told: list[str] = told) -> None:
            is_first = [True]

            def wait(_folder: WritableFolder, what: str, _path: str) -> None:
                if what == "create" and is_first.pop():
                    is_first.append(False)
                    both.wait(10)

            slow = type("Slow", (WritableFolder,), {"changing": wait})
            opened = slow(folder.url, folder.filesystem, folder.root)
            try:
                with hold_lease(opened, CHANGE):
                    told.append("held")
                    both.wait(10)
            except CheckpointError as error:
                told.append(error.problem)
                both.wait(10)

        threads = [threading.Thread(target=take) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(told) == 2
        assert "held" in told
        assert f"is being rewound (process {os.getpid()})" in " ".join(told)


def test_a_number_that_was_taken_and_removed_meanwhile(folder: WritableFolder) -> None:
    """It found number 1 given back, and is stalled while others take 2 and 3."""
    with hold_lease(folder, CHANGE):
        pass
    others = list[Any]()

    def stall(_folder: WritableFolder, what: str, _path: str) -> None:
        if what == "create" and not others:
            with on_another_host():
                others.append(None)
                with hold_lease(folder, CHANGE):
                    pass
                others.append(hold_lease(folder, RUN))
                others[-1].__enter__()
            assert list_numbers(folder) == [3]

    slow = type("Slow", (WritableFolder,), {"changing": stall})
    with pytest.raises(CheckpointError, match="running already \\(on host elsewhere"):
        with hold_lease(slow(folder.url, folder.filesystem, folder.root), CHANGE):
            pass
    assert list_numbers(folder) == [3]


def test_the_answer_to_a_create_is_lost(folder: WritableFolder) -> None:
    """The store has created it, and says that it is there when it is asked again."""
    create = WritableFolder.create

    def lost(opened: WritableFolder, path: str, text: str) -> bool:
        create(opened, path, text)
        return False

    opened = type("Lost", (WritableFolder,), {"create": lost})
    with hold_lease(opened(folder.url, folder.filesystem, folder.root), CHANGE):
        pass


def test_a_create_that_failed_locks_nobody_out(folder: WritableFolder) -> None:
    create = WritableFolder.create

    def fail(opened: WritableFolder, path: str, text: str) -> bool:
        create(opened, path, text)
        raise StorageError("It took too long.", "", "timed out")

    opened = type("Fails", (WritableFolder,), {"create": fail})
    with pytest.raises(CheckpointError, match=r"Cannot write to .*: timed out"):
        with hold_lease(opened(folder.url, folder.filesystem, folder.root), CHANGE):
            pass
    with hold_lease(folder, CHANGE, pause=never):
        pass


@pytest.mark.parametrize("says_so", [False, True])
def test_a_store_that_cannot_create_conditionally_is_refused(says_so: bool) -> None:
    def overwrite(opened: WritableFolder, path: str, text: str) -> bool:
        opened.write(path, text)
        return True

    kind = type("Old", (WritableFolder,), {"create": overwrite, "creates_exclusively": not says_so})
    found = open_writable(f"memory://{uuid4().hex}")
    folder = kind(found.url, found.filesystem, found.root)
    with pytest.raises(CheckpointError, match=r"two processes could .*add --assume-stopped"):
        with hold_lease(folder, CHANGE):
            pass
    with hold_lease(folder, CHANGE, assume_stopped=True, pause=never) as claimed:
        claimed.renew()
        claimed.check()


def test_a_process_is_not_locked_out_by_a_lease_that_it_could_not_give_back(
    folder: WritableFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as outage:
        outage.setattr(Claim, "release", lambda _claim: None)
        with hold_lease(folder, CHANGE):
            with pytest.raises(CheckpointError, match="is being rewound"):
                with hold_lease(folder, CHANGE, pause=never):
                    pass
    with hold_lease(folder, CHANGE, pause=never):
        pass


def test_backups_are_pruned_beside_a_run(folder: WritableFolder, clock: Clock) -> None:
    with hold_lease(folder, RUN) as run:
        for _ in range(2):
            prune_backups(folder.url, keep=1)
            run.check()
        with hold_lease(folder, CHANGE, beside_run=True, pause=never) as pruning:
            run.renew()
            assert run.problem is None
            with pytest.raises(CheckpointError, match="is being pruned"):
                with hold_lease(folder, CHANGE, beside_run=True, pause=never):
                    pass
            # the run was suspended, and takes the next number
            clock.stalled = 51
            run.require()
            pruning.check()
            assert {one.purpose for one in read_leases(folder)} == {RUN, CHANGE}
        run.check()
        with pytest.raises(CheckpointError, match="running already"):
            with hold_lease(folder, CHANGE, pause=never):
                pass
    with hold_lease(folder, CHANGE, pause=never):
        assert len(list_numbers(folder)) == 1


@pytest.mark.parametrize("purpose", [RUN, CHANGE])
def test_a_lease_of_an_earlier_version_is_respected(
    folder: WritableFolder, purpose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {RUN: "lease.json", CHANGE: "change-lease.json"}[purpose]
    note = {"host": "elsewhere", "processes": [[1, 1.0]], "renewed": 5.0, "purpose": purpose}
    write_note(folder, name, note)
    with pytest.raises(CheckpointError, match="on host elsewhere"):
        with hold_lease(
            folder, RUN, pause=lambda _: write_note(folder, name, note | {"renewed": 15.0})
        ):
            pass
    own = [os.getpid(), processes.start_time(os.getpid())]
    write_note(folder, name, note | {"host": os.uname().nodename, "processes": [own]})
    with pytest.raises(CheckpointError, match=f"process {os.getpid()}"):
        with hold_lease(folder, RUN, pause=never):
            pass
    monkeypatch.setattr(holders, "LASTS_SECONDS", 0.1)
    write_note(folder, name, note)
    with hold_lease(folder, RUN):
        assert read_note(folder, name) is None


def test_a_copy_of_a_checkpoint_is_not_running(tmp_path: Path) -> None:
    original = open_writable(str(tmp_path / "c"))
    with hold_lease(original, RUN):
        shutil.copytree(tmp_path / "c", tmp_path / "copy")
        copy = open_writable(str(tmp_path / "copy"))
        assert read_lease(original) is not None
        assert read_lease(copy) is None
        with hold_lease(copy, CHANGE, pause=never):
            pass
        # the same folder under another name is no copy
        (tmp_path / "other").symlink_to(tmp_path / "c")
        with pytest.raises(CheckpointError, match="running already"):
            with hold_lease(open_writable(str(tmp_path / "other")), CHANGE, pause=never):
                pass


def test_a_volume_that_another_host_has_mounted_elsewhere_is_no_copy(
    folder: WritableFolder,
) -> None:
    theirs = plant(folder)
    note = read_note(folder, "leases/1.json")
    write_note(folder, "leases/1.json", {**(note or {}), "location": "/mnt/c"})
    with pytest.raises(CheckpointError, match="on host elsewhere"):
        with hold_lease(folder, CHANGE, pause=lambda _: renew(folder, theirs)):
            pass


def test_a_container_that_shares_our_process_ids_has_other_files(tmp_path: Path) -> None:
    """As in a pod with shareProcessNamespace: the place that it names is another folder here."""
    folder, place = open_writable(str(tmp_path / "volume")), tmp_path / "place"
    theirs = plant(folder)
    place.mkdir()
    mount = 'mount --bind "$0" "$1" && echo mounted && exec sleep 60'
    container = subprocess.Popen(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, folder.root, str(place)],
        stdout=subprocess.PIPE,
    )
    try:
        assert container.stdout
        assert container.stdout.readline() == b"mounted\n"
        own = ((container.pid, processes.start_ticks(container.pid) or 0),)
        theirs = replace(theirs, machine=processes.machine(), processes=own, location=str(place))
        write_note(folder, "leases/1.json", theirs.to_note())
        with pytest.raises(CheckpointError, match="running already"):
            with hold_lease(folder, CHANGE, pause=lambda _: renew(folder, theirs)):
                pass
    finally:
        container.kill()
        container.communicate()


def test_one_who_was_stalled_between_reading_and_taking_reads_again(
    folder: WritableFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read before is no proof that nobody has renewed it since."""
    monkeypatch.setattr(holders, "LASTS_SECONDS", 0.3)
    theirs, read, reads = plant(folder), read_leases, []

    def stall(opened: WritableFolder) -> list[Lease]:
        found = read(opened)
        reads.append(found)
        if len(reads) == 2:
            time.sleep(0.4)
            renew(folder, theirs)
        return found

    monkeypatch.setattr(holders, "read_leases", stall)
    with pytest.raises(CheckpointError, match="running already"):
        with hold_lease(folder, CHANGE, pause=lambda _: None):
            pass


@pytest.mark.parametrize("numbers", [1, 2])
def test_a_fork_that_fails_removes_no_lease_of_the_next(
    numbers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever that takes the folder while the first one cleans up."""
    names = WritableFolder.names
    for moment in range(20):
        folder, asked = open_writable(str(tmp_path / str(moment))), itertools.count()
        with ExitStack() as held, monkeypatch.context() as patch:
            for _ in range(numbers - 1):  # one that was killed
                plant(folder, replace(ELSEWHERE, released=True))
            with hold_lease(folder, FORK):
                pass

            def take(opened: WritableFolder, *parts: str) -> list[str]:
                if next(asked) == moment:  # noqa: B023
                    held.enter_context(hold_lease(open_writable(folder.url), FORK))  # noqa: B023
                return names(opened, *parts)

            patch.setattr(WritableFolder, "names", take)
            remove_unused(folder)
            if next(asked) <= moment:
                break
            (theirs,) = read_leases(folder)
            assert theirs.is_held()
    assert moment > 1
    assert folder.exists("") == (numbers > 1), "the first number can be taken again"


def test_a_number_that_no_lease_gets_to_is_refused(folder: WritableFolder) -> None:
    plant(folder, replace(ELSEWHERE, number=10**15 - 1, released=True))
    with pytest.raises(CheckpointError, match=r"leases/9{15}\.json is no lease of Ebbtide"):
        with hold_lease(folder, CHANGE, pause=never):
            pass


def test_what_a_lease_says_is_not_trusted(folder: WritableFolder) -> None:
    theirs = plant(folder, replace(ELSEWHERE, host="a\nError: \x1b[2J"))
    own = ((os.getpid(), processes.start_ticks(os.getpid()) or 0),)
    odd = replace(theirs, machine=processes.machine(), processes=own, location="/a\0b")
    write_note(folder, "leases/1.json", odd.to_note())
    (found,) = read_leases(folder)
    assert found.host == r"a Error: \x1b[2J"
    assert found.is_held() is None, "a place that cannot be is no proof of a copy"


def test_a_lease_of_a_later_version_is_respected(folder: WritableFolder) -> None:
    theirs = plant(folder, replace(ELSEWHERE, purpose="compact"))
    for beside_run in (False, True):
        with pytest.raises(CheckpointError, match=r"is being changed \(on host elsewhere"):
            with hold_lease(
                folder, CHANGE, beside_run=beside_run, pause=lambda _: renew(folder, theirs)
            ):
                pass
        remove_note(folder, "leases/1.renewed.json")


def test_a_store_that_hangs_keeps_no_holder_from_ending(
    folder: WritableFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ebbtide.rewind.lease._ANSWER_SECONDS", 0.1)
    ended, answers = threading.Event(), []

    def hang(*_: object) -> list[int]:
        answers.append(ended.wait(5))
        return [1]

    with hold_lease(folder, CHANGE):
        monkeypatch.setattr(holders, "list_numbers", hang)
    assert answers == []
    assert "could not be given back: the store does not answer" in caplog.text
    ended.set()


def test_the_age_of_a_write_is_told_by_the_clock_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "c", Shape(batches=3))
    for file in path.glob("*/2"):
        file.touch()
    folder, now = open_writable(str(path)), time.time
    monkeypatch.setattr(time, "time", lambda: now() + 7200)
    with hold_lease(folder, CHANGE):
        check = holders.check_running(folder, read_logs(folder), assume_stopped=False)
    assert (check.verdict, "may be running" in check.detail) == (REFUSE, True)
    before = snapshot(path)
    with pytest.raises(CheckpointError, match=r"is left as it is: the query may be running"):
        apply_rewind(plan_rewind(RewindRequest(str(path), ToBatch(1), remedy="none")))
    assert snapshot(path) == before


def test_a_process_that_is_hidden_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with hidepid: only a signal tells that it is there."""
    monkeypatch.setattr(processes, "_read_stat", lambda _pid: None)
    assert processes.has_ended(os.getpid(), 1) is None
    assert processes.has_ended(2**22 + 7, 1) is True
    assert processes.has_ended(1 << 62, 1) is True


def test_a_lease_renewed_beyond_the_calendar_is_one_of_another_host(tmp_path: Path) -> None:
    folder = open_writable(str(make(tmp_path / "c", Shape("v2"))))
    plant(folder, replace(ELSEWHERE, renewed=1e306))
    run = read_lease(folder)
    assert run is not None
    assert str(run.holder()).startswith("on host elsewhere, last renewed ")
    described = describe_activity(folder, read_logs(folder), run, is_idle=False)
    assert described == ("Last renewed at an unknown time by the clock of that host.",)
