"""`make deploys`: each pair of an old and a new job on each Spark; `check` must say what happens.

The old job runs, the checkpoint is copied, `check` is asked, and the new job is started on the copy
with more input: it is right, wrong or refused. `python -m tests.deploys [VERSION …]`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import ebbtide
from ebbtide.checks import BREAKS, MISBINDS, SAME
from ebbtide.compatibility import CompatibilityReport
from ebbtide.config import Settings
from ebbtide.errors import EbbtideError
from ebbtide.runtime import java as jvm
from tests import cells
from tests.compat.environments import clean_environ, make_environment
from tests.deploy_jobs import DEPLOYS, REFUSES, RIGHT, WRONG, Deploy, Job
from tests.deploy_queries import ALL, BEFORE

VERSIONS = ("3.5.9", "4.1.4", "4.2.0")
FILES_PER_BATCH = 3
USED = "used"
"""The id of the rows that another query has written."""
Rows = list[tuple[Any, ...]]
_REPOSITORY = Path(__file__).parent.parent


@dataclass(frozen=True)
class Played:
    """What Spark did with a pair, and what the check had said."""

    name: str
    outcome: str
    verdict: str
    expected: str
    hidden: bool
    detail: str = ""
    """What breaks, or what Spark said."""
    seconds: float = 0.0
    doings: tuple[str, ...] = ()
    """What the check said that Spark would do about the parts that break."""
    not_checked: tuple[str, ...] = ()

    @property
    def problem(self) -> str | None:
        """Why the check and Spark do not agree; None if they do."""
        if self.outcome != self.expected:
            return f"Spark was expected to be {self.expected}, and is {self.outcome}"
        if self.outcome != RIGHT and self.verdict == SAME:
            return "called the same"
        if self.hidden:
            return None if self.verdict != BREAKS and self.not_checked else "not called unchecked"
        if (self.verdict == BREAKS) != (self.outcome != RIGHT):
            return f"the verdict is {self.verdict}"
        if self.outcome == REFUSES and set(self.doings) == {MISBINDS}:
            return "said to misbind, and Spark refuses"
        if self.outcome == WRONG and MISBINDS not in self.doings:
            return "said to be refused, and Spark starts"
        return None


@dataclass
class Stage:
    """A session, and what old jobs and new ones from scratch have left in a folder."""

    spark: SparkSession
    home: Path
    _ran: dict[int, tuple[Path, Rows]] = field(default_factory=dict)
    _truths: dict[tuple[int, bool], Rows] = field(default_factory=dict)
    _inputs: dict[Path, frozenset[Path]] = field(default_factory=dict)

    def play(self, deploy: Deploy) -> Played:
        """Run the old job, ask for a verdict, start the new one, and compare."""
        started = time.monotonic()
        old, before = self._run_old(deploy.old)
        run = Run(self.spark, deploy.new, old / "input", self._folder(), ALL)
        checkpoint = Path(shutil.copytree(old / "checkpoint", run.folder / "checkpoint"))
        run.prepare()
        report = self._check(run, checkpoint)
        try:
            after = run.play()
        except Exception as error:  # whatever Spark raises is the outcome
            outcome, detail = REFUSES, str(error).splitlines()[0][:200]
        else:
            outcome = RIGHT if self._is_right(deploy, before, after) else WRONG
            detail = ""
        version = self.spark.version
        return Played(
            deploy.name,
            outcome,
            report.verdict,
            deploy.expect(version),
            deploy.is_hidden(version),
            "; ".join(part.detail for part in report.breaking) or detail,
            round(time.monotonic() - started, 1),
            tuple(part.spark for part in report.breaking),
            report.not_checked,
        )

    def _check(self, run: Run, checkpoint: Path) -> CompatibilityReport:
        def build(_spark: SparkSession) -> Any:
            return run.writer(lambda _rows, _batch: None)

        settings = Settings(home=self.home / "home")
        before = sorted(checkpoint.rglob("*"))
        with cells._settings(self.spark, run.conf):
            report = ebbtide.check(checkpoint, build, settings=settings, spark=self.spark)
        assert sorted(checkpoint.rglob("*")) == before, "the check has changed the checkpoint"
        return report

    def _is_right(self, deploy: Deploy, before: Rows, after: Rows) -> bool:
        truth = self._find_truth(deploy.truth or deploy.new, fresh=deploy.fresh)
        if deploy.fresh:
            return sorted(after) == sorted(truth)
        appended = deploy.old.mode == deploy.new.mode == "append"
        final = partial(_final, deploy.new, appended=appended)
        if deploy.partial:
            return set(final(after)) <= set(final(truth))
        earlier = [] if deploy.new.mode == "complete" else before
        return final(earlier + after) == final(truth)

    def _find_truth(self, job: Job, *, fresh: bool) -> Rows:
        """What the new job writes from scratch: of all files, or of the new ones alone."""
        key = (id(job), fresh)
        if key not in self._truths:
            folder = self._folder()
            files = range(BEFORE.stop, ALL.stop) if fresh else ALL
            # at once: no row is too late, so the batches make no difference
            job = replace(job, sink="foreach")
            run = Run(self.spark, job, folder / "input", folder, files, files_per_batch=len(files))
            self._truths[key] = run.play()
        return self._truths[key]

    def _run_old(self, job: Job) -> tuple[Path, Rows]:
        if id(job) in self._ran:
            self._clear(self._ran[id(job)][0] / "input")
        else:
            folder, rows = self._folder(), []
            # a job that fails leaves its first batch planned, and nothing committed
            with suppress(StreamingQueryException) if job.fails else nullcontext():
                rows = Run(self.spark, job, folder / "input", folder, BEFORE).play()
            self._ran[id(job)] = folder, rows
            self._inputs[folder / "input"] = frozenset((folder / "input").rglob("*"))
        return self._ran[id(job)]

    def _clear(self, folder: Path) -> None:
        """Remove the input that a new job has added to that of an old one."""
        for path in sorted(set(folder.rglob("*")) - self._inputs[folder], reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()

    def _folder(self) -> Path:
        return Path(mkdtemp(prefix="run-", dir=self.home))


@dataclass(frozen=True)
class Run:
    """One run of a job over the files that it has not read yet."""

    spark: SparkSession
    job: Job
    input: Path
    folder: Path
    files: range
    files_per_batch: int = FILES_PER_BATCH

    @property
    def conf(self) -> dict[str, str]:
        """The session's settings for it."""
        settings = {"spark.sql.shuffle.partitions": "2", **cells.HDFS, **cells.LAZY}
        return {**settings, **self.job.conf}

    def play(self) -> Rows:
        """Run it until all files are read; the rows that it wrote."""
        rows: Rows = []

        def keep(batch: DataFrame, _number: int) -> None:
            if self.job.mode == "complete":  # the sink is written anew each time
                rows.clear()
            found = [tuple(row) for row in batch.collect()]
            if self.job.fails:
                raise RuntimeError("as its first batch ends")
            rows.extend(found)

        with cells._settings(self.spark, self.conf):
            checkpoint = str(self.folder / "checkpoint")
            writer = self.writer(keep).option("checkpointLocation", checkpoint)
            when = {"once": True} if self.job.once else {"availableNow": True}
            running = writer.trigger(**when).start()
            try:
                running.awaitTermination()
            finally:
                running.stop()
        if self.sink_folder is not None:
            written = self.spark.read.parquet(str(self.sink_folder)).collect()
            rows = [tuple(row) for row in written if row["id"] != USED]
        return rows

    def writer(self, keep: Callable[[DataFrame, int], None]) -> Any:
        """The job's writer, not started."""
        writer = self.job.build(self._read).writeStream.outputMode(self.job.mode)
        if self.sink_folder is not None:
            return writer.format("parquet").option("path", str(self.sink_folder))
        if self.job.sink == "memory":
            return writer.format("memory").queryName("deploys")
        return writer.foreachBatch(keep)

    @property
    def sink_folder(self) -> Path | None:
        """The folder that it writes files to."""
        kind, _, name = self.job.sink.partition(":")
        return self.folder / name if kind == "files" else None

    def prepare(self) -> None:
        """Where the sink must have been used, let another query write more batches to it."""
        if self.job.sink != "files:used":
            return
        schema, source = "id STRING, value INT", self.folder / "used-input"
        for number in range(8):
            one = self.spark.createDataFrame([(USED, number)], schema)
            one.coalesce(1).write.json(str(source / str(number)))
        stream = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        writer = stream.json(str(source / "*")).writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(self.folder / "used-checkpoint"))
        running = writer.option("path", str(self.sink_folder)).trigger(availableNow=True).start()
        running.awaitTermination()

    def _read(
        self,
        name: str,
        *,
        path: str = "",
        called: str = "",
        only: range | None = None,
        deep: bool = False,
    ) -> DataFrame:
        """The stream of a folder's files; `only` some, by another path, or with a name."""
        cells.write_input(self.input / name, self.files if only is None else only)
        stream = self.spark.readStream.schema(cells.SCHEMA)
        stream = stream.option("maxFilesPerTrigger", self.files_per_batch)
        if deep:
            stream = stream.option("recursiveFileLookup", "true")
        if called:
            stream = stream.name(called)
        return stream.json(str(self.input / (path or name)))


