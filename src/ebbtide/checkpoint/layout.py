"""The names of the files in a checkpoint: Spark's, from 3.5 to 4.3, and those of our notes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Annotated

from ebbtide.notes import note_path
from ebbtide.parsing import parse_id

EXACT, REPLAN = "exact", "replan"
"""The modes of a rewind: its first batch keeps its recorded offsets, or is planned again."""
OWNER, FORK, TIMELINE = "pipeline.json", "fork.json", "timeline.json"
"""Our notes: who runs the query, where a fork comes from, which run wrote which batches."""
JOURNAL, AUDIT, QUERY_IDS = "change.json", "audit.jsonl", "query-ids.json"
"""The unfinished rewind or undo, what was done, and the ids that the query has had."""
MODE = "mode.json"
"""In which mode the query ran last, and since which batch."""
SINKS = "sinks.json"
"""Where the query writes, as somebody named it."""
BACKUPS = note_path("backups")
BARRIER = "ebbtide: "
"""How the one line of a barrier begins: a log file that Spark refuses to read."""
PARTS = ("metadata", "offsets", "commits", "sources", "state")
"""What Spark puts into a checkpoint."""
SHARED = ("SSTs", "logs")
"""Files of a RocksDB store that several versions share; never moved, never removed."""
SNAPSHOT, DELTA = "snapshot", "delta"

_STATE = re.compile(r"(0|[1-9][0-9]{0,17})(?:_([0-9A-Za-z-]+))?\.(delta|changelog|snapshot|zip)")
_KINDS = {"delta": DELTA, "changelog": DELTA, "snapshot": SNAPSHOT, "zip": SNAPSHOT}


def _require_mode(mode: str) -> str:
    if mode not in (EXACT, REPLAN):
        raise ValueError(f"{mode!r} is no mode of a rewind")
    return mode


Mode = Annotated[str, _require_mode]
"""One of the modes of a rewind, as a note or a saved plan names it."""


@dataclass(frozen=True)
class StateFile:
    """One version of one store: a whole (`snapshot`) or the change from the version before."""

    version: int
    unique_id: str | None
    kind: str
    name: str


@cache
def parse_state_file(name: str) -> StateFile | None:
    """The version that a file in a store's folder holds; None if it is no such file.

    >>> parse_state_file("7.delta").version, parse_state_file("7_ab-1.zip").unique_id
    (7, 'ab-1')
    >>> parse_state_file("metadata")
    """
    match = _STATE.fullmatch(name)
    return match and StateFile(int(match[1]), match[2], _KINDS[match[3]], name)


@cache
def main_file(name: str) -> str:
    """The file that a checksum file belongs to, Hadoop's or Spark's; else the name itself.

    >>> main_file(".7.delta.crc"), main_file("7.delta.crc"), main_file(".7.delta.crc.crc")
    ('7.delta', '7.delta', '7.delta')
    """
    if name.startswith(".") and name.endswith(".crc"):
        name = name[1:-4]
    return name[:-4] if name.endswith(".crc") else name


def sidecars(name: str) -> tuple[str, ...]:
    """The checksum files that a file may have beside it.

    >>> sidecars("7.zip")
    ('.7.zip.crc', '7.zip.crc', '.7.zip.crc.crc')
    """
    return (f".{name}.crc", f"{name}.crc", f".{name}.crc.crc")


@cache
def is_temporary(name: str) -> bool:
    """Whether Spark or Hadoop was still writing it.

    >>> is_temporary(".7.delta.4e1c.TID3.tmp"), is_temporary("..7.delta.4e1c.tmp.crc")
    (True, True)
    """
    main = main_file(name)
    return main.startswith(".") and main.endswith(".tmp")


def unknown_files(directory: str, names: tuple[str, ...]) -> list[str]:
    """The names in one folder of a checkpoint that no Spark from 3.5 to 4.3 writes there.

    >>> unknown_files("offsets", ("0", ".0.crc", "0.bak"))
    ['0.bak']
    >>> unknown_files("state/0/1", ("3.delta", "3.parquet"))
    ['3.parquet']
    """
    return list(_unknown(_kind_of(directory), names))


# Many partitions hold the same names: each such list is looked at once.
@lru_cache(maxsize=1024)
def _unknown(kind: str, names: tuple[str, ...]) -> tuple[str, ...]:
    if kind == "any":
        return ()
    return tuple(
        name for name in names if not is_temporary(name) and not _is_known(kind, main_file(name))
    )


def _kind_of(directory: str) -> str:
    """What Spark keeps in a folder: `root`, `log`, `store`, `any` (its own affair) or nothing."""
    top, *inner = directory.split("/")
    if not inner:
        return {"": "root", "offsets": "log", "commits": "log"}.get(top, "nothing")
    if top == "sources":
        return "any"  # we never touch it
    if top != "state" or parse_id(inner[0]) is None:
        return "nothing"
    if "_metadata" in inner or "_stateSchema" in inner or inner[-1] in SHARED:
        return "any"
    # state/<operator>/<partition>[/<store>]
    in_store = 2 <= len(inner) <= 3 and parse_id(inner[1]) is not None
    return "store" if in_store else "nothing"


def _is_known(kind: str, name: str) -> bool:
    if kind == "store":
        return parse_state_file(name) is not None
    return parse_id(name) is not None if kind == "log" else (kind, name) == ("root", "metadata")


@lru_cache(maxsize=1024)
def names_above(names: tuple[str, ...], version: int) -> tuple[str, ...]:
    """The names that belong to a later version of a store, checksum files included.

    >>> names_above(("3.delta", ".4.delta.crc", "4.delta", ".5.zip.1f.tmp"), 3)
    ('.4.delta.crc', '4.delta')
    """
    return tuple(
        name
        for name in names
        if (file := parse_state_file(main_file(name))) is not None and file.version > version
    )
