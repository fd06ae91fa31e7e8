"""Eight processes change one checkpoint at once, and some of them are stopped or killed.

Run as a program, with a number of storms, so that it forks from a process without threads:
importing the commands takes much longer than a rewind, and all must begin at the same moment.
"""

from __future__ import annotations

import os
import random
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide import local, report, rewind
from ebbtide.checkpoint import Backup, Journal
from ebbtide.cli import main
from ebbtide.errors import EbbtideError
from ebbtide.rewind.holders import CHANGE, read_lease
from ebbtide.storage import open_folder
from tests.inside import MEMORY
from tests.power import barrier, everywhere
from tests.trees import Shape, make, snapshot

AT_ONCE = 8
SIGNALS = (signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP)
LOADED = (local.require_connection, report.messages, rewind.apply_rewind, rewind.undo_rewind)
"""Loaded before the storm, not in each process."""


@dataclass
class Storm:
    """One storm over one checkpoint: what is typed, what is stopped when, and what is wrong."""

    kind: str
    seed: int
    folder: Path
    codes: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def run(self) -> None:
        """All processes at once, the stops, then whatever is left to finish."""
        chance = random.Random(self.seed)
        folder = make(self.folder / "c", Shape("hdfs", batches=7, partitions=2))
        begun = snapshot(folder)
        tail = [str(folder), "--yes", "--assume-stopped"]
        rewinding = ["rewind", *tail, "--to-batch", "3", "--execute", "--sink", "none"]
        _, changed = self._type(rewinding), snapshot(folder)
        if self.kind == "undo":
            (backup,) = Backup.read_all(open_folder(str(folder)))
            commands = [["undo", *tail, "--backup", backup.id]] * AT_ONCE
            before, after = changed, begun
        else:
            self._type(["undo", *tail])
            undoing = ["undo", *tail] if self.kind == "both" else rewinding
            commands = [chance.choice([rewinding, undoing]) for _ in range(AT_ONCE)]
            before, after = begun, changed
        done = self._count_done()
        self._rage(commands, chance)
        self._finish()
        if self.kind != "both" and self._count_done() == done:  # all of them were killed too early
            self._type(commands[0])
        changes = self._count_done() - done
        if self.kind != "both":
            self._check(changes == 1, f"the change was made {changes} times")
            self._check(self.codes.count(0) <= 1, f"several have done it: {self.codes}")
            self._check(snapshot(folder) == after, "it is neither the one tree nor the other")
        else:
            self._check(snapshot(folder) in (before, after), "it is neither tree")
        left = [path for path in folder.rglob("*") if path.name.endswith(".tmp")]
        left = [path for path in left if "6f1c" not in path.name]
        self._check(not left and not (self._waiting(folder)), f"left behind: {left}")
        self._check(barrier(folder) is None, "the barrier is up")
        backups = Backup.read_all(open_folder(str(folder)))
        if snapshot(folder) != begun:
            self._type(["undo", *tail])
        is_back = snapshot(folder) == begun
        self._check(is_back, f"not as in the beginning, with {len(backups)} backups")
        self._check(set(begun.values()) <= everywhere(folder), "a file is lost")

    def _waiting(self, folder: Path) -> list[Path]:
        return [path for path in (folder / ".ebbtide").rglob("*") if path.name.endswith(".new")]

    def _rage(self, commands: Sequence[Sequence[str]], chance: random.Random) -> None:
        stops = chance.choice([0, 1, 3, 6])
        running = {self._start(words, number): number for number, words in enumerate(commands)}
        codes: dict[int, int] = {}
        while running:
            for pid in list(running):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    codes[running.pop(pid)] = os.waitstatus_to_exitcode(status)
            if stops and (self.folder / "c/.ebbtide/change.json").exists() and running:
                time.sleep(chance.random() * chance.choice([0.002, 0.02, 0.1]))
                stops -= self._stop(chance, running)
            time.sleep(0.001)
        self.codes = [codes[number] for number in sorted(codes)]
        for number, code in codes.items():
            self._judge(code, (self.folder / f"said-{number}").read_text())

    def _stop(self, chance: random.Random, running: dict[int, int]) -> bool:
        """Stop the process that is changing the checkpoint, or any."""
        pid = chance.choice(list(running))
        with suppress(EbbtideError):
            folder = open_folder(str(self.folder / "c"))
            if (lease := read_lease(folder, CHANGE)) and lease.processes[0][0] in running:
                pid = lease.processes[0][0]
        os.kill(pid, chance.choice(SIGNALS))  # not waited for yet, so the id is still its own
        return True

    def _start(self, words: Sequence[str], number: int) -> int:
        said = self.folder / f"said-{number}"
        said.write_text("")
        if pid := os.fork():
            return pid
        code = 70
        try:
            os.dup2(os.open(said, os.O_WRONLY | os.O_APPEND), 1)
            os.dup2(1, 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            sys.argv = ["ebbtide", *words]
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException as error:
            os.write(2, f"Traceback: {error!r}".encode())
        finally:
            os._exit(code)

    def _type(self, words: Sequence[str]) -> str:
        """One command alone; it must succeed."""
        pid = self._start(words, 99)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        said = (self.folder / "said-99").read_text()
        self._check(code == 0, f"{shlex.join(words)}: {code}: {said}")
        return said

    def _finish(self) -> None:
        journal = Journal.read(open_folder(str(self.folder / "c")))
        if journal is not None:
            words = shlex.split(journal.command(str(self.folder / "c")))[1:]
            done = self._count_done()
            self._type([*words, "--assume-stopped"])
            self._check(self._count_done() - done <= 1, "finishing it did something else, too")

    def _count_done(self) -> int:
        audit = self.folder / "c/.ebbtide/audit.jsonl"
        return len(audit.read_text().splitlines()) if audit.exists() else 0

    def _judge(self, code: int, said: str) -> None:
        """Done; refused in one line; or stopped by a signal."""
        stopped = {128 + number for number in SIGNALS} | {-number for number in SIGNALS}
        self._check(code in {0, 1} | stopped, f"exit {code}: {said}")
        self._check("Traceback" not in said, said)
        self._check(said.count("Error: ") == (code == 1) or code in stopped, f"{code}: {said}")

    def _check(self, holds: bool, problem: str) -> None:
        if not holds:
            self.problems.append(f"{self.kind} {self.seed}: {problem}")


def brew(number: int) -> list[str]:
    """That many storms of each kind; returns what is wrong."""
    setattr(os, "fsync", lambda _file: None)  # noqa: B010 - no power is cut here
    problems = []
    for seed in range(number):
        for kind in ("rewind", "undo", "both"):
            with tempfile.TemporaryDirectory(prefix="ebbtide-", dir=MEMORY) as place:
                storm = Storm(kind, seed, Path(place))
                storm.run()
                problems += storm.problems
    return problems


if __name__ == "__main__":
    found = brew(int(sys.argv[1]))
    sys.exit("\n".join(found) or None)