def _final(job: Job, rows: Rows, *, appended: bool) -> Rows:
    """What a reader of the sink sees: all rows when appended, or the last one of each key."""
    seen = rows if appended else list({row[: job.key]: row for row in rows}.values())
    return sorted(seen, key=repr)


def play_all(spark: SparkSession, home: Path, names: Iterable[str]) -> list[Played]:
    """Play pairs in one session, and print a line for each."""
    stage, played = Stage(spark, home), []
    for name in names:
        deploy = DEPLOYS[name]
        if spark.version < deploy.since:
            continue
        try:
            one = stage.play(deploy)
        except Exception as error:  # the others are still worth playing
            words = (str(error) or repr(error)).splitlines()[0][:200]
            one = Played(name, "not played", "none", deploy.expect(spark.version), False, words)
        played.append(one)
        mark = "FAILED" if one.problem else "ok"
        hidden = " (hidden)" if one.hidden else ""
        say(
            f"{spark.version}  {mark:6} {one.name:36} {one.outcome:8} {one.verdict}{hidden}  "
            f"{one.seconds} s  {one.problem or ''}  {one.detail[:160]}"
        )
    return played


def say(line: str) -> None:
    """One line of progress."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def play_here(names: list[str], results: Path) -> None:
    """Play in this process, with whichever pyspark it has."""
    spark = cells.build_session(
        {
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.files.minPartitionNum": "1",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
    )
    home = Path(mkdtemp(prefix="ebbtide-deploys-"))
    try:
        played = play_all(spark, home, names or DEPLOYS)
    finally:
        spark.stop()
        shutil.rmtree(home, ignore_errors=True)
    results.write_text(json.dumps([asdict(one) for one in played], indent=1), "utf-8")


def play_version(version: str, names: list[str], cache: Path, results: Path) -> bool:
    """Play with a Spark in an environment of its own; whether the check was always right."""
    python = make_environment(version, cache, say)
    java = [str(python), "-c", "from ebbtide.runtime import java; print(java.spark_java_home())"]
    environ = clean_environ(python, _REPOSITORY)
    environ["PYTHONPATH"] += f":{_REPOSITORY / 'src'}"
    found = subprocess.run(java, env=environ, capture_output=True, text=True, check=True)
    environ["JAVA_HOME"] = found.stdout.strip()
    words = ["--here", str(results), *(word for name in names for word in ("--pair", name))]
    command = [str(python), "-m", "tests.deploys", *words]
    with results.with_suffix(".log").open("w", encoding="utf-8") as log:
        done = subprocess.run(command, cwd=_REPOSITORY, env=environ, stderr=log, check=False)
    if done.returncode:
        say(f"{version}  the session ended with {done.returncode}; see {log.name}")
        return False
    played = [Played(**one) for one in json.loads(results.read_text("utf-8"))]
    failed = [one for one in played if one.problem]
    say(f"{version}  {len(played) - len(failed)} of {len(played)} pairs as the check said")
    return not failed


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="make deploys", description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="3.5.9, 4.1.4 … (all)")
    parser.add_argument("--pair", action="append", default=[], help="only the pair of this name")
    parser.add_argument("--cache", type=Path, help="for the environments, about 1 GB each")
    parser.add_argument("--here", type=Path, help="play with the pyspark of this Python")
    given = parser.parse_args()
    if given.here:
        play_here(given.pair, given.here)
        return 0
    cache = (given.cache or jvm.cache_folder() / "compat").absolute()
    results = Path(mkdtemp(prefix="ebbtide-deploys-"))
    failed = []
    for version in given.versions or VERSIONS:
        try:
            good = play_version(version, given.pair, cache, results / f"{version}.json")
        except (EbbtideError, subprocess.CalledProcessError) as error:
            say(f"{version}  {error}")
            good = False
        failed += [] if good else [version]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
