"""The commands of docs/howto, in order, as written; what a reader fills in is filled in."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import ebbtide
from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.systems.micro_batch.demo import BUGGY
from tests.conftest import Cli

pytestmark = pytest.mark.usefixtures("one_jvm")

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
COUNTER = "visits-counter"
FIXED = """
from dataclasses import replace

from ebbtide.systems.{system}.pipeline import pipeline as shipped

pipeline = replace(shipped, transform=lambda visits: shipped.transform(visits.where("{fix}")))
"""
JOB = """
OPTIONS = {options}


def build(spark):
    visits = spark.readStream.format("kafka").options(**OPTIONS).load()
    rows = visits.selectExpr("CAST(value AS STRING) AS visit"){fix}
    return rows.writeStream.format("parquet").option("path", "{out}").outputMode("append")
"""


def blocks(page: str, language: str = "") -> list[str]:
    """What stands between fences of a page, without the indentation of a list."""
    text = (HOWTO / f"{page}.md").read_text("utf-8")
    found = re.findall(r"^( *)```(\w*)\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    return [re.sub(f"^{i}", "", block, flags=re.M) for i, name, block in found if name == language]


class Reader:
    """Who types the commands of a page in an empty folder."""

    def __init__(self, inside: Cli, folder: Path, broker: Settings) -> None:
        self._inside = inside
        self.settings = Settings(home=folder / ".ebbtide", bootstrap_servers=broker.kafka.address)

    def type(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = self._inside(*words, EBBTIDE_BOOTSTRAP_SERVERS=self.settings.kafka.address)
        assert done.returncode == code, (words, done.stderr)
        return done

    def follow(
        self,
        page: str,
        filled_in: Mapping[str, str],
        *,
        finds: int | None = None,
    ) -> list[str]:
        """What each command of a page prints; `finds` is the one that finds what it looks for.

        That is exit code 1. What runs until Ctrl-C runs to the end of the topic here.
        """
        said = []
        lines = [line for block in blocks(page) for line in block.splitlines()]
        for number, line in enumerate(lines):
            command, *words = shlex.split(line)
            assert command == "ebbtide"
            words = [filled_in.get(word, word) for word in words]
            if words[0] == "run":
                words.append("--available-now")
            done = self.type(*words, code=int(number == finds))
            said.append(done.stdout + done.stderr)
        return said

    def send(
        self, minutes: Iterable[int], partition: Callable[[int], int] = lambda _number: 0
    ) -> None:
        """A visit at each of these minutes after seven o'clock."""
        kafka.create_missing_topics(self.settings.kafka, ["visits"])
        with kafka.Sender(self.settings.kafka, "visits") as sender:
            for n, minute in enumerate(minutes):
                time = f"2025-09-04T{7 + minute // 60:02}:{minute % 60:02}:00"
                visit = {"event_id": f"click-{n}", "visit_id": n, "event_time": time}
                record = json.dumps({**visit, "page": "home"}).encode()
                sender.send(record, partition=partition(n))


