"""How long and how much CPU it takes from the command to the first committed batch.

The same work, a windowed count with two partitions and RocksDB, as a pipeline and as a plain script
whose jars are on the disk already. Both are ended when the commit is there.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from benchmarks import small_jobs
from benchmarks.measure import Ratio, running
from ebbtide.connectors import kafka
from ebbtide.local.broker import temporary_broker
from ebbtide.local.warmup import warm_up
from ebbtide.runtime import java as jvm
from ebbtide.runtime.compiler import own_jar
from ebbtide.runtime.session import ROCKSDB

_TOPIC = "events"
_LONGEST_SECONDS = 300
PLAIN = (
    "spark.sql.shuffle.partitions=2",
    f"spark.sql.streaming.stateStore.providerClass={ROCKSDB}",
)
"""What makes a plain script do the same work."""
_CONF = [word for pair in PLAIN for word in ("--conf", pair)]


def run(*, quick: bool) -> Iterator[str | Ratio]:
    """From the command to the first committed batch: a pipeline, and a plain script"""
    rounds = 1 if quick else 3
    warm_up()
    home = Path(tempfile.mkdtemp(prefix="ebbtide-bench-"))
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with temporary_broker() as broker:
        servers = broker.bootstrap_servers
        kafka.create_missing_topics(broker.connection, [_TOPIC, f"{_TOPIC}-out"])
        with kafka.Sender(broker.connection, _TOPIC) as sender:
            for number in range(200):
                sender.send(b'{"id":%d,"at":"2025-09-04T07:00:00Z"}' % number)
        ours = [sys.executable, "-m", "ebbtide", "run", f"{small_jobs.__file__}:windowed"]
        ours += ["--bootstrap-servers", servers, *_CONF]
        plain = [sys.executable, "-m", small_jobs.__name__, "windowed", servers, _TOPIC]
        where = home / "run"
        ours += ["--home", str(where), "--checkpoint", str(where / "checkpoint")]
        plain += [str(where / "checkpoint"), *PLAIN]
        ways = {
            "Ebbtide": (ours, None),
            "Spark": (plain, None),
            "Ebbtide, no archives": (ours, _bare(home)),
        }
        for turn in range(1, rounds + 1):
            for name, (command, cache) in ways.items():
                if cache is not None and turn > 1:  # no goal depends on it
                    continue
                took = _first_commit(command, where, cache)
                found[name].append(took)
                yield "round {}: {:<21} {:5.1f} s, {:5.1f} CPU s".format(turn, name, *took)
    shutil.rmtree(home, ignore_errors=True)
    seconds, cpu = (
        {name: statistics.median(each[what] for each in times) for name, times in found.items()}
        for what in (0, 1)
    )
    for name in found:
        ratios = f"{seconds[name] / seconds['Spark']:.2f} ×, {cpu[name] / cpu['Spark']:.2f} ×"
        yield f"{name:<21} {seconds[name]:5.1f} s, {cpu[name]:5.1f} CPU s ({ratios} Spark)"
    text = "time to the first committed batch, to a plain script"
    yield Ratio("start", text, 0.7, seconds["Ebbtide"] / seconds["Spark"])


def _bare(home: Path) -> Path:
    """A cache with the same jars, but no archives."""
    bare = home / "cache"
    if not bare.exists():
        (bare / "jars").mkdir(parents=True)
        for folder in (*map(jvm.jar_folder, jvm.ALL), own_jar().parent):
            (bare / "jars" / folder.name).symlink_to(folder)
    return bare


def _first_commit(command: list[str], home: Path, cache: Path | None) -> tuple[float, float]:
    """The seconds and the CPU seconds of the whole tree until the first commit."""
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    environ = {"EBBTIDE_BENCH_TOPIC": _TOPIC}
    if cache is not None:
        environ["EBBTIDE_CACHE"] = str(cache)
    commit = home / "checkpoint" / "commits" / "0"
    started = time.monotonic()
    with running(command, log=home.with_name("log"), env=environ) as outcome:
        while not commit.exists():
            if time.monotonic() - started > _LONGEST_SECONDS:
                raise TimeoutError("no batch was committed")
            time.sleep(0.01)
        took = time.monotonic() - started, outcome.tree.cpu_seconds()
        outcome.tree.stop()
    return took
