"""One run: a seed chooses the store, who works on the checkpoint, and what goes wrong."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from tests.simulation import actors, faults, model, objects, product
from tests.simulation.disk import Disk
from tests.simulation.faults import Faults
from tests.simulation.plants import unplanted
from tests.simulation.world import World
from tests.trees import Shape, make, snapshot

SHAPES = {
    "stateless": Shape(batches=2, hadoop_checksums=False),
    "hdfs": Shape("hdfs", batches=3, partitions=1, hadoop_checksums=False),
    "changelog": Shape("changelog", batches=2, partitions=1, hadoop_checksums=False),
    "v2": Shape("v2", batches=2, partitions=1, hadoop_checksums=False),
}
HOST_A, HOST_B = "a", "b"


@dataclass(frozen=True)
class Profile:
    """A kind of store."""

    name: str
    url: str
    root: str
    make: Callable[..., Any]
    kinds: tuple[str, ...] = faults.REMOTE
    latency: float = 0.02


PROFILES = {
    one.name: one
    for one in (
        Profile("disk", "/disk/", "/disk/", Disk, faults.LOCAL, 0.0002),
        Profile(
            "disk without a journal",
            "/disk/",
            "/disk/",
            partial(Disk, ordered=False),
            faults.LOCAL,
            0.0002,
        ),
        Profile(
            "disk without links",
            "/disk/",
            "/disk/",
            partial(Disk, links=False),
            faults.LOCAL,
            0.0002,
        ),
        Profile("s3", "s3://bucket/", "bucket/", objects.S3Files),
        Profile("gcs", "gs://bucket/", "bucket/", objects.GcsFiles),
        Profile("azure", "abfss://box@acc.dfs.core.windows.net/", "box/", objects.AzureFiles),
        Profile("hdfs", "webhdfs://node:9870/", "/", objects.HdfsFiles),
        Profile("httpfs", "webhdfs://node:9870/", "/", objects.HttpFsFiles),
    )
}


@dataclass
class Outcome:
    """What came of one run."""

    seed: int
    about: str
    problems: list[str]
    trace: list[str] | None
    steps: int = 0
    faults: int = 0


@dataclass
class Stage:
    """A checkpoint with a past: as it lies in a store, and what the model knows of it."""

    files: dict[str, bytes]
    before: dict[str, dict[str, bytes]]


class Simulation:
    """A store, its model, and the processes that use it."""

    def __init__(self, seed: object, profile: Profile, *, trace: bool = False) -> None:
        self.world = World(seed, trace=trace)
        self.profile = profile
        self.url = f"{profile.url}c"
        self.root = f"{profile.root}c"
        self.model = model.Model(self.world, self.root)
        self.faults = Faults(self.world, profile.kinds, active=False)
        self.store = profile.make(self.world, self.faults, self.model.changed)
        self.faults.on_power_cut = self._cut_power
        self.world.latency = profile.latency
        actors.Watched.model = self.model
        product.ROOTS.clear()
        product.ROOTS[profile.url] = (self.store, profile.root)
        self._numbers = 0
        self.model.watched = False
        self._alone("setup", lambda: setattr(actors.Watched, "address", self._address()))
        self.model.watched = True

    def _address(self) -> str:
        from ebbtide.storage import open_folder

        return str(open_folder(self.url).address)

    def load(self, files: Mapping[str, bytes]) -> None:
        """Fill the store."""
        self.store.load(dict(files), self.world.now - 5_000)
        self.model.reset(files)
        self.model.settle()

    def contents(self) -> dict[str, bytes]:
        """All files of the store."""
        if isinstance(self.store, Disk):
            return self.store.files
        return {path: one.content for path, one in self.store.files.items()}

    def _cut_power(self) -> None:
        for process in self.world.processes:
            if not process.dead:
                self.world.crash(process)
        self.world.say("--- the power is cut")
        self.store.cut_power()
        self.model.reset(self.contents())

    def start(self, name: str, host: str, action: actors.Action) -> Any:
        """A process that does something."""
        process = self.world.add_process(name, host)
        return self.world.spawn(process, "main", lambda: actors.attempt(action))

    def _alone(self, name: str, action: actors.Action) -> None:
        self._numbers += 1
        self.world.run(self.start(f"{name}-{self._numbers}", HOST_B, action))

    def must(self, name: str, action: actors.Action) -> None:
        """Do something without faults and alone; it has to succeed."""

        def do() -> None:
            try:
                action()
            except Exception as error:
                self.world.say(f"=== {error}")
                self.world.fail(f"{name}: {error}")
                if self.world.trace is not None:
                    import traceback

                    self.world.trace.append(traceback.format_exc())

        self._alone(name, do)


@cache
def _base(shape: str, seed: str) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        return snapshot(make(Path(folder), Shape(**{**vars(SHAPES[shape]), "seed": seed})))


@cache
def prepare(profile: str, shape: str, past: int) -> Stage:
    """A checkpoint that was rewound so many times, and has run on in between."""
    one = Simulation(f"stage {profile} {shape}", PROFILES[profile])
    one.world.first_pid = 900  # none of them is there any more
    one.load({f"{one.root}/{path}": c for path, c in _base(shape, "old").items()})
    for number in range(past):
        one.must("rewind", partial(actors.rewind, one.url, 1 - number))
        other = _base(shape, f"new {number}")
        if number + 1 < past or past == 1:
            stays = model.rewound(other, 1 - number, "exact")
            missing = {p: c for p, c in other.items() if p not in {**one.model.tree, **stays}}
            one.load({f"{one.root}/{p}": c for p, c in missing.items()} | one.contents())
    one.world.end()
    assert not one.world.problems, one.world.problems
    return Stage(one.contents(), one.model.before)


def play(seed: int, *, trace: bool = False, only: str | None = None) -> Outcome:
    """Play one seed."""
    chance = product.seeded(f"plan {seed}")
    names = list(PROFILES)
    profile = PROFILES[only or names[seed % len(names)]]
    shape = chance.choice(list(SHAPES))
    past = chance.choice([0, 1, 1, 2])
    with unplanted():
        stage = prepare(profile.name, shape, past)
    one = Simulation(seed, profile, trace=trace)
    one.load(stage.files)
    one.model.before |= stage.before
    begun = dict(one.model.tree)
    about = _arrange(one, chance, past)
    mains = _begin(one, chance, past)
    about += f", {past} rewinds before: {', '.join(task.process.name for task in mains)}"
    one.world.say(f"{profile.name}, {shape}, {about}")
    one.world.run(*mains)
    one.faults.active = False
    _judge(one, begun)
    one.world.end()
    return Outcome(
        seed,
        f"{profile.name}, {shape}, {about}",
        one.world.problems,
        one.world.trace,
        one.world.steps,
        one.faults.seen,
    )


def _arrange(one: Simulation, chance: Any, past: int) -> str:
    """Choose what goes wrong."""
    del past
    world, found = one.world, one.faults
    found.active = True
    world.latency *= chance.choice([1, 1, 5])
    world.switching = chance.choice([0.02, 0.1, 0.5])
    mode: str = chance.choice(["nothing", "one fault", "one fault", "faults", "outage", "stalls"])
    if mode == "one fault":
        found.single = {"*": chance.randrange(1, 260)}
    elif mode == "faults":
        found.rate = chance.choice([0.003, 0.01, 0.05])
    elif mode == "outage":
        begin = world.now + chance.random() * 200 * world.latency
        found.outage = (begin, begin + chance.choice([1.0, 15.0, 45.0, 70.0, 200.0]))
    elif mode == "stalls":
        found.stall_rate = chance.choice([0.02, 0.1])
    return mode


def _begin(one: Simulation, chance: Any, past: int) -> list[Any]:
    """Choose who works on it."""
    url = one.url
    choices: list[tuple[str, actors.Action]] = [
        (f"rewind {batch}", partial(actors.rewind, url, batch)) for batch in (0, 1)
    ]
    choices.append(("replan 1", partial(actors.rewind, url, 1, replan=True)))
    new, batch = f"{one.profile.url}f", chance.choice([1, 2, 3, 3])
    choices += [("fork", partial(actors.make_fork, url, new, batch))] * 2
    choices.append(("write", partial(actors.write_batches, url, 2)))
    if past:
        choices += [("undo", partial(actors.undo, url))] * 4
        choices.append(("prune", partial(actors.prune, url, 1)))
    count = chance.choice([1, 1, 1, 2, 2, 3])
    tasks = []
    for number in range(count):
        name, action = chance.choice(choices)
        host = chance.choice([HOST_A, HOST_A, HOST_B])
        process = f"{name} #{number}"
        if name == "write":
            one.model.writers.add(process)
        tasks.append(one.start(process, host, action))
    if one.model.writers:  # Spark does not sync its files: what it loses is no fault of ours
        one.faults.kinds = [kind for kind in one.faults.kinds if kind != faults.POWER]
    if "*" in one.faults.single:
        victim = chance.choice(tasks).process.name
        one.faults.single = {victim: one.faults.single["*"]}
    return tasks


def _judge(one: Simulation, begun: model.Contents) -> None:
    """After all that: it can be finished, nothing is lost, and an undo brings it back."""
    world, known, url = one.world, one.model, one.url
    if known.barrier is None and known.tree not in known.settled:
        world.fail(f"without a barrier, it is a tree that there never was: {sorted(known.tree)}")
    _require_contents(one, begun, "when all had ended")
    for process in world.processes:  # those that were killed are gone; others have ended
        process.dead = True
    known.owners.clear()
    _judge_fork(one)
    if world.problems:
        return
    key = hash(_fingerprint(one, begun))
    if key in _JUDGED and world.trace is None:
        return
    one.must("finish", partial(actors.finish, url))
    if world.problems:
        return
    if known.barrier is not None or f"{model.NOTES}change.json" in known.notes:
        world.fail("it is not finished")
    _require_contents(one, begun, "after it was finished")
    _judge_undo(one)
    if not world.problems:
        _JUDGED.add(key)


_JUDGED: set[int] = set()
"""What was left of runs, and found to be right: the same need not be looked at again."""
_VOLATILE = re.compile(
    rb"\d{8}T\d{6}\.\d{6}Z|[0-9a-f]{64}|[0-9a-f]{32}|\d{4}-\d\d-\d\dT[0-9:.+Z]*"
    rb"|[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"
)
"""Times, tokens and random ids; those of the first kind are put in order."""


def _fingerprint(one: Simulation, begun: model.Contents) -> object:
    """What is left, but for times and random names."""
    known = one.model
    ids = sorted({id_[:23] for id_ in (*known.before, *_backups(known))})
    order = {id_.encode(): b"id-%d" % at for at, id_ in enumerate(ids)}
    free = [path for path in known.notes if path.startswith(f"{model.NOTES}leases/")]
    lines = [f"{p}\0".encode() + c for p, c in known.notes.items() if p not in free]
    text = b"\0\0".join(sorted(lines))
    text = _VOLATILE.sub(lambda match: order.get(match[0], b"-"), text)
    numbers = {p: int(p.split("/")[2].lstrip(".").split(".")[0]) for p in free}
    last = max(numbers.values(), default=0)
    leases = sorted(
        (p.split(".", 2)[2], b"true" in known.notes[p][-30:], known.notes[p][-1:] == b"}")
        for p in free
        if numbers[p] == last
    )
    return (
        one.profile.name,
        hash(text),
        tuple(leases),
        frozenset(known.tree.items()),
        frozenset(begun.items()),
        known.pruned,
        bool(known.writers),
        tuple(frozenset(known.before[id_].items()) for id_ in sorted(known.before)),
    )


def judged() -> set[int]:
    """The different ends of runs that this process has looked at."""
    return _JUDGED


def _backups(known: model.Model) -> set[str]:
    start = f"{model.NOTES}backups/"
    return {path[len(start) :].split("/")[0] for path in known.notes if path.startswith(start)}


def _require_contents(one: Simulation, begun: model.Contents, when: str) -> None:
    if one.model.pruned:
        return
    there = one.model.everything()
    for path, content in begun.items():
        if content not in there:
            one.world.fail(f"{path} is lost {when}")


def _judge_undo(one: Simulation) -> None:
    world, known, url = one.world, one.model, one.url
    found: list[str | None] = []
    one.must("look", lambda: found.append(actors.newest_backup(url)))
    if not found or found[0] is None:
        return
    present = dict(known.tree)
    one.must("undo", partial(actors.undo, url))
    if world.problems:
        return
    if not known.writers and known.tree != known.before[found[0]]:
        world.fail(f"an undo of {found[0]} gives other bytes")
    one.must("undo again", partial(actors.undo, url))
    if not world.problems and known.tree != present:
        world.fail(f"the undo of an undo of {found[0]} gives other bytes")
    left = [path for path in known.notes if path.startswith(f"{model.NOTES}tmp/")]
    if left := [path for path in left if ".renewed." not in path]:
        world.fail(f"left behind: {left}")


def _judge_fork(one: Simulation) -> None:
    """Unless Spark fails on its barrier, it is whole, and what one tree of the original held."""
    new = f"{one.profile.root}f/"
    found = {p.removeprefix(new): c for p, c in one.contents().items() if p.startswith(new)}
    tree = {p: c for p, c in found.items() if not p.startswith(model.NOTES)}
    if not tree or any(map(model.is_barrier, tree.values())):
        return
    note = found.get(f"{model.NOTES}fork.json")
    if note is None or json.loads(note)["files"] != len(tree) - 1:  # all but its own metadata
        one.world.fail(f"a fork without a barrier is not whole: {sorted(tree)}")
    same = (
        all(origin.get(p) == c for p, c in tree.items() if p != "metadata")
        for origin in one.model.settled
    )
    if not any(same):
        one.world.fail(f"the fork is a tree that the original never was: {sorted(tree)}")


@contextmanager
def simulation() -> Iterator[None]:
    """What a campaign needs around its runs."""
    product.REPLACED += [one for one in actors.REPLACED if one not in product.REPLACED]
    with product.simulated():
        yield
