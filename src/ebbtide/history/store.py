"""Store what each batch did in the checkpoint, and read it again.

The entries lie in `.ebbtide/history`, each under the next free number. A hundred of them are folded
into one segment: it is written whole and renamed before the small files go, and a small file whose
number a segment covers does not count. So nothing is lost or doubled, whatever is killed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial

from ebbtide.checkpoint import Checkpoint, Timeline, log_files
from ebbtide.connectors import Output, progress
from ebbtide.errors import EbbtideError, printable
from ebbtide.notes import INVALID, decode, note_path, remove_note, write_text
from ebbtide.parsing import parse_json
from ebbtide.storage import Folder

_FOLDER = "history"
HISTORY = note_path(_FOLDER)
FOLDED = 100
"""How many entries make a segment."""
SEGMENTS = 100
"""How many segments are kept."""
_REBUILT = f"{HISTORY}/rebuilt.jsonl"
_NAME = re.compile(r"(\d{12})(?:-(\d{12}))?\.jsonl")


@dataclass(frozen=True)
class Entry:
    """What one run of a batch did."""

    batch: int
    timeline: str
    """The name of the timeline's last part when the batch ran."""
    started: str
    """When this run of the batch began, by the wall clock in UTC; `ended` likewise."""
    ended: str
    sources: tuple[str | None, ...]
    """The end offset of each source, as JSON."""
    rows: int
    broken: int = 0
    event_times: tuple[str, str] | None = None
    """The earliest and the latest of its good records; None if there are none, or unknown."""
    watermark: str | None = None
    lag: int | None = None
    """How many records the topic's end was ahead of the batch's when it was planned, over all
    partitions; None for other sources than Kafka, or if Spark does not report it."""
    durations: Mapping[str, int] = field(default_factory=dict)
    """In milliseconds, under Spark's own names."""
    state: tuple[Mapping[str, int | str], ...] = ()
    """By operator: its name, total rows, rows updated, removed and dropped as late, and bytes."""
    output: Output | None = None
    """None if unknown: a function of the user's may read its batch in part or twice, and a sink
    that has seen the batch before does not read it at all."""
    late: progress.LateRecords | None = None
    """None if unknown, or if the query keeps no state and so drops none."""
    versions: Mapping[str, str] = field(default_factory=dict)
    code: str = ""
    """A fingerprint of the pipeline's code."""
    rebuilt: bool = False
    """Whether it was read from Kafka after the fact."""
    output_mode: str | None = None
    """That of the run; None if unknown."""

    def to_json(self) -> str:
        """The entry as one line."""
        return json.dumps(vars(self), default=vars, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> Entry:
        """The entry of a line, whichever version wrote it; unknown fields are ignored.

        >>> entry = Entry(3, "origin", "", "", ('{"visits":{"0":5}}',), rows=5)
        >>> Entry.from_json(entry.to_json()) == entry
        True
        """
        entry: Entry = decode(cls, parse_json(line), ignore_unknown=True)
        for offset in entry.sources:
            parse_json("null" if offset is None else offset)
        if any(
            isinstance(value, str) != (name == "operator")
            for operator in entry.state
            for name, value in operator.items()
        ):
            raise ValueError("an operator has a value of another type")
        return entry


@dataclass(frozen=True)
class History:
    """What the batches did, in the order in which they ended."""

    entries: tuple[Entry, ...]
    strange: tuple[str, ...] = ()
    """Files among them that are truncated or not ours."""

    def of(self, timeline: Timeline) -> Mapping[int, Entry]:
        """The entries of a timeline by batch; the last one if a batch ran more than once.

        >>> runs = [(0, "origin"), (1, "origin"), (2, "origin"), (1, "b1")]
        >>> history = History(tuple(Entry(b, who, "", "", (), 0) for b, who in runs))
        >>> rewound = Timeline().branch(1, "exact", "b1")
        >>> {batch: entry.timeline for batch, entry in history.of(rewound).items()}
        {0: 'origin', 1: 'b1'}
        """
        entries = {
            entry.batch: entry
            for entry in self.entries
            if entry.timeline == timeline.owner_of(entry.batch)
        }
        return dict(sorted(entries.items()))


def kept_entries(checkpoint: Checkpoint, history: History | None = None) -> Mapping[int, Entry]:
    """The entries of a checkpoint's current batches; pass `history` if it is read already."""
    history = history or read_history(checkpoint.folder)
    entries = history.of(Timeline.read(checkpoint.folder))
    return of_plans(entries, {id_: batch.offsets for id_, batch in checkpoint.logs.by_id.items()})


def of_plans(
    entries: Mapping[int, Entry], plans: Mapping[int, log_files.OffsetEntry]
) -> dict[int, Entry]:
    """The entries whose offsets are those of the batch's plan; one without a plan stays.

    Others are of a run that something else has undone.
    """
    return {
        batch: entry
        for batch, entry in entries.items()
        if batch not in plans or _plain(entry.sources) == _plain(plans[batch].sources)
    }


def _plain(offsets: Iterable[str | None]) -> list[str]:
    """Offsets without spaces, and with sorted keys.

    A source that a query reads twice has two lines in the log, and one in the progress.

    >>> _plain(['{"visits":{"0":5}}', '{"visits": {"0": 5}}'])
    ['{"visits": {"0": 5}}']
    """
    return list(dict.fromkeys(map(_plain_offset, offsets)))


def _plain_offset(offset: str | None) -> str:
    try:
        return json.dumps(parse_json("null" if offset is None else offset), sort_keys=True)
    except ValueError:  # not JSON, and therefore only the same as itself
        return str(offset)


def format_exactly(at: datetime) -> str:
    """A time as ISO-8601 in UTC, to the microsecond."""
    exact = at.astimezone(timezone.utc).isoformat(timespec="microseconds")
    return exact.replace("+00:00", "Z")


def write_entry(folder: Folder, entry: Entry) -> None:
    """Add an entry under the next number.

    Steps: **1** write the entry; once there are a hundred, **2** write a segment of them, **3**
    remove the small files that it covers, and **4** remove the oldest segments above the limit.
    The entry is kept after step 1: if a later step fails, the next entry tries it again.
    """
    singles, segments = _numbers(folder)
    covered = max((last for _, last in segments), default=-1)
    # 1
    number = max((covered, *singles)) + 1
    write_text(folder, f"{_FOLDER}/{_name(number)}", f"{entry.to_json()}\n")
    with suppress(OSError, EbbtideError):
        _fold(folder, [*singles, number], segments, covered)


def _fold(
    folder: Folder, singles: list[int], segments: list[tuple[int, int]], covered: int
) -> None:
    # 2
    loose = [single for single in singles if single > covered]
    if len(loose) >= FOLDED:
        covered = loose[-1]
        texts = folder.read_all([f"{HISTORY}/{_name(single)}" for single in loose])
        lines = (f"{text.rstrip()}\n" for text in texts.values())
        write_text(folder, f"{_FOLDER}/{_name(loose[0], covered)}", "".join(lines))
        segments.append((loose[0], covered))
    # 3
    gone = [f"{_FOLDER}/{_name(single)}" for single in singles if single <= covered]
    folder.map(partial(remove_note, folder), gone)
    # 4
    for segment in segments[:-SEGMENTS]:
        remove_note(folder, f"{_FOLDER}/{_name(*segment)}")


def write_rebuilt(folder: Folder, entries: Iterable[Entry]) -> None:
    """Add entries that were read from Kafka, in a file of their own: the stream may be writing.

    They come before all others, so that the entries of the stream itself win.
    """
    before, _ = _parse(folder.read(_REBUILT) or "")
    latest = {(entry.batch, entry.timeline): entry for entry in (*before, *entries)}
    newest = sorted(latest.values(), key=lambda entry: entry.batch)[-FOLDED * SEGMENTS :]
    lines = (f"{entry.to_json()}\n" for entry in newest)
    write_text(folder, f"{_FOLDER}/rebuilt.jsonl", "".join(lines))


Parsed = dict[str, tuple[object, tuple[Entry, ...], bool]]
"""By file: a stamp that changes when it is rewritten, its entries, and whether it is intact."""


def read_history(folder: Folder, parsed: Parsed | None = None) -> History:
    """The whole history; a file that is truncated or not ours is named, and the rest is read.

    Callers that read it repeatedly pass `parsed`, so that only new or changed files are read.
    """
    parsed = {} if parsed is None else parsed
    strange = [
        printable(path)
        for name in folder.names(HISTORY)
        if (path := f"{HISTORY}/{name}") != _REBUILT
        and not _NAME.fullmatch(name)
        and not name.startswith(".")  # left by a write that was killed
    ]
    paths = _read_files(folder, parsed)
    strange += [path for path in paths if not parsed[path][2]]
    for path in parsed.keys() - set(paths):
        del parsed[path]
    return History(tuple(entry for path in paths for entry in parsed[path][1]), tuple(strange))


def _read_files(folder: Folder, parsed: Parsed) -> list[str]:
    """The files that count, in order; listed again if the stream folds some meanwhile."""
    listed = _numbers(folder)
    while True:
        singles, segments = listed
        covered = max((last for _, last in segments), default=-1)
        names = [_name(*segment) for segment in segments]
        names += [_name(single) for single in singles if single > covered]
        paths = [f"{HISTORY}/{name}" for name in names]
        # before reading: what is written in between is read again the next time
        stamps = folder.stamps(HISTORY)
        unchanged = {path for path, one in parsed.items() if one[0] and stamps.get(path) == one[0]}
        texts = folder.read_all(path for path in (_REBUILT, *paths) if path not in unchanged)
        for path, text in texts.items():
            entries, whole = _parse(text)
            parsed[path] = (stamps.get(path), tuple(entries), whole)
        there = unchanged | texts.keys()
        if there >= set(paths) or (now := _numbers(folder)) == listed:
            return [path for path in (_REBUILT, *paths) if path in there]
        listed = now


def _parse(text: str) -> tuple[list[Entry], bool]:
    """The entries of a file, and whether it is intact."""
    entries, whole = [], True
    for line in text.splitlines():
        try:
            entries.append(Entry.from_json(line))
        except INVALID:  # noqa: PERF203
            whole = False
    return entries, whole


def _numbers(folder: Folder) -> tuple[list[int], list[tuple[int, int]]]:
    """The numbers of the small files and of the segments, ascending."""
    matches = [match for name in folder.names(HISTORY) if (match := _NAME.fullmatch(name))]
    singles = [int(match[1]) for match in matches if match[2] is None]
    return singles, [(int(match[1]), int(match[2])) for match in matches if match[2]]


def _name(first: int, last: int | None = None) -> str:
    return f"{first:012d}.jsonl" if last is None else f"{first:012d}-{last:012d}.jsonl"
