"""Record in the checkpoint what each batch of a running query did."""

from __future__ import annotations

import hashlib
import inspect
import json
import platform
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from ebbtide.checkpoint import Timeline, log_files
from ebbtide.connectors import progress as batch_progress
from ebbtide.history.store import FOLDED, SEGMENTS, Entry, format_exactly, write_entry
from ebbtide.pipeline import Pipeline
from ebbtide.storage import Folder
from ebbtide.times import EPOCH, in_utc, parse_time
from ebbtide.version import __version__

_STATE = {
    "operator": "operatorName",
    "rows": "numRowsTotal",
    "updated": "numRowsUpdated",
    "removed": "numRowsRemoved",
    "dropped": "numRowsDroppedByWatermark",
    "bytes": "memoryUsedBytes",
}
_PLAIN = (str, bytes, int, float, tuple, type(None))
"""Types whose values have the same text in every process."""
_PENDING_BYTES = 32 * 1024 * 1024
"""How much may wait for a store that fails; of more, the oldest is left out."""
_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))


class Recorder:
    """Writes the history of one running query.

    `code` returns the fingerprint of the query's code, and `has_one_watermark` whether Spark's own
    statistics of event times are of all records: with several watermarks, they are of one.
    """

    def __init__(
        self,
        folder: Folder,
        code: Callable[[], str],
        has_one_watermark: Callable[[], bool] = lambda: False,
        output_mode: str | None = None,
    ) -> None:
        self._folder, self._code, self._output_mode = folder, code, output_mode
        self._ask_watermark = has_one_watermark
        self._pending = deque[Entry]()
        self._pending_bytes = 0

    @classmethod
    def for_pipeline(cls, folder: Folder, pipeline: Pipeline) -> Recorder:
        """Of a query that runs a pipeline."""
        return cls(folder, partial(fingerprint, pipeline), output_mode=pipeline.output_mode)

    @classmethod
    def for_program(
        cls, folder: Folder, has_one_watermark: Callable[[], bool], output_mode: str | None = None
    ) -> Recorder:
        """Of a query that the running program has started itself."""
        return cls(folder, fingerprint_program, has_one_watermark, output_mode)

    @classmethod
    def for_function(
        cls,
        folder: Folder,
        function: Callable[..., Any],
        has_one_watermark: Callable[[], bool],
        output_mode: str | None,
    ) -> Recorder:
        """Of a query that a function of the user's builds."""
        code = partial(fingerprint_function, function)
        return cls(folder, code, has_one_watermark, output_mode)

    @cached_property
    def _has_one_watermark(self) -> bool:
        return self._ask_watermark()

    @cached_property
    def _context(self) -> dict[str, Any]:
        """The fields that are the same for all batches of a run."""
        return {
            "timeline": Timeline.read(self._folder).name,
            "versions": {
                "ebbtide": __version__,
                "python": platform.python_version(),
                "spark": version("pyspark"),
            },
            "code": self._code(),
            "output_mode": self._output_mode,
        }

    def record(
        self, progress: Mapping[str, Any], late: batch_progress.LateRecords | None = None
    ) -> Entry:
        """Write and return the entry of a batch."""
        entry = self.entry(progress, late)
        self.keep(entry)
        return entry

    def keep(self, entry: Entry) -> None:
        """Write an entry to the checkpoint; if that fails, a later call does."""
        self._pending.append(entry)
        self._pending_bytes += _measure(entry)
        while len(self._pending) > FOLDED * SEGMENTS or self._pending_bytes > _PENDING_BYTES:
            self._pending_bytes -= _measure(self._pending.popleft())
        self.catch_up()

    def catch_up(self) -> None:
        """Write the entries that could not be written before."""
        while self._pending:
            write_entry(self._folder, self._pending[0])
            self._pending_bytes -= _measure(self._pending.popleft())

    def entry(
        self, progress: Mapping[str, Any], late: batch_progress.LateRecords | None = None
    ) -> Entry:
        """What a batch did, from its progress as Spark's JSON has it."""
        observed = progress.get("observedMetrics", {}).get(batch_progress.METRICS, {})
        duration = progress["durationMs"]
        started = parse_time(progress["timestamp"])
        watermark = progress.get("eventTime", {}).get("watermark")
        return Entry(
            batch=progress["batchId"],
            started=in_utc(started),
            ended=in_utc(started + timedelta(milliseconds=duration["triggerExecution"])),
            sources=tuple(_to_json(source["endOffset"]) for source in progress["sources"]),
            rows=progress["numInputRows"],
            broken=int(observed.get("broken", 0)),
            event_times=self._event_times(progress, observed),
            watermark=None if watermark == in_utc(EPOCH) else watermark,
            lag=read_lag(progress),
            durations=dict(duration),
            state=tuple(
                {ours: operator[theirs] for ours, theirs in _STATE.items()}
                for operator in progress["stateOperators"]
            ),
            output=batch_progress.read_output(progress) if _was_read(progress) else None,
            late=late,
            **self._context,
        )

    def _event_times(
        self, progress: Mapping[str, Any], observed: Mapping[str, Any]
    ) -> tuple[str, str] | None:
        times = observed.get(batch_progress.EARLIEST), observed.get(batch_progress.LATEST)
        if times[0] is None or times[1] is None:
            noted = None if observed else _watermarked_times(progress)
            return noted if noted and self._has_one_watermark else None
        if not batch_progress.was_read_whole(progress):
            return None
        return format_micros(times[0]), format_micros(times[1])


