"""Two hosts work on one checkpoint at once, on every kind of store: exactly one of them may.

`python -m tests.hosts ROUNDS STORE …` runs the campaign. Each host is a process of its own with a
host name and a pid namespace of its own, as a container has: both are process 1, and in half of the
rounds they have the same host name, too. Where namespaces are not permitted, the two are told that
they are on other machines; the report says which. Each round forces a race at one point, then holds
the winner in the middle of its work until the other was told.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise, product
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

from ebbtide.checkpoint import Backup, Journal, read_checkpoint
from ebbtide.checkpoint.verification import verify_checkpoint
from ebbtide.rewind import RewindRequest, apply_rewind, holders, plan_rewind, undo_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import open_writable
from tests.trees import Shape, make, snapshot

PAIRS = (("rewind", "rewind"), ("rewind", "start"), ("start", "start"), ("undo", "prune"))
RACES = ("look", "create", "created", "none")
"""Where both wait for each other: before they look, before and after they create a lease."""
HOLDS = ("first change", "third change", "end")
"""Where the winner is held until the other was told."""
KINDS = ("disk", "s3", "gcs", "azure", "hdfs")
TOLD_SECONDS = 300
SHAPE = Shape("hdfs", batches=4, partitions=1, hadoop_checksums=False)
SMALL = Shape(batches=4, hadoop_checksums=False)
"""For servers: each file is several requests in each round."""
AT_ONCE = 4
"""So many pairs of hosts, as each waits most of the time."""
NAMESPACES = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts")


@dataclass
class Host:
    """A process that does what it is told, and says how far it is."""

    name: str
    process: subprocess.Popen[str]
    events: Queue[tuple[str, dict[str, Any]]]
    state: str = "idle"
    result: dict[str, Any] = field(default_factory=dict)

    def send(self, **message: Any) -> None:
        """Tell it what to do, or to go on."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def listen(self) -> None:
        """Pass on what it says."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.put((self.name, json.loads(line)))
        self.events.put((self.name, {"at": "done", "error": ["the process has ended", ""]}))


def may_isolate() -> bool:
    """Whether this user may give a process namespaces of its own."""
    return subprocess.run([*NAMESPACES, "true"], capture_output=True, check=False).returncode == 0


@contextmanager
def start_hosts(environment: Mapping[str, str]) -> Iterator[dict[str, Host]]:
    """Two of them."""
    is_isolated, events = may_isolate(), Queue[tuple[str, dict[str, Any]]]()
    hosts: dict[str, Host] = {}
    for name in ("a", "b"):
        command = [sys.executable, "-m", "tests.host"]
        process = subprocess.Popen(
            [*NAMESPACES, *command] if is_isolated else [*command, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        hosts[name] = Host(name, process, events)
        Thread(target=hosts[name].listen, daemon=True).start()
    try:
        yield hosts
    finally:
        for host in hosts.values():
            assert host.process.stdin is not None
            host.process.stdin.close()
        for host in hosts.values():
            host.process.wait(30)


class Round:
    """One race of two hosts, and what was wrong with it."""

    def __init__(self, hosts: dict[str, Host], url: str, number: int) -> None:
        kinds = list(product(PAIRS, RACES, HOLDS))
        # a prime step, so that a few rounds are as different as many
        self.pair, self.race, self.hold = kinds[number * 17 % len(kinds)]
        self.hosts, self.url, self.problems = hosts, url, list[str]()
        self.actions = self.pair if number % 2 else self.pair[::-1]
        self.same_name = number // 2 % 2 == 0

    def run(self) -> None:
        """Both begin; each goes on from its points when it may."""
        for (name, host), action in zip(self.hosts.items(), self.actions, strict=True):
            host.state, host.result = "running", {}
            host.send(
                action=action,
                url=self.url,
                race=self.race,
                hold=self.hold,
                host="app" if self.same_name else f"host-{name}",
            )
        events = next(iter(self.hosts.values())).events
        while any(host.state != "done" for host in self.hosts.values()):
            try:
                name, event = events.get(timeout=TOLD_SECONDS)
            except Empty:
                self.problems.append(f"nobody was told: {self._states()}")
                self._release(*self.hosts.values())
                continue
            host = self.hosts[name]
            host.state = event["at"]
            if host.state == "done":
                host.result = event
            self._go_on()

    def _go_on(self) -> None:
        first, second = self.hosts.values()
        if first.state == second.state == "hold":
            self.problems.append("both hold it")
            self._release(first, second)
        for host, other in ((first, second), (second, first)):
            ready = ("race", "hold", "done") if host.state == "race" else ("done",)
            if host.state in ("race", "hold") and other.state in ready:
                self._release(host, *([other] if other.state == "race" else []))

    def _release(self, *hosts: Host) -> None:
        for host in hosts:
            if host.state in ("race", "hold"):
                host.state = "running"
                host.send(go=True)

    def _states(self) -> list[str]:
        return [host.state for host in self.hosts.values()]

    def judge(self, seed: Mapping[str, bytes], begun: Mapping[str, bytes], contents: Any) -> None:
        """Look at what is left: one has won, and what it did is whole."""
        results = [host.result for host in self.hosts.values()]
        won = [
            action
            for action, result in zip(self.actions, results, strict=True)
            if "error" not in result
        ]
        told = [result["error"] for result in results if "error" in result]
        self._check(len(won) == 1, f"{len(won)} have won: {told}")
        for problem, next_step in told:
            is_line = problem and next_step and "\n" not in problem + next_step
            self._check(is_line, f"told: {problem!r} {next_step!r}")
        spans = sorted(span for result in results for span in result.get("held", ()))
        overlaps = any(end > begin for (_, end), (begin, _) in pairwise(spans))
        self._check(not overlaps, f"held at the same time: {spans}")
        folder = open_writable(self.url)
        leases = holders.read_leases(folder)
        self._check([one.released for one in leases] == [True], f"leases: {leases}")
        self._check(len(holders.list_numbers(folder, holders.ANY)) == 1, "older leases are left")
        self._check(Journal.read(folder) is None, "a change is not finished")
        broken = [one for one in verify_checkpoint(self.url).proofs if one.verdict != "good"]
        self._check(not broken, f"the checkpoint does not verify: {broken}")
        if won:
            self._judge_backups(won[0], seed, begun, contents)

    def _judge_backups(
        self, won: str, seed: Mapping[str, bytes], begun: Mapping[str, bytes], contents: Any
    ) -> None:
        """Whatever was taken away comes back, to the byte."""
        left = len(Backup.read_all(open_writable(self.url)))
        expected = {"rewind": 3, "start": 2, "undo": 2, "prune": 1}[won]
        self._check(left == expected, f"{left} backups after {won}")
        present = contents(self.url)
        if won in ("start", "prune"):
            self._check(present == begun, f"{won} has changed the checkpoint")
        if won != "start":
            undo_rewind(self.url, assume_stopped=True)
            is_back = contents(self.url) == (seed if won == "prune" else begun)
            self._check(is_back, f"an undo after {won} gives other bytes")
        self._check(read_checkpoint(self.url).interrupted is None, "interrupted")

    def _check(self, is_right: object, problem: str) -> None:
        if not is_right:
            self.problems.append(problem)

    def __str__(self) -> str:
        names = "one host name" if self.same_name else "two host names"
        return f"{' and '.join(self.actions)}, race at {self.race}, held at {self.hold}, {names}"


class Disk:
    """The disk of this machine, which both hosts have mounted."""

    kind = "disk"
    environment: Mapping[str, str] = {}

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def new_root(self) -> str:
        """A new folder."""
        return tempfile.mkdtemp(dir=self._folder)

    def upload(self, folder: Path, url: str) -> str:
        """Copy a folder."""
        return str(shutil.copytree(folder, url))

    def contents(self, url: str) -> dict[str, bytes]:
        """Every file but our notes."""
        return snapshot(Path(url))


def make_seeds(folder: Path, shape: Shape) -> tuple[Path, dict[str, bytes], dict[str, bytes]]:
    """A checkpoint that was rewound twice, and its files before and after the second time."""
    checkpoint = make(folder / "seed", shape)
    seeds = []
    for batch in (3, 2):
        seeds.append(snapshot(checkpoint))
        request = RewindRequest(str(checkpoint), ToBatch(batch), assume_stopped=True, remedy="none")
        apply_rewind(plan_rewind(request), assume_stopped=True)
    shutil.rmtree(checkpoint / ".ebbtide" / "leases")
    return checkpoint, seeds[1], snapshot(checkpoint)


def race(store: Any, rounds: int) -> list[str]:
    """So many rounds on one store; what was wrong."""
    at_once = min(rounds, AT_ONCE)
    with (
        tempfile.TemporaryDirectory(prefix="ebbtide-hosts-") as folder,
        _environment(store.environment),
        ThreadPoolExecutor(at_once) as pool,
    ):
        seeds = make_seeds(Path(folder), SHAPE if store.kind == "disk" else SMALL)
        shares = [range(first, rounds, at_once) for first in range(at_once)]
        wrong = pool.map(lambda share: _race(store, share, *seeds), shares)
        return [problem for problems in wrong for problem in problems]


def _race(
    store: Any,
    numbers: Sequence[int],
    seed: Path,
    before: Mapping[str, bytes],
    begun: Mapping[str, bytes],
) -> list[str]:
    problems: list[str] = []
    root = store.new_root()
    with start_hosts(store.environment) as hosts:
        for number in numbers:
            one = Round(hosts, store.upload(seed, f"{root}/r{number}"), number)
            one.run()
            one.judge(before, begun, store.contents)
            problems += (f"{store.kind} round {number} ({one}): {why}" for why in one.problems)
            if number % 20 == 19:
                print(f"{store.kind}: round {number + 1} done", flush=True)  # noqa: T201
    return problems


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def open_store(kind: str) -> Iterator[Any]:
    """A running store."""
    if kind == "disk":
        with tempfile.TemporaryDirectory(prefix="ebbtide-hosts-") as folder:
            yield Disk(Path(folder))
        return
    from tests.servers import azure, gcs, hdfs, s3

    with {"s3": s3, "gcs": gcs, "azure": azure, "hdfs": hdfs}[kind].serve() as store:
        yield store


def main(rounds: int, kinds: Sequence[str]) -> int:
    """The campaign."""
    where = "namespaces of their own" if may_isolate() else "identities that they were told"
    print(f"Two hosts with {where}, {rounds} rounds on each store.", flush=True)  # noqa: T201
    problems: list[str] = []
    for kind in kinds or KINDS:
        with open_store(kind) as store:
            wrong = race(store, rounds)
        lines = [f"{kind}: {rounds} rounds, {len(wrong)} problems", *wrong]
        print("\n".join(lines), flush=True)  # noqa: T201
        problems += wrong
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
