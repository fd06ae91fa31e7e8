"""A home, a settings file and recent use in, the checkpoints that are known out."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ebbtide.config import Settings, write_whole
from ebbtide.errors import mask

HOME, FILE, RECENT, OPENED = "home", "ebbtide.toml", "recent", "opened"
"""From where a checkpoint is known."""
_KEPT = 50
"""So many recent ones are remembered."""
_METADATA = "metadata"


@dataclass(frozen=True)
class Known:
    """A checkpoint that is known; it need not be there any more."""

    location: str
    """A URL, or an absolute path."""
    source: str

    @property
    def name(self) -> str:
        """The last part of its path.

        >>> Known("s3://bucket/checkpoints/visits/", RECENT).name
        'visits'
        """
        return self.location.rstrip("/").rpartition("/")[2] or self.location


def list_known(settings: Settings, opened: Iterable[str] = ()) -> list[Known]:
    """Every known checkpoint once: opened just now, of the home, of the file, used lately."""
    found: dict[str, Known] = {}
    for source, locations in (
        (OPENED, opened),
        (HOME, _of_home(settings.home)),
        (FILE, settings.checkpoints),
        (RECENT, [place for place in read_recent() if is_remote(place) or is_checkpoint(place)]),
    ):
        for location in map(absolute, locations):
            found.setdefault(location, Known(location, source))
    return list(found.values())


def _of_home(home: Path) -> list[str]:
    """The checkpoints of jobs and archives."""
    try:
        return sorted(
            str(folder)
            for folder in (home / "checkpoints").iterdir()
            # without its metadata it cannot be read, and that should be seen
            if is_checkpoint(str(folder)) or (folder / "offsets").is_dir()
        )
    except OSError:
        return []


def absolute(location: str) -> str:
    """A location that means the same from every folder: local paths absolute, URLs as they are.

    >>> absolute("s3://b/c/"), absolute("/a/../b/")
    ('s3://b/c', '/b')
    """
    if is_remote(location):
        return location.rstrip("/")
    # not resolved: a link is the name by which people know it
    place = os.path.expanduser(location.removeprefix("file://"))  # noqa: PTH111 - ~nobody is a name
    return os.path.abspath(place)  # noqa: PTH100


def is_remote(location: str) -> bool:
    """Whether it lies elsewhere than on this machine's disk."""
    return "://" in location and not location.startswith("file://")


def is_checkpoint(location: str) -> bool:
    """Whether a folder of this machine looks like a checkpoint; remote ones are not asked."""
    place = Path(absolute(location))
    try:
        return (place / _METADATA).is_file()
    except OSError:
        return False


def note_use(location: str) -> None:
    """Remember that a checkpoint was used; that must never keep anyone from using it.

    One with a password in its URL is not remembered.
    """
    with suppress(OSError, ValueError):
        if not (mask(location) == location if is_remote(location) else is_checkpoint(location)):
            return
        before = read_recent()
        now = list(dict.fromkeys([absolute(location), *before]))[:_KEPT]
        if now != before:
            file = recent_file()
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps(now), private=True)


def read_recent() -> list[str]:
    """The checkpoints used lately, the last one first."""
    try:
        found = json.loads(recent_file().read_text("utf-8"))
    except (OSError, ValueError):
        return []
    if not isinstance(found, list):
        return []
    return [place for place in found if isinstance(place, str)]


def recent_file() -> Path:
    """Where they are remembered."""
    import platformdirs

    return platformdirs.user_state_path("ebbtide") / "recent.json"
