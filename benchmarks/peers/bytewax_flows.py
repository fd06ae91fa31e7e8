"""The works in Bytewax, with recovery: one process a partition, as its threads share one lock.

`bytewax_flows.py WORK SERVERS TOPIC OUT FOLDER`. What is tuned: large fetches, 10,000 records a
call, orjson, JSON decoded and windows counted a batch at a time.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

_PLACES = ("BENCH_WORK", "BENCH_SERVERS", "BENCH_TOPIC", "BENCH_OUT")
_GAP = timedelta(minutes=10)
_LATE_WINDOWS = 2
"""A watermark of twenty minutes, in windows."""
_FETCH = {
    "fetch.message.max.bytes": str(16 << 20),
    "queued.min.messages": "500000",
    "check.crcs": "false",
}


def build() -> Any:
    """The flow of a work."""
    import bytewax.operators as op
    from bytewax.connectors.kafka import KafkaSink, KafkaSource
    from bytewax.dataflow import Dataflow

    work, servers, topic, out = (os.environ[name] for name in _PLACES)
    made = Dataflow(work)
    source = KafkaSource([servers], [topic], tail=False, batch_size=10_000, add_config=_FETCH)
    records = op.input("records", made, source)
    reports = (_windows if work == "windows" else _visits)(op, records)
    op.output("out", reports, KafkaSink([servers], out, add_config={"linger.ms": "20"}))
    return made


def _windows(op: Any, records: Any) -> Any:
    """Counts by partition and window: each partition has event times of its own."""
    import orjson
    from bytewax.connectors.kafka import KafkaSinkMessage
    from bytewax.operators import StatefulBatchLogic

    loads, parse = orjson.loads, datetime.fromisoformat
    epoch = datetime(2025, 1, 1, tzinfo=timezone.utc)

    class Windows(StatefulBatchLogic):  # type: ignore[misc]
        """The open windows of a partition; a late event finds none and is dropped.

        `count_window` asks Python several times for each event, and takes six times as long.
        """

        def __init__(self, latest: int, counts: dict[int, int]) -> None:
            self.latest, self.counts = latest, counts

        def on_batch(self, values: list[int]) -> tuple[list[tuple[int, int]], bool]:
            closed = self.latest - _LATE_WINDOWS
            new = {window: n for window, n in Counter(values).items() if window >= closed}
            for window, n in new.items():
                self.counts[window] = self.counts.get(window, 0) + n
            self.latest = max([self.latest, *new])
            changed = [(window, self.counts[window]) for window in new]
            for window in [each for each in self.counts if each < self.latest - _LATE_WINDOWS]:
                del self.counts[window]
            return changed, False

        def snapshot(self) -> tuple[int, dict[int, int]]:
            return self.latest, dict(self.counts)

    def windows(messages: list[Any]) -> list[tuple[str, int]]:
        return [
            (
                str(each.partition),
                (parse(loads(each.value)["event_time"].replace("Z", "+00:00")) - epoch) // _GAP,
            )
            for each in messages
        ]

    def report(item: tuple[str, tuple[int, int]]) -> Any:
        part, (window, count) = item
        start = (epoch + window * _GAP).isoformat()
        return KafkaSinkMessage(None, orjson.dumps({"start": start, "count": count, "part": part}))

    timed = op.flat_map_batch("windows", records, windows)
    counts = op.stateful_batch("count", timed, lambda state: Windows(*(state or (0, {}))))
    return op.map("report", counts, report)


def _visits(op: Any, records: Any) -> Any:
    """The pages of each visit with each event, and when it has ended."""
    import orjson
    from bytewax.connectors.kafka import KafkaSinkMessage
    from bytewax.operators import StatefulBatchLogic

    class Visit(StatefulBatchLogic):  # type: ignore[misc]
        """A visit ends with the input: event time has no timers outside of windows."""

        def __init__(self, pages: int) -> None:
            self.pages = pages

        def on_batch(self, values: list[Any]) -> tuple[list[tuple[int, bool]], bool]:
            first = self.pages + 1
            self.pages += len(values)
            return [(pages, False) for pages in range(first, self.pages + 1)], False

        def on_eof(self) -> tuple[list[tuple[int, bool]], bool]:
            return [(self.pages, True)], True

        def snapshot(self) -> int:
            return self.pages

    def keyed(messages: list[Any]) -> list[tuple[str, None]]:
        return [(str(orjson.loads(each.value)["visit_id"]), None) for each in messages]

    def report(items: list[tuple[str, tuple[int, bool]]]) -> list[Any]:
        return [
            KafkaSinkMessage(
                None,
                b'{"visit_id":%b,"visited_pages":%d,"is_finished":%b}'
                % (visit.encode(), pages, b"true" if finished else b"false"),
            )
            for visit, (pages, finished) in items
        ]

    visits = op.flat_map_batch("keyed", records, keyed)
    pages = op.stateful_batch("pages", visits, lambda state: Visit(state or 0))
    return op.flat_map_batch("report", pages, report)


def main() -> None:
    """Make the folder for recovery, then run a cluster of two processes."""
    *places, folder = sys.argv[1:]
    recovery = Path(folder, "recovery")
    recovery.mkdir()
    subprocess.run([sys.executable, "-m", "bytewax.recovery", recovery, "2"], check=True)
    addresses = ";".join(f"127.0.0.1:{_free_port()}" for _ in (0, 1))
    run = [sys.executable, "-m", "bytewax.run", f"{Path(__file__).stem}:build()"]
    # a snapshot every ten seconds, as Flink makes them
    run += ["-r", str(recovery), "-s", "10", "-b", "0", "-a", addresses]
    variables = {**os.environ, **dict(zip(_PLACES, places, strict=True))}
    variables["PYTHONPATH"] = str(Path(__file__).parent)
    workers = [subprocess.Popen([*run, "-i", number], env=variables) for number in "01"]
    codes = [worker.wait() for worker in workers]
    sys.exit(any(codes))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
