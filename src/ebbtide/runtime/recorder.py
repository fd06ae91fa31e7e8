"""Each batch's progress in, an entry of the checkpoint's history out."""

from __future__ import annotations

import hashlib
import inspect
import json
import platform
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from ebbtide import __version__
from ebbtide.checkpoint import Timeline
from ebbtide.connectors import connector_of, connector_of_offset
from ebbtide.connectors.spark import DIGEST, EARLIEST, LATEST, METRICS
from ebbtide.history.store import Entry, Output, write_entry
from ebbtide.pipeline import Pipeline
from ebbtide.storage import Folder
from ebbtide.times import EPOCH, in_utc, parse_time

_STATE = {
    "operator": "operatorName",
    "rows": "numRowsTotal",
    "updated": "numRowsUpdated",
    "removed": "numRowsRemoved",
    "dropped": "numRowsDroppedByWatermark",
    "bytes": "memoryUsedBytes",
}
_PLAIN = (str, bytes, int, float, tuple, type(None))
"""What is written the same way in every process."""
_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))


class Recorder:
    """Keeps the history of one running query."""

    def __init__(self, folder: Folder, pipeline: Pipeline) -> None:
        self._folder, self._pipeline = folder, pipeline

    @cached_property
    def _context(self) -> dict[str, Any]:
        """What is the same for all batches of a run."""
        return {
            "timeline": Timeline.read(self._folder).name,
            "versions": {
                "ebbtide": __version__,
                "python": platform.python_version(),
                "spark": version("pyspark"),
            },
            "code": fingerprint(self._pipeline),
        }

    def record(self, progress: Mapping[str, Any]) -> Entry:
        """Write and return what a batch did, from its progress as Spark's JSON has it."""
        entry = self.entry(progress)
        self.keep(entry)
        return entry

    def keep(self, entry: Entry) -> None:
        """Write what a batch did."""
        write_entry(self._folder, entry)

    def entry(self, progress: Mapping[str, Any]) -> Entry:
        """What a batch did."""
        observed = progress.get("observedMetrics", {}).get(METRICS, {})
        duration = progress["durationMs"]
        started = parse_time(progress["timestamp"])
        watermark = progress.get("eventTime", {}).get("watermark")
        return Entry(
            batch=progress["batchId"],
            started=in_utc(started),
            ended=in_utc(started + timedelta(milliseconds=duration["triggerExecution"])),
            sources=tuple(_offset(source["endOffset"]) for source in progress["sources"]),
            rows=progress["numInputRows"],
            broken=int(observed.get("broken", 0)),
            event_times=self._event_times(progress, observed),
            watermark=None if watermark == in_utc(EPOCH) else watermark,
            lag=lag_of(progress),
            durations=dict(duration),
            state=tuple(
                {ours: operator[theirs] for ours, theirs in _STATE.items()}
                for operator in progress["stateOperators"]
            ),
            output=output_of(progress) if _was_read(progress) else None,
            **self._context,
        )

    def _event_times(
        self, progress: Mapping[str, Any], observed: Mapping[str, Any]
    ) -> tuple[str, str] | None:
        source = self._pipeline.source
        read_whole = connector_of(source).source.was_read_whole(source, progress)
        if observed.get(EARLIEST) is None or not read_whole:
            return None
        return say_micros(observed[EARLIEST]), say_micros(observed[LATEST])


def _offset(offset: Any) -> str | None:
    return None if offset is None else json.dumps(offset, separators=(",", ":"))


def lag_of(progress: Mapping[str, Any]) -> int | None:
    """How many records the topics' ends were ahead of a batch's own when it was planned.

    A batch that was planned before the query started again does not say where its topic ended.

    >>> end = {"startOffset": None, "endOffset": {"t": {"0": 5, "1": 9}}}
    >>> lag_of({"sources": [{**end, "latestOffset": {"t": {"0": 15, "1": 9}}}]})
    10
    >>> lag_of({"sources": [{**end, "latestOffset": None}]})
    """
    behind: list[int] = []
    for source in progress["sources"]:
        latest, end = (_offset(source.get(name)) for name in ("latestOffset", "endOffset"))
        if end is None:
            continue
        ahead = connector_of_offset(end).source.count_lag(end, latest)
        if ahead is None:
            return None
        behind += [ahead] if ahead >= 0 else []
    return sum(behind) if behind else None


def output_of(progress: Mapping[str, Any]) -> Output | None:
    """What a batch wrote; None if its progress does not say.

    >>> output_of({"observedMetrics": {DIGEST: {"rows": 0}}}).rows
    0
    >>> output_of({"observedMetrics": {}}) is None
    True
    """
    observed = progress.get("observedMetrics", {}).get(DIGEST)
    if observed is None:
        return None
    rows, total = (int(observed.get(name) or 0) for name in ("rows", "sum"))
    return Output(rows, hashlib.sha256(f"{rows} {total}".encode()).hexdigest()[:32])


def _was_read(progress: Mapping[str, Any]) -> bool:
    """Whether a batch that had something to read was read: a sink may pass over it."""
    moved = any(source["startOffset"] != source["endOffset"] for source in progress["sources"])
    return progress["numInputRows"] > 0 or not moved


def say_micros(micros: int) -> str:
    """Microseconds since 1970 as ISO-8601 in UTC; beyond the calendar, its first or last moment.

    >>> say_micros(1_756_969_200_000_001)
    '2025-09-04T07:00:00.000001Z'
    """
    try:
        at = EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        at = (datetime.max if micros > 0 else datetime.min).replace(tzinfo=timezone.utc)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def fingerprint(pipeline: Pipeline) -> str:
    """Of a pipeline's code: the files that its functions are written in, and what it says itself.

    Options and settings, which may hold secrets, are no part of it.
    """
    found = hashlib.sha256(repr(_described(pipeline)).encode())
    functions: list[Any] = [pipeline.transform, *pipeline.sink.functions]
    for text in sorted({text for function in functions for text in _texts(function)}):
        found.update(text)
    return found.hexdigest()[:16]


def _described(pipeline: Pipeline) -> list[Any]:
    """What a pipeline says itself of its logic."""
    ends = [
        [type(end).__name__, *(getattr(end, name, None) for name in ("topic", "path", "key"))]
        for end in (pipeline.source, pipeline.sink)
    ]
    schema = getattr(pipeline.source, "schema", None)
    said = (pipeline.event_time, pipeline.watermark, pipeline.output_mode, pipeline.scope)
    return [ends, schema, said, pipeline.sessions]


def _texts(function: Any) -> Iterator[bytes]:
    """The files behind a function: its own, and those of the user's that they import."""
    while isinstance(function, partial):
        given = [*function.args, *sorted(function.keywords.items())]
        yield repr([value for value in given if isinstance(value, _PLAIN)]).encode()
        function = function.func
    function = inspect.unwrap(function)
    home = sys.modules.get(_module_name(function) or "")
    if home is None or _file(home) is None:  # typed into a shell: all that is left is what it does
        yield from _instructions(getattr(function, "__code__", None))
        return
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
    """What a compiled function does, with the names and the values in it."""
    if code is not None:
        values = [value for value in code.co_consts if isinstance(value, _PLAIN)]
        yield repr((code.co_code, code.co_names, values)).encode()
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                yield from _instructions(inner)


def _module_name(value: Any) -> str | None:
    name = None
    with suppress(Exception):  # whatever an object of the user's does when it is looked at
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