def _watermarked_times(progress: Mapping[str, Any]) -> tuple[str, str] | None:
    """The event times that Spark itself noted, where a query has a watermark.

    Spark cuts them to milliseconds, and of several watermarks it notes one.

    >>> times = {"min": "2025-09-04T07:00:00.000Z", "max": "2025-09-04T07:02:00.000Z"}
    >>> _watermarked_times({"eventTime": times, "sources": [{}]})
    ('2025-09-04T07:00:00.000000Z', '2025-09-04T07:02:00.000999Z')
    """
    times = progress.get("eventTime", {})
    if not times.keys() >= {"min", "max"} or len(progress["sources"]) != 1:
        return None
    latest = parse_time(times["max"]) + timedelta(microseconds=999)
    return format_exactly(parse_time(times["min"])), format_exactly(latest)


def _measure(entry: Entry) -> int:
    """About how much memory an entry takes: offsets can be long."""
    return 2000 + sum(len(offset or "") for offset in entry.sources) + 1000 * len(entry.state)


def _to_json(offset: Any) -> str | None:
    return None if offset is None else json.dumps(offset, separators=(",", ":"))


def read_lag(progress: Mapping[str, Any]) -> int | None:
    """How many records the sources' ends were ahead of a batch's own when it was planned.

    Only sources that count records by partition have a lag. A batch that was planned before the
    query was restarted does not say where its topic ended.

    >>> end = {"startOffset": None, "endOffset": {"t": {"0": 5, "1": 9}}}
    >>> read_lag({"sources": [{**end, "latestOffset": {"t": {"0": 15, "1": 9}}}]})
    10
    >>> read_lag({"sources": [{**end, "latestOffset": None}]})
    """
    lags: list[int] = []
    for source in progress["sources"]:
        ends = log_files.to_positions(source["endOffset"])
        if ends is None:
            continue
        if (latest := log_files.to_positions(source.get("latestOffset"))) is None:
            return None
        lags += (max(0, offset - ends.get(place, 0)) for place, offset in latest.items())
    return sum(lags) if lags else None


def _was_read(progress: Mapping[str, Any]) -> bool:
    """Whether a batch that had something to read was read: a sink may skip it."""
    moved = any(source["startOffset"] != source["endOffset"] for source in progress["sources"])
    return progress["numInputRows"] > 0 or not moved


