"""A program that is not ours, with one line added: killed, rewound, started again."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyarrow import parquet  # type: ignore[import-untyped]

from ebbtide.checkpoint import read_checkpoint
from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.connectors.kafka.admin import create_missing_topics
from ebbtide.history import kept_entries, read_history
from ebbtide.rewind import lease
from ebbtide.runtime import java
from ebbtide.storage import open_folder
from tests.conftest import QUICK_PROGRAM, Cli
from tests.e2e.conftest import wait_until
from tests.servers.stores import Stores
from tests.unit.test_docs import blocks

BEGIN = datetime(2025, 9, 4, 7, tzinfo=timezone.utc)
FILES, EACH = 5, 3
QUERIES = ("windows", "copies", "pages", "merges")


def event(number: int) -> dict[str, Any]:
    """Three events a minute."""
    at = BEGIN + timedelta(seconds=20 * number)
    return {"at": at.isoformat(), "page": f"page-{number % 2}", "n": number}


@pytest.fixture
def folder(settings: Settings, tmp_path: Path) -> Path:
    """The input, as files and as a topic."""
    folder = tmp_path / "a job"
    (folder / "in").mkdir(parents=True)
    create_missing_topics(settings.kafka, ["clicks"], partitions=1)
    with kafka.Sender(settings.kafka, "clicks") as sender:
        for file in range(FILES):
            lines = [json.dumps(event(file * EACH + one)) for one in range(EACH)]
            path = folder / "in" / f"{file}.json"
            path.write_text("\n".join(lines))
            os.utime(path, (1_756_969_200 + file, 1_756_969_200 + file))  # Spark reads the oldest
            for line in lines:
                sender.send(line.encode(), partition=0)
    return folder


class PlainJob:
    """The program as a process of its own."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        jars = ",".join(map(str, java.jars("spark")))
        environment = {
            "JARS": jars,
            "JAVA_TOOL_OPTIONS": QUICK_PROGRAM,
            "PYSPARK_PYTHON": sys.executable,
        }
        self.log = folder.with_suffix(".log")
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    Path(__file__).with_name("plain_job.py"),
                    folder,
                    str(settings.bootstrap_servers),
                ],
                env={**os.environ, **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """End it and its JVM at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def finish(self) -> None:
        """Let it read all there is."""
        assert self.process.wait(300) == 0, self.log.read_text()[-4000:]


def written(folder: Path) -> dict[str, Any]:
    """What the queries have written, by what must hold whatever the batches were."""
    tables = {
        name: DeltaTable(str(folder / name)).to_pyarrow_table().to_pylist()
        for name in ("windows", "pages", "merged")
    }
    files = [path for path in (folder / "copies").glob("*.parquet") if path.is_file()]
    copies = [row for path in files for row in parquet.read_table(path).to_pylist()]
    last: dict[str, int] = {}
    for row in tables["pages"]:
        last[row["page"]] = max(row["count"], last.get(row["page"], 0))
    return {
        "windows": sorted(
            (row["window"]["start"].minute, row["count"]) for row in tables["windows"]
        ),
        "copies": sorted(row["n"] for row in copies),
        "pages": last,
        "merges": sorted(row["n"] for row in tables["merged"]),
    }


TRUTH = {
    "windows": [(minute, EACH) for minute in range(FILES - 1)],
    "copies": list(range(FILES * EACH)),
    "pages": {"page-0": (FILES * EACH + 1) // 2, "page-1": FILES * EACH // 2},
    "merges": list(range(FILES * EACH)),
}
"""Of the windows, those that the watermark has passed."""


@pytest.mark.timeout(900)  # three starts of a program with four queries
def test_a_program_with_one_line_added(
    settings: Settings, folder: Path, inside: Cli, request: pytest.FixtureRequest
) -> None:
    """**1** it is killed, and goes on; **2** every batch is in the history; **3** a rewind to an
    event time finds the sinks by itself; **4** started again, it writes what is right.
    """
    checkpoints = {name: folder / "checkpoints" / name for name in QUERIES}
    # 1
    job = PlainJob(settings, folder)
    request.addfinalizer(job.kill)
    wait_until(
        lambda: all((one / "commits" / "1").exists() for one in checkpoints.values()), seconds=300
    )
    running = inside("rewind", checkpoints["pages"], "--to-earliest", "--sink", "none")
    assert "is running" in running.stderr
    job.kill()
    with kafka.Sender(settings.kafka, "clicks") as sender:
        # the last windows come in a batch without data, which Spark only plans after one with data
        sender.send(json.dumps(event(FILES * EACH)).encode(), partition=0)
    PlainJob(settings, folder).finish()
    assert written(folder) == TRUTH
    for name, checkpoint in checkpoints.items():
        # 2
        contents = read_checkpoint(str(checkpoint))
        entries = kept_entries(contents)
        committed = [batch.id for batch in contents.logs.batches if batch.committed]
        told = json.loads(inside("history", checkpoint, "-o", "json").stdout)["batches"]
        assert [batch["id"] for batch in told] == committed
        lost = set(committed) - entries.keys()
        assert len(lost) <= (name != "windows"), "what was committed last before it was killed"
        assert sum(entry.rows for entry in entries.values()) >= (FILES - 1) * EACH
        assert any(entry.event_times for entry in entries.values())
        # 3
        restore = ("--sink", "restore") if name in ("windows", "pages") else ()
        back = ("--to-event-time", "2025-09-04T07:03:00", *restore, "--execute", "--yes")
        rewound = inside("rewind", checkpoint, *back)
        assert rewound.returncode == 0, rewound.stderr
        assert max(read_checkpoint(str(checkpoint)).folder.ids("commits")) < committed[-1]
    # 4
    assert written(folder) != TRUTH
    PlainJob(settings, folder).finish()
    assert written(folder) == TRUTH


_SHORT = """
import sys
import time
from ebbtide.attaching import attachment
from ebbtide.history import read_history
from ebbtide.rewind.lease import read_lease
from ebbtide.storage import open_folder
from tests.unit.attaching.sessions import FakeQuery, FakeSession, progress

query = FakeQuery(sys.argv[1])
attachment._LAST_WORDS_SECONDS = 50  # the machine may be busy
attached = attachment.Attachment(FakeSession([query]), lambda line: print(line, file=sys.stderr))
attached.follow_all()
if sys.version_info[:2] == (3, 12):  # it starts no thread while it ends
    attached.observe("run-0", progress(0))
    while not read_history(folder := open_folder(sys.argv[1])).entries or not read_lease(folder):
        time.sleep(0.01)
for batch in range(3):
    attached.observe("run-0", progress(batch))
query.is_active = False
"""


def test_a_program_that_ends_at_once_on_a_remote_store(use: Stores) -> None:
    """At the exit of Python, the client of a store cannot start threads any more."""
    url = f"{use('s3').new_root()}/checkpoint"
    open_folder(url).filesystem.pipe(f"{url}/metadata", b'{"id":"7b3c"}')
    done = subprocess.run(
        [sys.executable, "-c", _SHORT, url],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    store = open_folder(url)
    assert [entry.batch for entry in read_history(store).entries] == [0, 1, 2]
    assert lease.read_lease(store).released  # type: ignore[union-attr]


def test_a_program_that_forks_and_stops_spark(tmp_path: Path) -> None:
    """The program itself looks whether all is followed, and nothing of ours is left after it."""
    quick = {"JAVA_TOOL_OPTIONS": QUICK_PROGRAM, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("stopping_job.py")],
        cwd=tmp_path,
        env={**os.environ, **quick},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "followed, forked, stopped, started again\n"


PAGE = Path(__file__).parents[2] / "docs" / "start" / "your-own-job.md"


EXIT_1 = ("ebbtide replay fixed.py", "ebbtide check data/checkpoint average.py")
"""The commands there that find what they look for."""


def follow(block: str, inside: Cli) -> str:
    """Type the commands of a block; what stands below one must be what it prints."""
    said = ""
    for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
        command, _, expected = part.partition("\n")
        words = shlex.split(command)
        if words[0] == "ebbtide":
            done = inside(*words[1:])
        else:
            words[0] = {"python": sys.executable}.get(words[0], words[0])
            quick = {"JAVA_TOOL_OPTIONS": QUICK_PROGRAM, "PYSPARK_PYTHON": sys.executable}
            environment = {**os.environ, **quick}
            line = command if ">" in command else shlex.join(words)
            done = subprocess.run(
                line, env=environment, shell=True, capture_output=True, text=True, check=False
            )
        assert done.returncode == command.startswith(EXIT_1), (command, done.stderr)
        if expected:
            assert [row.rstrip() for row in done.stdout.splitlines()] == expected.splitlines()
        said += done.stdout + done.stderr
    return said


def count_home(out: Path) -> list[int]:
    """The visits of `home` in each window that the job's output holds."""
    rows = [row for file in out.glob("*.parquet") for row in parquet.read_table(file).to_pylist()]
    return [row["count"] for row in rows if row["page"] == "home"]


def test_the_page_about_your_own_job(
    tmp_path: Path, inside: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job as it is written there, then each block of commands: a bug, the way back, the undo.

    The first time it runs as it was before, without the line, by `python -m ebbtide.attach`.
    """
    job, events = blocks(PAGE, "python")
    without = job.replace("    ebbtide.attach(spark)  # the one line\n", "")
    assert without != job
    monkeypatch.chdir(tmp_path)
    Path("events.py").write_text(events)
    typed = blocks(PAGE, "console")
    start, recorded, fix, check, replay, fork, cost, back, undo, state, fresh, attached = typed
    Path("pages.py").write_text(without)
    follow(start.replace("pages.py", "-m ebbtide.attach pages.py"), inside)
    assert "$ python -m ebbtide.attach pages.py" in attached
    Path("pages.py").write_text(job)
    shown = follow(recorded, inside)
    assert "07:15:00" in shown
    out = tmp_path / "data" / "out"
    (sink,) = json.loads(inside("sinks", "data/checkpoint", "-o", "json").stdout)
    assert sink["path"] == str(out)
    assert count_home(out) == [1, 1]
    follow(fix, inside)
    assert "Spark 4.2.0 goes on with batch 5" in follow(check, inside)
    follow(replay, inside)
    follow(fork, inside)
    assert "ebbtide rewind" in follow(cost, inside)
    assert count_home(out) == [1, 1]
    follow(back, inside)
    assert count_home(out) == [2, 2]
    assert "data/checkpoint is back as it was" in follow(undo, inside)
    assert count_home(out) == [1, 1]
    assert "--offsets-only" in follow(state, inside)
    follow(fresh, inside)
