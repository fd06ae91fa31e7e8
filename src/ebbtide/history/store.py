"""What each batch did in, and kept in the checkpoint, out again: one small file a batch.

The entries lie in `.ebbtide/history`, each under the next free number. A hundred of them are folded
into one segment: it is written whole and renamed before the small files go, and a small file whose
number a segment covers does not count. So nothing is lost or doubled, whatever is killed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ebbtide.checkpoint import Checkpoint, Timeline, log_files
from ebbtide.notes import note_path, remove_note, write_text
from ebbtide.storage import Folder

_FOLDER = "history"
HISTORY = note_path(_FOLDER)
FOLDED = 100
"""So many entries are one segment."""
SEGMENTS = 100
"""So many segments are kept."""
_REBUILT = f"{HISTORY}/rebuilt.jsonl"
_NAME = re.compile(r"(\d{12})(?:-(\d{12}))?\.jsonl")


@dataclass(frozen=True)
class Output:
    """What a batch wrote: how many rows, and a digest that does not depend on their order."""

    rows: int
    digest: str


@dataclass(frozen=True)
class Entry:
    """What one run of a batch did."""

    batch: int
    timeline: str
    """The name of the last part of the checkpoint's timeline when it ran."""
    started: str
    """By the wall clock, in UTC, as is `ended`: of this very run of the batch."""
    ended: str
    sources: tuple[str | None, ...]
    """Up to where it read, one offset a source, as JSON text."""
    rows: int
    broken: int = 0
    event_times: tuple[str, str] | None = None
    """The earliest and the latest of its good records; None if there is none, or not known."""
    watermark: str | None = None
    lag: int | None = None
    """How many records the topic's end was ahead of the batch's when it was planned, all Kafka
    partitions together; None for other sources, or if Spark does not say."""
    durations: Mapping[str, int] = field(default_factory=dict)
    """In milliseconds, under Spark's own names."""
    state: tuple[Mapping[str, int | str], ...] = ()
    """By operator: its name, rows in all, updated, removed, dropped as late, and bytes."""
    output: Output | None = None
    """None where it cannot be seen: a function of the user's may read its batch in part or twice,
    and a sink that has seen the batch before does not read it at all."""
    versions: Mapping[str, str] = field(default_factory=dict)
    code: str = ""
    """A fingerprint of the pipeline's code."""
    rebuilt: bool = False
    """Whether it was read from Kafka after the fact."""

    def to_json(self) -> str:
        """As one line."""
        return json.dumps(vars(self), default=vars, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> Entry:
        """From its line, whichever version wrote it: what only another one knows is left out.

        >>> entry = Entry(3, "origin", "", "", ('{"visits":{"0":5}}',), rows=5)
        >>> Entry.from_json(entry.to_json()) == entry
        True
        """
        found: dict[str, Any] = json.loads(line)
        known = {name: found[name] for name in cls.__dataclass_fields__ if name in found}
        times, output = found.get("event_times"), found.get("output")
        entry = cls(
            **known
            | {
                "sources": tuple(found["sources"]),
                "event_times": None if times is None else tuple(times),
                "state": tuple(dict(operator) for operator in found.get("state", ())),
                "output": None if output is None else Output(**output),
            }
        )
        if not entry.is_whole():
            raise ValueError("an entry of a history has a value of another type")
        return entry

    def is_whole(self) -> bool:
        """Whether each value is what it should be: whoever shows an entry relies on it."""
        output, times = self.output or Output(0, ""), self.event_times or ("", "")
        texts = [self.timeline, self.started, self.ended, self.code, *times, output.digest]
        texts += [] if self.watermark is None else [self.watermark]
        counts: list[object] = [self.batch, self.rows, self.broken, output.rows]
        counts += [] if self.lag is None else [self.lag]
        for operator in self.state:
            counts += [value for name, value in operator.items() if name != "operator"]
        return (
            len(times) == 2
            and all(isinstance(text, str) for text in (*texts, *self.versions.values()))
            and all(_is_count(value) for value in (*counts, *self.durations.values()))
            and all(isinstance(one.get("operator", ""), str) for one in self.state)
            and all(source is None or _is_json(source) for source in self.sources)
        )


def _is_count(value: object) -> bool:
    return type(value) is int and abs(value) < 1 << 63


def _is_json(value: object) -> bool:
    if isinstance(value, str):
        json.loads(value)  # raises what `from_json` raises
    return isinstance(value, str)


@dataclass(frozen=True)
class History:
    """What the batches did, in the order in which they ended."""

    entries: tuple[Entry, ...]
    strange: tuple[str, ...] = ()
    """Files among them that are cut or not ours."""

    def of(self, timeline: Timeline) -> Mapping[int, Entry]:
        """The entry of each batch as a timeline ran it; the last, if it ran more than once.

        >>> runs = [(0, "origin"), (1, "origin"), (2, "origin"), (1, "b1")]
        >>> history = History(tuple(Entry(b, who, "", "", (), 0) for b, who in runs))
        >>> rewound = Timeline().branch(1, "exact", "b1")
        >>> {batch: entry.timeline for batch, entry in history.of(rewound).items()}
        {0: 'origin', 1: 'b1'}
        """
        found = {
            entry.batch: entry
            for entry in self.entries
            if entry.timeline == timeline.owner_of(entry.batch)
        }
        return dict(sorted(found.items()))


def kept_entries(checkpoint: Checkpoint, history: History | None = None) -> Mapping[int, Entry]:
    """The entry of each batch of a checkpoint as it is now; `history` if it is read already."""
    history = history or read_history(checkpoint.folder)
    found = history.of(Timeline.read(checkpoint.folder))
    return of_plans(found, {id_: batch.offsets for id_, batch in checkpoint.logs.by_id.items()})


def of_plans(
    entries: Mapping[int, Entry], plans: Mapping[int, log_files.OffsetEntry]
) -> dict[int, Entry]:
    """The entries without those whose offsets are not the ones that are planned.

    Such an entry is of a run that something else has undone; one without a plan stays.
    """
    return {
        batch: entry
        for batch, entry in entries.items()
        if batch not in plans or _plain(entry.sources) == _plain(plans[batch].sources)
    }


def _plain(offsets: Iterable[str | None]) -> list[str]:
    """Offsets without their blanks and the order of their keys.

    A source that a query reads in two places has two lines in the log, and one in the progress.

    >>> _plain(['{"visits":{"0":5}}', '{"visits": {"0": 5}}'])
    ['{"visits": {"0": 5}}']
    """
    found = (json.loads("null" if offset is None else offset) for offset in offsets)
    return list(dict.fromkeys(json.dumps(offset, sort_keys=True) for offset in found))


def write_entry(folder: Folder, entry: Entry) -> None:
    """Add an entry under the number that comes next.

    Steps: **1** the entry; and when there are a hundred: **2** a segment of them; **3** the small
    files that a segment covers go; **4** the segments that are too many go.
    """
    singles, segments = _numbers(folder)
    covered = max((last for _, last in segments), default=-1)
    # 1
    number = max((covered, *singles)) + 1
    write_text(folder, f"{_FOLDER}/{_name(number)}", f"{entry.to_json()}\n")
    # 2
    loose = [single for single in (*singles, number) if single > covered]
    if len(loose) >= FOLDED:
        covered = number
        texts = folder.read_all([f"{HISTORY}/{_name(single)}" for single in loose])
        lines = (f"{text.rstrip()}\n" for text in texts.values())
        write_text(folder, f"{_FOLDER}/{_name(loose[0], covered)}", "".join(lines))
        segments.append((loose[0], covered))
    # 3
    gone = [f"{_FOLDER}/{_name(single)}" for single in (*singles, number) if single <= covered]
    folder.map(partial(remove_note, folder), gone)
    # 4
    for segment in segments[:-SEGMENTS]:
        remove_note(folder, f"{_FOLDER}/{_name(*segment)}")


def write_rebuilt(folder: Folder, entries: Iterable[Entry]) -> None:
    """Add entries that were read from Kafka: in a file of their own, as the stream may be writing.

    They go before all others, so that what the stream itself saw counts.
    """
    found, _ = _parse(folder.read(_REBUILT) or "")
    latest = {(entry.batch, entry.timeline): entry for entry in (*found, *entries)}
    kept = sorted(latest.values(), key=lambda entry: entry.batch)[-FOLDED * SEGMENTS :]
    write_text(
        folder, f"{_FOLDER}/rebuilt.jsonl", "".join(f"{entry.to_json()}\n" for entry in kept)
    )


Parsed = dict[str, tuple[object, tuple[Entry, ...], bool]]
"""By file: what changes when it is written anew, its entries, and whether all could be read."""


def read_history(folder: Folder, parsed: Parsed | None = None) -> History:
    """All that is kept; a file that is cut or not ours is named, and the rest is read.

    Whoever asks again and again keeps `parsed`: then only files that are new or changed are read.
    """
    parsed = {} if parsed is None else parsed
    strange = [
        path
        for name in folder.names(HISTORY)
        if (path := f"{HISTORY}/{name}") != _REBUILT
        and not _NAME.fullmatch(name)
        and not name.startswith(".")  # of a write that was killed
    ]
    paths = _read_files(folder, parsed)
    strange += [path for path in paths if not parsed[path][2]]
    for path in parsed.keys() - set(paths):
        del parsed[path]
    return History(tuple(entry for path in paths for entry in parsed[path][1]), tuple(strange))


def _read_files(folder: Folder, parsed: Parsed) -> list[str]:
    """All files that count, in order; what the stream folds meanwhile is looked for again."""
    listed = _numbers(folder)
    while True:
        singles, segments = listed
        covered = max((last for _, last in segments), default=-1)
        names = [_name(*segment) for segment in segments]
        names += [_name(single) for single in singles if single > covered]
        paths = [f"{HISTORY}/{name}" for name in names]
        # taken before the reading: what is written in between is read again the next time
        stamps = folder.stamps(HISTORY)
        known = {path for path, one in parsed.items() if one[0] and stamps.get(path) == one[0]}
        texts = folder.read_all(path for path in (_REBUILT, *paths) if path not in known)
        for path, text in texts.items():
            entries, whole = _parse(text)
            parsed[path] = (stamps.get(path), tuple(entries), whole)
        there = known | texts.keys()
        if there >= set(paths) or (now := _numbers(folder)) == listed:
            return [path for path in (_REBUILT, *paths) if path in there]
        listed = now


def _parse(text: str) -> tuple[list[Entry], bool]:
    """The entries of a file, and whether all of it could be read."""
    entries, whole = [], True
    for line in text.splitlines():
        try:
            entries.append(Entry.from_json(line))
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):  # noqa: PERF203
            whole = False
    return entries, whole


def _numbers(folder: Folder) -> tuple[list[int], list[tuple[int, int]]]:
    """The small files and the segments that are there, ascending."""
    found = [match for name in folder.names(HISTORY) if (match := _NAME.fullmatch(name))]
    singles = [int(match[1]) for match in found if match[2] is None]
    return singles, [(int(match[1]), int(match[2])) for match in found if match[2]]


def _name(first: int, last: int | None = None) -> str:
    return f"{first:012d}.jsonl" if last is None else f"{first:012d}-{last:012d}.jsonl"
