"""Who works on the checkpoint: each does what a command does, with Ebbtide's own code."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ebbtide.checkpoint import Backup, Journal
from ebbtide.errors import EbbtideError
from ebbtide.rewind import (
    RewindRequest,
    apply,
    apply_rewind,
    backups,
    finish_interrupted,
    fork,
    plan_rewind,
    undo_rewind,
)
from ebbtide.rewind.lease import RUN, hold_lease
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import open_folder, open_writable
from tests.simulation.model import Model
from tests.simulation.world import CrashError, World

Action = Callable[[], object]
_hold_lease = hold_lease


class Watched:
    """Tells the model of the run who has a lease of its checkpoint."""

    model: Model
    address: str


@contextmanager
def watched_lease(folder: Any, purpose: str, **options: Any) -> Iterator[Any]:
    """`hold_lease`, looked at by the model."""
    with _hold_lease(folder, purpose, **options) as claim:
        if folder.address != Watched.address:
            yield claim
            return
        kind = "prune" if options.get("beside_run") else purpose
        with Watched.model.holding(kind, claim):
            yield claim


REPLACED: list[tuple[Any, dict[str, Any]]] = [
    (module, {"hold_lease": watched_lease}) for module in (apply, backups, fork)
]


def rewind(url: str, batch: int, *, replan: bool = False, assume_stopped: bool = True) -> None:
    """`ebbtide rewind`: finish one that was interrupted, or plan and apply."""
    mode = "replan" if replan else "exact"

    def same(journal: Journal) -> bool:
        return (journal.first_batch, journal.mode) == (batch, mode)

    if not finish_interrupted(url, "rewind", same, assume_stopped=assume_stopped):
        request = RewindRequest(
            url, ToBatch(batch), replan, assume_stopped=assume_stopped, remedy="none"
        )
        apply_rewind(plan_rewind(request), assume_stopped=assume_stopped)


def undo(url: str, *, assume_stopped: bool = True) -> None:
    """`ebbtide undo`."""
    undo_rewind(url, assume_stopped=assume_stopped)


def prune(url: str, keep: int) -> None:
    """`ebbtide backups --prune`."""
    Watched.model.pruned = True
    backups.prune_backups(url, keep=keep)


def make_fork(url: str, new: str, batch: int) -> None:
    """`ebbtide fork`."""
    fork.fork_checkpoint(url, new, batch)


def write_batches(url: str, batches: int) -> None:
    """A query as Spark runs it: it fails on a barrier, and commits batches while it may."""
    world = World.current
    with watched_lease(open_folder(url), RUN, assume_stopped=True) as claim:
        if (journal := Journal.read(claim.folder)) is not None:
            raise journal.interrupted(url)
        for _ in range(batches):
            claim.check()
            _write_batch(claim, f"{world.task.process.name} {world.random.getrandbits(32)}")
            world.wait(world.random.random() * 3)


def _write_batch(claim: Any, mark: str) -> None:
    folder = claim.writable
    ids, done = folder.ids("offsets"), folder.ids("commits")
    last = max(ids, default=-1)
    if ids and (folder.read(f"offsets/{last}") or "").startswith("ebbtide: "):
        raise EbbtideError("Spark does not start: it reads the barrier.", "")
    batch = last if last not in done and last >= 0 else last + 1
    if batch not in ids:
        meta = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 2_000 + batch, "conf": {}})
        folder.write(
            f"offsets/{batch}",
            f'v1\n{meta}\n{{"visits":{{"0":{batch},"1":{mark!r}}}}}'.replace(
                f"{mark!r}", str(batch)
            ),
        )
    if folder.exists("state/0/0/_metadata/schema"):
        folder.write(f"state/0/0/{batch + 1}.delta", mark)
    folder.write(f"commits/{batch}", 'v1\n{"nextBatchWatermarkMs":5}')


def remove_damaged_lease(model: Model, remove: Callable[[str], None]) -> None:
    """As its message says: without links, a kill can leave a lease that nobody has written."""
    for path, content in list(model.notes.items()):
        if path.startswith(".ebbtide/leases/") and not content.endswith(b"}"):
            remove(path)


def finish(url: str) -> None:
    """Type what the barrier or the journal says, as long as there is something to finish."""
    folder = open_writable(url)
    remove_damaged_lease(Watched.model, folder.remove)
    for _ in range(3):
        if (command := _find_command(url)) is None:
            return
        words = shlex.split(command)
        if words[1] == "undo":
            undo(url)
        else:
            at = words.index("--to-batch") + 1
            try:
                rewind(url, int(words[at]), replan="--replan" in words)
            except EbbtideError as error:
                if "is at batch" not in str(error):
                    raise
    if _find_command(url) is not None:
        raise AssertionError("it is not finished after three attempts")


def _find_command(url: str) -> str | None:
    folder = open_folder(url)
    try:
        journal = Journal.read(folder)
    except EbbtideError as error:
        return str(error).rpartition("Finish it: ")[2]
    if journal is not None:
        return journal.command(url)
    barrier = Journal.read_barrier(folder)
    return barrier.line.rpartition("Finish it: ")[2] if barrier else None


def newest_backup(url: str) -> str | None:
    """The id of the backup to which an undo goes."""
    every = Backup.read_all(open_folder(url))
    return every[-1].id if every else None


def attempt(action: Action) -> None:
    """Do something; a command may refuse or fail, but says so in its own words."""
    world = World.current
    name = world.task.process.name
    try:
        action()
    except EbbtideError as error:
        world.say(f"=== {error}")
        if not str(error).strip():
            world.fail(f"{name}: an error without a word")
    except KeyboardInterrupt:
        world.say("=== Ctrl-C")
    except CrashError:
        raise
    except Exception as error:
        if not world.task.process.dead:
            import traceback

            where = traceback.extract_tb(error.__traceback__)[-1]
            world.fail(f"{name}: {error!r} at {where.name}:{where.lineno}")
            if world.trace is not None:
                world.trace.append(traceback.format_exc())
    else:
        world.say("=== done")
