"""One of the two hosts of tests/hosts.py: does what it is told, and waits where it is told."""

from __future__ import annotations

import json
import logging
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ebbtide import processes
from ebbtide.config import Settings
from ebbtide.errors import EbbtideError
from ebbtide.rewind import RewindRequest, apply, apply_rewind, backups, holders, lease, plan_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.runtime import ownership
from ebbtide.storage import WritableFolder
from tests.unit.test_pipeline import PIPELINE

OUT = sys.stdout
FIRST = 1
SETTINGS = Settings(home=Path("home"))


def say(at: str, **more: object) -> None:
    """Tell the campaign how far this host is."""
    OUT.write(json.dumps({"at": at, **more}) + "\n")
    OUT.flush()


class Points:
    """Where this host waits in the present round."""

    def __init__(self) -> None:
        self.race, self.hold, self.changes = "", "", 0
        self.is_holding = False
        self.spans: list[tuple[float, float]] = []

    def begin(self, race: str, hold: str) -> None:
        """Another round."""
        self.race, self.hold, self.changes, self.spans = race, hold, 0, []

    def at(self, race: str) -> None:
        """Wait for the other one, once."""
        if race == self.race:
            self.race = ""
            say("race")
            sys.stdin.readline()

    def keep(self, hold: str) -> None:
        """Wait until the other one was told, once."""
        if self.is_holding and self.hold and hold in (self.hold, "end"):
            self.hold = ""
            say("hold")
            sys.stdin.readline()

    def changing(self, what: str, path: str) -> None:
        """Before a change."""
        if path.startswith(".ebbtide/leases"):
            if what == "create":
                self.at("create")
            return
        self.changes += 1
        self.keep({1: "first change", 3: "third change"}.get(self.changes, ""))


POINTS = Points()


def prepare() -> None:
    """Put the points into place, and let leases be renewed so often that nobody waits long."""
    read, hold, changing, create = (
        holders.read_leases,
        lease.hold_lease,
        WritableFolder.changing,
        WritableFolder.create,
    )

    def look(folder: Any) -> Any:
        POINTS.at("look")
        return read(folder)

    def change(folder: WritableFolder, what: str, path: str) -> None:
        POINTS.changing(what, path)
        changing(folder, what, path)

    def create_it(folder: WritableFolder, path: str, text: str) -> bool:
        is_created = create(folder, path, text)
        POINTS.at("created")
        return is_created

    @contextmanager
    def hold_it(*arguments: Any, **options: Any) -> Iterator[Any]:
        with hold(*arguments, **options) as claimed:
            begun = time.monotonic()
            POINTS.is_holding = True
            try:
                yield claimed
                POINTS.keep("end")
            finally:
                POINTS.is_holding = False
                POINTS.spans.append((begun, time.monotonic()))

    holders.read_leases = look
    for module in (apply, backups, lease):
        module.hold_lease = hold_it  # type: ignore[attr-defined]
    WritableFolder.changing, WritableFolder.create = change, create_it  # type: ignore[assignment,method-assign]
    # not more often: a server that handles one request at a time has eight hosts
    lease._RENEW_SECONDS = 0.5  # type: ignore[assignment]
    holders._POLL_SECONDS = 0.25
    lease._ANSWER_SECONDS = 60  # to give it back
    logging.getLogger("ebbtide").setLevel(logging.ERROR)


def start(url: str) -> None:
    with ownership.claim(url, PIPELINE, SETTINGS):
        pass


def plan(action: str, url: str) -> Callable[[], object]:
    """What is done before the race, and what is done then."""
    if action == "rewind":
        request = RewindRequest(url, ToBatch(FIRST), assume_stopped=True, remedy="none")
        return partial(apply_rewind, plan_rewind(request), assume_stopped=True)
    if action == "undo":
        return partial(apply.undo_rewind, url, assume_stopped=True)
    if action == "prune":
        return partial(backups.prune_backups, url, keep=1)
    return partial(start, url)


def main(identity: str | None = None) -> None:
    """Rounds, until stdin is closed."""
    prepare()
    for line in sys.stdin:
        told = json.loads(line)
        if identity is None:
            socket.sethostname(told["host"])
        else:  # no namespaces here
            socket.gethostname = lambda: told["host"]  # noqa: B023
            processes.machine = holders.machine = lease.machine = lambda: identity  # type: ignore[assignment,attr-defined]
        POINTS.begin("", "")
        result: dict[str, Any] = {}
        try:
            act = plan(told["action"], told["url"])
            POINTS.begin(told["race"], told["hold"])
            act()
        except EbbtideError as error:
            result["error"] = [error.problem, error.next_step]
        except Exception as error:
            result["error"] = [f"{type(error).__name__}: {error}", ""]
        say("done", held=POINTS.spans, **result)


if __name__ == "__main__":
    main(*sys.argv[1:])