def format_micros(micros: int) -> str:
    """Microseconds since 1970 as ISO-8601 in UTC; beyond the calendar, its first or last moment.

    >>> format_micros(1_756_969_200_000_001)
    '2025-09-04T07:00:00.000001Z'
    """
    try:
        at = EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        at = (datetime.max if micros > 0 else datetime.min).replace(tzinfo=timezone.utc)
    return format_exactly(at)


def fingerprint(pipeline: Pipeline) -> str:
    """A digest of a pipeline's code: its declaration, and the files that define its functions.

    Options and settings are left out, as they may hold secrets.
    """
    digest = hashlib.sha256(repr(_described(pipeline)).encode())
    functions = filter(None, (pipeline.transform, getattr(pipeline.sink, "write", None)))
    for text in sorted({text for function in functions for text in _texts(function)}):
        digest.update(text)
    return digest.hexdigest()[:16]


def fingerprint_program() -> str:
    """A digest of the program that runs: its file, and those of the user that it imports."""
    main = sys.modules.get("__main__")
    return _digest(_files(main)) if main else _digest(())


def fingerprint_function(function: Callable[..., Any]) -> str:
    """A digest of the files behind a function."""
    return _digest(_texts(function))


def _digest(texts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for text in sorted(set(texts)):
        digest.update(text)
    return digest.hexdigest()[:16]


def _described(pipeline: Pipeline) -> list[Any]:
    """The part of a pipeline's declaration that decides what it computes."""
    ends = [
        [type(end).__name__, *(getattr(end, name, None) for name in ("topic", "path", "key"))]
        for end in (pipeline.source, pipeline.sink)
    ]
    schema = getattr(pipeline.source, "schema", None)
    times = (pipeline.event_time, pipeline.watermark, pipeline.output_mode, pipeline.scope)
    return [ends, schema, times, pipeline.sessions]


def _texts(function: Any) -> Iterator[bytes]:
    """The files behind a function: its own, and those of the user that it imports."""
    while isinstance(function, partial):
        given = [*function.args, *sorted(function.keywords.items())]
        yield repr([value for value in given if isinstance(value, _PLAIN)]).encode()
        function = function.func
    function = inspect.unwrap(function)
    home = sys.modules.get(_module_name(function) or "")
    if home is None or _file(home) is None:  # typed into a shell: only its instructions are left
        yield from _instructions(getattr(function, "__code__", None))
        return
    yield from _files(home)


def _files(home: ModuleType) -> Iterator[bytes]:
    """The file of a module, and those of the user that it imports."""
    modules = [home]
    for module in modules:
        if (file := _file(module)) is not None:
            yield file.read_bytes()
        for value in list(vars(module).values()):
            name = value.__name__ if isinstance(value, ModuleType) else _module_name(value)
            used = sys.modules.get(name or "")
            if used is not None and used not in modules and _is_users(used):
                modules.append(used)


def _instructions(code: CodeType | None) -> Iterator[bytes]:
    """The instructions of a compiled function, with its names and values."""
    if code is not None:
        values = [value for value in code.co_consts if isinstance(value, _PLAIN)]
        yield repr((code.co_code, code.co_names, values)).encode()
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                yield from _instructions(inner)


def _module_name(value: Any) -> str | None:
    name = None
    with suppress(Exception):  # an object of the user may raise anything when it is inspected
        name = getattr(value, "__module__", None)
    return name if isinstance(name, str) else None


def _file(module: ModuleType) -> Path | None:
    name = getattr(module, "__file__", None)
    return Path(name) if name and Path(name).suffix == ".py" and Path(name).is_file() else None


def _is_users(module: ModuleType) -> bool:
    file = _file(module)
    if file is None or module.__name__.split(".")[0] == "ebbtide":
        return False
    return not str(file.resolve()).startswith(_INSTALLED)
