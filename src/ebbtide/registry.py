"""The checkpoints that Ebbtide knows: in the home, in ebbtide.toml, and used recently."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ebbtide.config import Settings, write_whole
from ebbtide.credentials import take_credentials
from ebbtide.locations import one_spelling, with_slashes
from ebbtide.parsing import parse_json

HOME, FILE, RECENT, OPENED = "home", "ebbtide.toml", "recent", "opened"
"""Where a checkpoint is known from."""
_MAX_RECENT = 50
_MOST_PARTS = 30
"""A longer end tells nobody anything, and all ends of a path take the square of its length."""


@dataclass(frozen=True)
class KnownCheckpoint:
    """A known checkpoint, which may not exist any more."""

    location: str
    """A URL, or an absolute path."""
    source: str
    label: str = ""
    """The end of its location, long enough to tell it from the others in a list."""

    @property
    def name(self) -> str:
        """The last part of its path.

        >>> KnownCheckpoint("s3://bucket/checkpoints/visits/", RECENT).name
        'visits'
        """
        return self.location.rstrip("/").rpartition("/")[2] or self.location

    @property
    def key(self) -> str:
        """Its key in the URLs of the web UI: a simplified name and a digest.

        >>> KnownCheckpoint("/data/<b>Visits", RECENT).key
        'b-visits-e690146b01eb'
        """
        name = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")[:40]
        digest = hashlib.sha256(self.location.encode()).hexdigest()[:12]
        return f"{name}-{digest}" if name else digest


def list_known(
    settings: Settings, opened: Iterable[str] = (), at_url: Iterable[str] = ()
) -> list[KnownCheckpoint]:
    """List every known checkpoint once: opened, in the home, in the file, used recently.

    `at_url` are those in a home that is a URL. What was forgotten is listed only if it is opened.
    """
    checkpoints: dict[str, KnownCheckpoint] = {}
    forgotten = set(map(one_spelling, _read_list(_forgotten_file())))
    for source, locations in (
        (OPENED, opened),
        (HOME, at_url if settings.url else _of_home(settings.home)),
        (FILE, settings.checkpoints),
        (RECENT, [place for place in read_recent() if is_remote(place) or is_checkpoint(place)]),
    ):
        for location in map(absolute, locations):
            if source == OPENED or one_spelling(location) not in forgotten:
                checkpoints.setdefault(one_spelling(location), KnownCheckpoint(location, source))
    labels = tell_apart(one.location for one in checkpoints.values())
    return [replace(one, label=labels[one.location]) for one in checkpoints.values()]


def tell_apart(locations: Iterable[str]) -> Mapping[str, str]:
    """The shortest end of each location that no other one has.

    >>> sorted(tell_apart(["/jobs/a/checkpoint", "/jobs/b/checkpoint", "/visits"]).values())
    ['a/checkpoint', 'b/checkpoint', 'visits']
    """
    ends = {place: place.rstrip("/").split("/")[-_MOST_PARTS:] for place in set(locations)}
    count = Counter("/".join(parts[-n:]) for parts in ends.values() for n in range(1, len(parts)))
    return {
        place: next(
            (end for n in range(1, len(parts)) if count[end := "/".join(parts[-n:])] == 1), place
        )
        for place, parts in ends.items()
    }


def _of_home(home: Path) -> list[str]:
    try:
        return sorted(
            str(folder)
            for folder in (home / "checkpoints").iterdir()
            # one without metadata cannot be read, and the user should see that
            if is_checkpoint(str(folder)) or (folder / "offsets").is_dir()
        )
    except OSError:
        return []


def absolute(location: str) -> str:
    """Make a local path absolute; a URL stays as it is, but for a password or a signature.

    >>> absolute("s3://b/c/"), absolute("/a/../b/")
    ('s3://b/c', '/b')
    """
    if is_remote(location):
        return take_credentials(location).rstrip("/")
    # links are not resolved: users know the checkpoint by the name of the link
    place = with_slashes(location).removeprefix("file://")
    place = os.path.expanduser(place)  # noqa: PTH111 - ~nobody is a name
    return os.path.abspath(place)  # noqa: PTH100


def is_remote(location: str) -> bool:
    """Whether a location is not on a disk of this machine.

    >>> is_remote("/data/a::b"), is_remote("file:///data/c"), is_remote("simplecache::s3://b/c")
    (False, False, True)
    """
    location = with_slashes(location)
    return "://" in location and not location.startswith(("/", "./", "../", "~", "file:"))


def is_checkpoint(location: str) -> bool:
    """Whether a local folder looks like a checkpoint."""
    return os.path.isfile(f"{absolute(location)}/metadata")  # noqa: PTH113 - it never raises


def note_use(location: str) -> None:
    """Remember that a checkpoint was used, unless its URL holds a password.

    A failure to do so is ignored: it must not keep anyone from using the checkpoint.
    """
    with suppress(OSError, ValueError):
        public = take_credentials(location) == location
        if not (public if is_remote(location) else is_checkpoint(location)):
            return
        _write_list(recent_file(), _once([absolute(location), *read_recent()])[:_MAX_RECENT])
        _write_list(_forgotten_file(), _without(_read_list(_forgotten_file()), location))


def forget(location: str) -> None:
    """Leave a checkpoint out of the list until it is used again; nothing of it is changed."""
    _write_list(recent_file(), _without(read_recent(), location))
    _write_list(_forgotten_file(), _once([absolute(location), *_read_list(_forgotten_file())]))


def remember(location: str) -> None:
    """List a forgotten checkpoint again, even if it cannot be read."""
    _write_list(_forgotten_file(), _without(_read_list(_forgotten_file()), location))
    note_use(location)


def _without(locations: Iterable[str], location: str) -> list[str]:
    gone = one_spelling(absolute(location))
    return [place for place in locations if one_spelling(place) != gone]


def _once(locations: Iterable[str]) -> list[str]:
    """Each place once, as it is spelled first."""
    places: dict[str, str] = {}
    for location in locations:
        places.setdefault(one_spelling(location), location)
    return list(places.values())


def read_recent() -> list[str]:
    """The checkpoints used recently, the last one first."""
    return _read_list(recent_file())


def recent_file() -> Path:
    """The file that lists them."""
    import platformdirs

    return platformdirs.user_state_path("ebbtide") / "recent.json"


def _forgotten_file() -> Path:
    return recent_file().with_name("forgotten.json")


def _read_list(file: Path) -> list[str]:
    try:
        places = parse_json(file.read_text("utf-8"))
    except (OSError, ValueError):
        return []
    return [place for place in places if isinstance(place, str)] if isinstance(places, list) else []


def _write_list(file: Path, places: list[str]) -> None:
    if places != _read_list(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(places), private=True)
