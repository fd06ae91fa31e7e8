"""The names of the files in a checkpoint: Spark's, from 3.5 to 4.3, and those of our notes."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

from ebbtide.notes import note_path
from ebbtide.parsing import parse_id

EXACT, REPLAN = "exact", "replan"
"""The modes of a rewind: its first batch keeps its recorded offsets, or is planned again."""
OWNER, FORK, TIMELINE = "pipeline.json", "fork.json", "timeline.json"
"""Our notes: who runs the query, where a fork comes from, which run wrote which batches."""
JOURNAL, AUDIT, QUERY_IDS = "change.json", "audit.jsonl", "query-ids.json"
"""The unfinished rewind or undo, what was done, and the ids that the query has had."""
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

_VERSION = r"(0|[1-9][0-9]{0,17})"
_STATE = re.compile(_VERSION + r"(?:_([0-9A-Za-z-]+))?\.(delta|changelog|snapshot|zip)")
_STATE_LINES = re.compile(f"^({_STATE.pattern})$", re.MULTILINE)
_REST = r"(?:_[0-9A-Za-z-]+)?\.(?:delta|changelog|snapshot|zip)"
_VERSION_LINES = re.compile(rf"\n{_VERSION}{_REST}(?=\n|\Z)")
_ONLY_STATE = re.compile(rf"(?:\n(?:0|[1-9][0-9]{{0,17}}){_REST})*")
_HEAD = re.compile(r"\n([0-9]+)")
_LINES_WITH_SIDECARS = re.compile(
    r"^(\.)?(?:0|[1-9][0-9]{0,17})(?:_[0-9A-Za-z-]+)?\.(?:delta|changelog|snapshot|zip)"
    r"(?(1)(?:\.crc){1,2}|(?:\.crc)?)$",
    re.MULTILINE,
)
"""The names of a folder, a line each: half a million are read in one call for each folder."""
_KINDS = {"changelog": DELTA, "zip": SNAPSHOT, "delta": DELTA, "snapshot": SNAPSHOT}
SUFFIXES = {
    kind: tuple(suffix for suffix, its in _KINDS.items() if its == kind)
    for kind in (DELTA, SNAPSHOT)
}
"""How the names of each kind of file end."""


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


def parse_state_file(name: str) -> StateFile | None:
    """The version that a file in a store's folder holds; None if it is no such file.

    >>> parse_state_file("7.delta").version, parse_state_file("7_ab-1.zip").unique_id
    (7, 'ab-1')
    >>> parse_state_file("metadata")
    """
    match = _STATE.fullmatch(name)
    return match and StateFile(int(match[1]), match[2], _KINDS[match[3]], name)


def parse_state_files(names: Iterable[str]) -> list[StateFile]:
    """Those of many names that hold a version of a store, as `parse_state_file` reads each.

    >>> [file.version for file in parse_state_files(("7.delta", ".7.delta.crc", "8.zip"))]
    [7, 8]
    """
    if (lines := _as_lines(names)) is None:
        return [file for name in names if (file := parse_state_file(name)) is not None]
    return [
        StateFile(int(version), id_ or None, _KINDS[kind], name)
        for name, version, id_, kind in _STATE_LINES.findall(lines)
    ]


def state_names(names: tuple[str, ...]) -> frozenset[str]:
    """Those of many names that hold a version of a store; `name in …` is then all it takes.

    >>> sorted(state_names(("7_ab-1.zip", "7_ab-1.zip.crc", "7_a.b.zip")))
    ['7_ab-1.zip']
    """
    if _are_state_files(names):
        return frozenset(names)
    return frozenset(file.name for file in parse_state_files(names))


def list_versions(names: tuple[str, ...]) -> set[int]:
    """The versions that these files hold.

    >>> list_versions(("7_ab-1.zip", "7.delta", ".6.zip.crc"))
    {7}
    """
    if (lines := _as_lines(names)) is not None:
        pattern = _HEAD if _are_state_files(names) else _VERSION_LINES
        return set(map(int, {*pattern.findall(f"\n{lines}")}))
    return {file.version for file in parse_state_files(names)}


@lru_cache(maxsize=1024)
def _are_state_files(names: tuple[str, ...]) -> bool:
    """Whether each of these names holds a version of a store; said of a whole folder at once."""
    lines = _as_lines(names)
    return lines is not None and _ONLY_STATE.fullmatch(f"\n{lines}" if names else "") is not None


def _as_lines(names: Iterable[str]) -> str | None:
    """The names, a line each; None if that cannot be taken apart again."""
    lines = "\n".join(names := tuple(names))
    return lines if lines.count("\n") == max(0, len(names) - 1) else None


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
    kind = kind_of(directory)
    if kind == "any":
        return []
    if kind == "store":
        if _is_plain(names):
            return []
        if (lines := _as_lines(names)) is not None:
            names = tuple(filter(None, _LINES_WITH_SIDECARS.sub("", lines).split("\n")))
    return [
        name for name in names if not is_temporary(name) and not _is_known(kind, main_file(name))
    ]


def _is_plain(names: tuple[str, ...]) -> bool:
    """Whether a store has nothing but state files, each with Hadoop's checksum file or none.

    >>> _is_plain((".7.zip.crc", "7.zip")), _is_plain((".7.zip.crc", "8.zip"))
    (True, False)
    """
    first = bisect_left(names, "0")  # checksum files sort before, in the same order
    own, beside = names[first:], names[:first]
    # as many, so that no name with the end of a line in it passes for two
    if beside and len(beside) != len(own):
        return False
    if beside and "\n".join(beside) != "." + ".crc\n.".join(own) + ".crc":
        return False
    return _are_state_files(own)


def kind_of(directory: str) -> str:
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


@lru_cache(maxsize=16)
def _later_lines(version: int) -> re.Pattern[str]:
    """What finds the names that `names_above` returns; few of many, so the others cost little.

    A line is searched for by what precedes it, which is much faster than by `^`.
    """
    digits = str(version)
    numbers = [f"[1-9][0-9]{{{len(digits)},17}}"] if len(digits) < 18 else []
    for place, digit in enumerate(digits if len(digits) <= 18 else ""):  # no longer names are read
        if digit < "9":
            rest = len(digits) - place - 1
            numbers.append(f"{digits[:place]}[{int(digit) + 1}-9][0-9]{{{rest}}}")
    stem = (
        rf"(?:{'|'.join(numbers) or '(?!)'})(?:_[0-9A-Za-z-]+)?\.(?:delta|changelog|snapshot|zip)"
    )
    return re.compile(rf"\n({stem}(?:\.crc)?|\.{stem}(?:\.crc){{1,2}})(?=\n|\Z)")


@lru_cache(maxsize=1024)
def names_above(names: tuple[str, ...], version: int) -> tuple[str, ...]:
    """The names that belong to a later version of a store, checksum files included.

    >>> names_above(("3.delta", ".4.delta.crc", "4.delta", ".5.zip.1f.tmp"), 3)
    ('.4.delta.crc', '4.delta')
    """
    if (lines := _as_lines(names)) is not None:
        return tuple(_later_lines(version).findall(f"\n{lines}"))
    return tuple(
        name
        for name in names
        if (file := parse_state_file(main_file(name))) is not None and file.version > version
    )
