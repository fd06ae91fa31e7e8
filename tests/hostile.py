"""Damaged and hostile checkpoints: a good one and a seed in, what every command does to it out."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import traceback
import zipfile
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer.main

from ebbtide import cli
from ebbtide.checkpoint import Journal, layout
from ebbtide.errors import EbbtideError
from ebbtide.history import Entry
from ebbtide.history.store import write_entry
from ebbtide.notes import write_note
from ebbtide.parsing import MAX_BYTES
from ebbtide.rewind import RewindRequest, apply_rewind, plan_rewind
from ebbtide.rewind.journal import BACK_UP, FINISH, VERIFY
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import open_writable
from tests.trees import Shape, make

SECONDS, MEGABYTES = 30, 900
"""What one command may take on a busy machine; a hang or a bomb takes all there is."""
DEEP = "[" * 4000
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**11, 10**17, 2**63, 10**30, 1.5, float("inf"), float("nan")),
    *("", "²", "..", "../..", "../../../outside", "/", "a\0b", "\ud800", "x" * 300, "::", "7"),
    *([], {}, [[]], [None], {"": None}, {"kind": 5}, [{}], [["a", -1, "no"]]),
)
NAMES = ("²", "007", "9" * 25, "8" * 17, "-1", "a b", "x::y", "x" * 200, b"caf\xe9", "5.delta")

get_command = cache(typer.main.get_command)


@dataclass(frozen=True)
class Case:
    """A checkpoint, its sink, a saved plan, and a folder that no command may touch."""

    home: Path

    @property
    def checkpoint(self) -> Path:
        """What the commands are about."""
        return self.home / "c"

    @property
    def outside(self) -> Path:
        """What they must leave alone."""
        return self.home / "outside"

    @property
    def plan(self) -> Path:
        """A saved plan for the checkpoint."""
        return self.home / "plan.json"

    def commands(self) -> list[list[str]]:
        """Every command that reads a checkpoint, then those that change it."""
        folder, stopped = str(self.checkpoint), ["--yes", "--assume-stopped"]
        return [
            ["inspect", folder],
            ["inspect", folder, "-o", "json"],
            ["verify", folder],
            ["history", folder],
            ["backups", folder],
            ["rewind", folder, "--to-batch", "2", "--assume-stopped"],
            ["rewind", folder, "--to-batch", "0", "--replan", "--assume-stopped"],
            ["rewind", folder, "--to-latest-good", "--assume-stopped", "-o", "json"],
            ["offsets", folder],
            ["offsets", folder, "--at-batch", "0", "-o", "json"],
            ["fork", folder, str(self.home / "fork"), "--at-batch", "2"],
            ["fork", folder, str(self.home / "start"), "--offsets-only"],
            ["apply", str(self.plan), *stopped],
            ["rewind", folder, "--to-batch", "1", "--execute", *stopped],
            ["undo", folder, *stopped],
            ["backups", folder, "--prune", "--keep", "1", "--yes"],
            ["inspect", folder],
        ]


def make_case(home: Path, shape: Shape) -> Case:
    """A checkpoint with all of our notes: rewound twice, its sink a folder, its history kept."""
    case = Case(home)
    make(case.checkpoint, shape)
    case.outside.mkdir()
    for name in ("keep", "_ebbtide/b1/keep", "state/0/0/1.delta"):
        (case.outside / name).parent.mkdir(parents=True, exist_ok=True)
        (case.outside / name).write_text(f"never touch {name}")
    folder, sink = open_writable(str(case.checkpoint)), home / "sink"
    for batch in range(shape.batches):
        data = sink / f"part-{batch}.json"
        data.parent.mkdir(exist_ok=True)
        data.write_text("{}")
        entry = {"path": data.as_uri(), "size": 2, "isDir": False, "action": "add"}
        (sink / "_spark_metadata").mkdir(exist_ok=True)
        (sink / "_spark_metadata" / str(batch)).write_text(f"v1\n{json.dumps(entry)}")
        offset = json.dumps({"visits": {"0": batch, "1": 2 * batch}})
        write_entry(folder, Entry(batch, "origin", "2026", "2026", (offset,), 1))
    place = {"kind": "files", "name": str(sink), "path": str(sink)}
    owner = {"pipeline": "p", "event_time": "at", "sink": place, "location": folder.address}
    write_note(folder, layout.OWNER, owner)
    for batch in (shape.batches - 1, shape.batches - 2):
        request = RewindRequest(str(case.checkpoint), ToBatch(batch), assume_stopped=True)
        apply_rewind(plan_rewind(request), assume_stopped=True)
    write_note(folder, layout.QUERY_IDS, {"ids": ["7b3c", "8c4d"]})
    request = RewindRequest(str(case.checkpoint), ToBatch(2), assume_stopped=True)
    case.plan.write_text(json.dumps(plan_rewind(request).to_dict()))
    return case


class Damage:
    """Change a case in ways that a disk, a tool or an attacker might."""

    def __init__(self, case: Case, seed: int) -> None:
        self.case, self.random = case, random.Random(seed)
        self.done: list[str] = []

    def apply(self) -> None:
        """One to three changes."""
        if self.random.random() < 0.15:
            self.interrupt()
        ways: list[Callable[[Path], None]] = [self.change_json] * 6
        ways += [self.change_bytes, self.replace, self.replace, self.rename, self.add]
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            way = self.random.choice(ways)
            target = self.pick()
            self.done.append(f"{way.__name__} {target.relative_to(self.case.home)}")
            with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                way(target)

    def interrupt(self) -> None:
        """A journal, as if a rewind or an undo had been killed in some phase."""
        notes = self.case.checkpoint / ".ebbtide"
        ids = [path.name for path in (notes / "backups").iterdir()]
        action = self.random.choice(("rewind", "undo"))
        made, back = self.random.choice((*ids, "gone")), self.random.choice((*ids, "gone", None))
        phase = self.random.choice(
            (BACK_UP, "5 sink", "6 state away", "7 logs back", VERIFY, FINISH)
        )
        journal = Journal(action, made, back, 1, "exact", "--to-batch 1", 9, phase)
        (notes / layout.JOURNAL).write_text(json.dumps(asdict(journal)))
        self.done.append(f"interrupt {journal}")

    def pick(self) -> Path:
        """A file or a folder; our notes, the logs and the plan more often than state."""
        below = self.case.checkpoint
        places = [below / ".ebbtide", below / "offsets", below / "commits", below / "state", below]
        place = self.random.choice(places)
        if self.random.random() < 0.1 and self.case.plan.is_file():
            return self.case.plan
        if self.random.random() < 0.1:
            place = self.case.home / "sink"
        found = sorted(path for path in place.rglob("*") if path.suffix != ".crc")
        # not a pipe or a link that an earlier change has put there
        found = [p for p in found if not p.is_symlink() and (p.is_file() or p.is_dir())]
        return self.random.choice(found or [self.case.outside / "keep"])

    def change_json(self, path: Path) -> None:
        """Put another value somewhere into JSON, or leave one out."""
        if path.suffix == ".zip":
            self.change_zip(path)
            return
        lines = path.read_text("latin-1").split("\n")
        index = self.random.choice([i for i, line in enumerate(lines) if "{" in line] or [0])
        lines[index] = self.change_line(lines[index])
        path.write_text("\n".join(lines), "latin-1")

    def change_line(self, line: str) -> str:
        before, start, rest = line.partition("{")
        try:
            value = json.loads(start + rest)
        except (ValueError, RecursionError):  # or an earlier change has made it deep
            return self.random.choice((DEEP, "{}", "null", line * 2))
        if self.random.random() < 0.1:
            return before + self.random.choice((DEEP, "[]", "5", start + rest[:-1]))
        node = value
        while True:
            keys = list(node) if isinstance(node, dict) else range(len(node))
            key = self.random.choice(list(keys) or [None])
            if key is None:
                return before + json.dumps(value)
            inner = node[key]
            if isinstance(inner, dict | list) and inner and self.random.random() < 0.7:
                node = inner
                continue
            new = self.random.choice((*VALUES, str(self.case.outside)))
            if self.random.random() < 0.15 and isinstance(node, dict):
                del node[key]
            elif isinstance(inner, str) and inner.startswith(("{", "[")):
                node[key] = self.change_line(inner)
            else:
                node[key] = new
            text = json.dumps(value)
            return before + (text.replace('""', DEEP) if self.random.random() < 0.05 else text)

    def change_zip(self, path: Path) -> None:
        """Metadata that are no metadata, or that unpack to more than fits into memory."""
        metadata = self.random.choice(
            [
                b"v1\n" + json.dumps({"sstFiles": self.random.choice(VALUES)}).encode(),
                b"v1\n" + json.dumps({"sstFiles": [{"dfsSstFileName": "../x"}]}).encode(),
                b"v1\n" + DEEP.encode(),
                bytes(70 << 20),
                b"",
            ]
        )
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(self.random.choice(("metadata", "other")), metadata)

    def change_bytes(self, path: Path) -> None:
        """Cut it off, empty it, flip a bit, or make it larger than memory."""
        content = path.read_bytes()
        match self.random.randrange(5):
            case 0:
                path.write_bytes(content[: self.random.randrange(len(content) + 1)])
            case 1:
                path.write_bytes(b"")
            case 2:
                os.truncate(path, MAX_BYTES + 1)
            case 3:
                path.write_bytes(content + b"\xff\x00\n{" * self.random.choice((1, 100)))
            case _:
                at = self.random.randrange(max(1, len(content)))
                flipped = bytes([content[at] ^ 1 << self.random.randrange(8)]) if content else b"?"
                path.write_bytes(content[:at] + flipped + content[at + 1 :])

    def replace(self, path: Path) -> None:
        """Put something else in its place: nothing, a folder, a pipe, a link to any of these."""
        aside = self.case.outside / f"moved-{len(self.done)}"
        path.rename(aside)
        match self.random.randrange(9):
            case 0:
                return
            case 1:
                path.mkdir()
            case 2:
                os.mkfifo(path)
            case 3:
                path.symlink_to("/dev/zero")
            case 4:
                path.symlink_to(aside)
            case 5:
                path.symlink_to(path)
            case 6:
                path.symlink_to("nowhere")
            case 7:
                path.symlink_to(self.case.checkpoint)
            case _:
                path.write_text("in the way")

    def rename(self, path: Path) -> None:
        """Another name: a number that is none, one that is huge, one that is no text."""
        name = self.random.choice(NAMES)
        place = os.fsencode(path.parent) + b"/"
        os.rename(path, place + (name if isinstance(name, bytes) else name.encode()))

    def add(self, path: Path) -> None:
        """A second one under another name, or many."""
        folder = path if path.is_dir() else path.parent
        names: Iterable[str | bytes] = [self.random.choice(NAMES)]
        if self.random.random() < 0.3:
            pattern = self.random.choice(("junk-{}", "{}", "7_{}.zip", "{}.delta"))
            names = [pattern.format(10 + 2 * n) for n in range(2_000)]
        content = path.read_bytes()[:4096] if path.is_file() else b""
        for name in names:
            place = os.fsencode(folder) + b"/"
            with suppress(OSError), open(place + os.fsencode(name), "wb") as file:
                file.write(content)


def take_digest(folder: Path) -> str:
    """Of everything in a folder: names, kinds, contents, links, times."""
    digest = hashlib.sha256()
    for place, folders, files in os.walk(os.fsencode(folder)):
        folders.sort()
        for name in sorted([*folders, *files]):
            info = os.lstat(place + b"/" + name)
            digest.update(f"{place + b'/' + name!r} {info.st_mode} {info.st_mtime_ns}".encode())
            digest.update(f"{info.st_size} {info.st_ino} {info.st_nlink}".encode())
    return digest.hexdigest()


def run_commands(case: Case, commands: list[list[str]]) -> str | None:
    """Run commands on a case in a child process; what went wrong, if anything did."""
    before = take_digest(case.outside)
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        _run_in_child(case, commands, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode("utf-8", "replace")
    _, status, usage = os.wait4(child, 0)
    if os.WIFSIGNALED(status):
        return f"killed by signal {os.WTERMSIG(status)} in: {said}"
    lines = said.split("\n", 1)
    if "\0" in said:
        return lines[-1].replace("\0", "")
    if usage.ru_maxrss > (MEGABYTES << 10):
        return f"took {usage.ru_maxrss >> 10} MB"
    return None if take_digest(case.outside) == before else "changed what lies outside"


def warm_up(case: Case) -> None:
    """Load in this process what every child needs, and build the tree of commands once."""
    app = get_command(cli.app)
    for command in case.commands():
        with suppress(SystemExit, EbbtideError), redirect_stdout(io.StringIO()):
            with redirect_stderr(io.StringIO()):
                app(command, standalone_mode=False)


def _run_in_child(case: Case, commands: list[list[str]], writer: int) -> None:
    limit = MEGABYTES << 20
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + limit, used + limit))
    typer.main.get_command = get_command
    os.chdir(case.home)
    os.environ["EBBTIDE_HOME"] = str(case.home / "home")
    sys.stdout = sys.stderr = io.TextIOWrapper(io.FileIO(os.devnull, "w"), encoding="utf-8")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    try:
        for command in commands:
            os.write(writer, f"{' '.join(command)}\n".encode())
            signal.alarm(SECONDS)
            sys.argv = ["ebbtide", *command]
            with suppress(SystemExit):
                cli.main()
    except BaseException:  # the parent reads it
        os.write(writer, b"\0" + traceback.format_exc()[-3000:].encode("utf-8", "replace"))
    finally:
        os._exit(0)


def copy_case(case: Case, home: Path) -> Case:
    """The same elsewhere; what names its place names the new one."""
    shutil.copytree(case.home, home, symlinks=True)
    copy = Case(home)
    for path in (*(copy.checkpoint / ".ebbtide").rglob("*.json"), copy.plan):
        path.write_text(path.read_text().replace(str(case.home), str(home)))
    for path in (home / "sink" / "_spark_metadata").iterdir():
        path.write_text(path.read_text().replace(str(case.home), str(home)))
    return copy
