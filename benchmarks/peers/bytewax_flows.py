"""The works in Bytewax, with recovery: one process a partition, as its threads share one lock.

`bytewax_flows.py WORK SERVERS TOPIC OUT FOLDER`. What is tuned: large fetches, 10,000 records a
call, orjson, and JSON decoded a batch at a time.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

_PLACES = ("BENCH_WORK", "BENCH_SERVERS", "BENCH_TOPIC", "BENCH_OUT")
_GAP = timedelta(minutes=10)
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
    import bytewax.operators.windowing as win
    import orjson
    from bytewax.connectors.kafka import KafkaSinkMessage

    loads, parse = orjson.loads, datetime.fromisoformat

    def times(messages: list[Any]) -> list[tuple[str, datetime]]:
        return [
            (str(each.partition), parse(loads(each.value)["event_time"].replace("Z", "+00:00")))
            for each in messages
        ]

    def report(item: tuple[str, tuple[int, int]]) -> Any:
        part, (window, count) = item
        start = (epoch + window * _GAP).isoformat()
        return KafkaSinkMessage(None, orjson.dumps({"start": start, "count": count, "part": part}))

    epoch = datetime(2025, 1, 1, tzinfo=timezone.utc)
    timed = op.flat_map_batch("times", records, times)
    clock = win.EventClock(lambda item: item[1], timedelta(minutes=20))
    windower = win.TumblingWindower(length=_GAP, align_to=epoch)
    counts = win.count_window("count", timed, clock, windower, lambda item: item[0])
    return op.map("report", counts.down, report)


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
