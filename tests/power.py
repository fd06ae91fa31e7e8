"""A folder whose power is cut before its n-th change, and what is left then."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide.storage import WritableFolder, open_folder
from tests.trees import snapshot

RENEWING = "ebbtide-lease"
"""The thread that renews a lease."""


class PowerCutError(BaseException):
    """Nothing after this reaches the disk; no handler may catch it."""


@dataclass(frozen=True)
class Fragile(WritableFolder):
    """A checkpoint's folder that allows so many changes and not one more."""

    left: list[int] = field(default_factory=lambda: [1 << 60])

    def changing(self, what: str, path: str) -> None:
        del what, path
        if threading.current_thread().name == RENEWING:  # it has times of its own
            return
        if self.left[0] == 0:
            raise PowerCutError
        self.left[0] -= 1


def fragile(folder: Path | str, changes: int) -> Fragile:
    """The folder, with power for so many changes."""
    found = open_folder(str(folder))
    return Fragile(found.url, found.filesystem, found.root, left=[changes])


def cut(folder: Path, changes: int, change: Callable[[WritableFolder], object]) -> bool:
    """Make a change with power for so many steps; returns whether the power was cut."""
    try:
        change(fragile(folder, changes))
    except PowerCutError:
        bury_the_process(folder)
        return True
    return False


def bury_the_process(folder: Path) -> None:
    """The process that held the lease is this one, and it is alive: say that it is not."""
    for lease in (folder / ".ebbtide" / "leases").glob("*.json"):
        note = json.loads(lease.read_text())
        lease.write_text(json.dumps(note | {"processes": [[2**22 + 7, 1]]}))


def everywhere(folder: Path) -> set[bytes]:
    """The contents of all files, in the checkpoint and in its backups."""
    kept = {p.read_bytes() for p in (folder / ".ebbtide").rglob("*") if p.is_file()}
    return kept | set(snapshot(folder).values())


def barrier(folder: Path) -> str | None:
    """The barrier's line, if it is up: it lies above every other entry."""
    ids = [int(path.name) for path in (folder / "offsets").iterdir() if path.name.isdigit()]
    text = (folder / "offsets" / str(max(ids, default=0))).read_text() if ids else ""
    return text if text.startswith("ebbtide: ") else None