@pytest.fixture
def reader(
    inside: Cli, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Reader:
    folder = tmp_path / "reader"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return Reader(inside, folder, settings)


def shown_as(block: str, **others: str) -> re.Pattern[str]:
    """What a page shows, however it is wrapped, with patterns in the places of some words."""
    pattern = r"\s+".join(re.escape(word) for word in block.split())
    for word, other in others.items():
        pattern = pattern.replace(word, other)
    return re.compile(pattern)


def test_recover_from_a_bug(reader: Reader) -> None:
    reader.send(range(0, 80, 2))
    reader.type("run", COUNTER, "--available-now", "--max-offsets-per-trigger", "5")
    Path("fixed.py").write_text(FIXED.format(system="batch_reprocessor", fix="visit_id <> 27"))
    checkpoint = str(reader.settings.checkpoint(COUNTER))
    batches = json.loads(reader.type("inspect", checkpoint, "-o", "json").stdout)["batches"]
    (began,) = (batch["timestamp"] for batch in batches if batch["id"] == 5)
    filled_in = {"CKPT": checkpoint, "2026-01-05T02:00": began}
    cost, replay, plan, done, again = reader.follow("bug", filled_in, finds=1)
    assert "Recommended: " in cost
    assert "differs" in replay
    assert "to batch 5" in plan
    for line in blocks("bug", "text")[0].splitlines():
        shown = re.sub(r"\d+ files are in backup \S+", "FILES files are in backup BACKUP.", line)
        others = {"CKPT": re.escape(checkpoint), "FILES": r"\d+", "BACKUP": r"\S+"}
        assert shown_as(shown, **others).search(done), line
    assert "differ" not in again


def test_count_late_data(reader: Reader) -> None:
    reader.send([0, 1, 2, 33, 34, 35, 66, 67, 68, 3, 4])
    reader.type("run", COUNTER, "--available-now", "--max-offsets-per-trigger", "3")
    history, _, compared, _ = reader.follow("late-data", {})
    assert "2 late records are missing from results" in history
    (change,) = re.findall(r"`(count \d → \d)`", (HOWTO / "late-data.md").read_text("utf-8"))
    assert change in compared
    retained = kafka.retained_offsets(reader.settings.kafka, "visits_counter")
    start, end = ({p: each[n] for p, each in retained.items()} for n in range(2))
    records = kafka.consume_range(reader.settings.kafka, "visits_counter", start, end)
    windows = [json.loads(record.value or b"") for record in records]
    first = [each for each in windows if each["window"]["start"].startswith("2025-09-04T07:00")]
    assert [each["count"] for each in first] == [3, 5]


def test_handle_a_poison_record(reader: Reader) -> None:
    kafka.create_missing_topics(reader.settings.kafka, ["visits"])
    with kafka.Sender(reader.settings.kafka, "visits") as sender:
        sender.send(b"broken")
    reader.send(range(59))
    reader.type("run", "visits-windows-counter", "--available-now")
    limit = ("--available-now", "--max-offsets-per-trigger", "10")
    failed = reader.type("run", BUGGY, *limit, code=1).stderr
    checkpoint = str(reader.settings.checkpoint("visits-micro-batch"))
    (error,) = blocks("poison-record", "text")
    assert error.split("Details")[0].strip() in failed
    Path("fixed.py").write_text(FIXED.format(system="micro_batch", fix="page = 'home'"))
    filled_in = {"CKPT": checkpoint}
    letters, shown, done, _, check, _ = reader.follow("poison-record", filled_in)
    assert "not a JSON object" in letters
    assert "Batch 5 is planned, but not committed." in " ".join(shown.split())
    assert "starts again with batch 5" in done
    assert "goes on" in check


def test_repair_a_corrupt_checkpoint(reader: Reader) -> None:
    reader.send(range(30))
    job = "visits-windows-counter"
    reader.type("run", job, "--available-now", "--max-offsets-per-trigger", "5")
    checkpoint = reader.settings.checkpoint(job)
    Path(checkpoint, "state/0/0/7.zip").write_bytes(b"damaged")
    filled_in = {"CKPT": str(checkpoint)}
    damaged, plan, done, good = reader.follow("corrupt-checkpoint", filled_in, finds=0)
    table, error = blocks("corrupt-checkpoint", "text")[0].split("\n\n")
    for row in [*table.splitlines()[2:4], "\n".join(table.splitlines()[4:]), error]:
        assert shown_as(row, CKPT=re.escape(str(checkpoint))).search(damaged), row
    assert "to batch 6" in plan
    assert "starts again with batch 6" in done
    assert "7 of 7 batches can run again" in good


def test_check_a_deploy(reader: Reader) -> None:
    reader.send(range(20))
    options = {
        "subscribe": "visits",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "3",
        **reader.settings.kafka.spark_options(),
    }
    job = partial(JOB.format, options=options, out=Path("out").absolute())
    names: dict[str, Any] = {}
    exec(job(fix=""), names)
    checkpoint = str(Path("checkpoint").absolute())
    writer = names["build"](SparkSession.active()).option("checkpointLocation", checkpoint)
    attachment = ebbtide.attach(SparkSession.active())
    writer.trigger(availableNow=True).start().awaitTermination()
    attachment.close()
    Path("job.py").write_text(job(fix=".where(\"visit NOT LIKE '%-19%'\")"))
    filled_in = {"CKPT": checkpoint, "NEW": "new"}
    check, replay, fork = reader.follow("deploy-check", filled_in, finds=1)
    assert "goes on with batch 7" in check
    assert re.search(r"5 +identical.*6 +differs", replay, re.DOTALL)
    assert "click-19" in replay
    assert Path("new/sources/0/0").read_text().splitlines()[-1] == '{"visits":{"0":20,"1":0}}', fork


def test_follow_a_moved_topic(reader: Reader) -> None:
    reader.send(range(18), lambda number: min(number % 3, 1))
    reader.type("run", "visits-windows-counter", "--available-now")
    checkpoint = str(reader.settings.checkpoint("visits-windows-counter"))
    filled_in = {"CKPT": checkpoint, "new-kafka:9092": reader.settings.kafka.address}
    (said,) = reader.follow("moved-topic", filled_in)
    (shown,) = blocks("moved-topic", "text")
    assert shown_as(shown).search(said)
