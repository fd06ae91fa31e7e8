"""Run the chunks of a reprocess and compare their results with the output (steps 5 to 7).

**5** run each chunk: the same transform, deterministic keys, provenance; **6** compare with what
the output holds: unchanged, changed, new, gone; **7** summary, and the retry line if one failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext, suppress
from dataclasses import replace
from threading import Lock

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation
from pyspark.sql.types import StructType

from ebbtide.connectors import connector_of, streams
from ebbtide.errors import EbbtideError
from ebbtide.reprocessing.compare import (
    belongs,
    compare,
    find_measure,
    only_changed,
    reaches_into,
    replaced_range,
    summarize_results,
)
from ebbtide.reprocessing.diff import ResultDiff
from ebbtide.reprocessing.events import ChunkFinished, RunFinished
from ebbtide.reprocessing.journal import (
    DONE,
    FAILED,
    ChunkReport,
    ReprocessRun,
    ReprocessSummary,
    hold_run,
    load_reports,
    save_report,
)
from ebbtide.reprocessing.logic import Logic
from ebbtide.reprocessing.ranges import Chunk

_POINTS = 500
"""Of a picture of results that have no windows."""


def run_chunks(
    logic: Logic, run: ReprocessRun, *, write: bool = True
) -> Iterator[ChunkFinished | RunFinished]:
    """Run the chunks that are not done yet; with `write` off, only compare, and leave no trace."""
    worker = _Worker(logic, run, write=write)
    with hold_run(logic.settings, run) if write else nullcontext():
        reports = load_reports(logic.settings, run) if write else {}
        reports = {n: report for n, report in reports.items() if report.status == DONE}
        todo = [chunk for chunk in run.chunks if chunk.number not in reports]
        with ThreadPoolExecutor(run.max_active) as pool:
            futures = [
                pool.submit(worker.work, chunk) for chunk in todo[:: -1 if run.backwards else 1]
            ]
            try:
                for future in as_completed(futures):
                    report = future.result()
                    reports[report.number] = report
                    yield ChunkFinished(report.without_rows(), len(reports), len(run.chunks))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                worker.cancel()
                raise
            finally:
                worker.close()
        summary = ReprocessSummary.of(run, reports, len(todo))
        if write and not summary.failed and not worker.publish(summary.diff):
            unwritten = tuple(replace(report, written=0) for report in summary.reports)
            summary = replace(summary, reports=unwritten)
        yield RunFinished(summary, executed=write)


class _Worker:
    """Runs chunks of one run."""

    def __init__(self, logic: Logic, run: ReprocessRun, *, write: bool) -> None:
        self.logic, self.run, self.write = logic, run, write
        archive = logic.archive
        name = archive.path.rstrip("/").rpartition("/")[2]
        self._by = streams.Provenance(run.id, f"{name}@{archive.version}")
        sink = logic.pipeline.sink
        self._sink = connector_of(sink).open_sink(sink, logic.settings)
        self._held_rows: DataFrame | None = None
        self._lock = Lock()

    def work(self, chunk: Chunk) -> ChunkReport:
        """Run one chunk and note what became of it."""
        try:
            report = self._run(chunk)
        except (PySparkException, Py4JError, EbbtideError, OSError) as error:
            report = ChunkReport(chunk.number, FAILED, error=_first_line(error))
        if self.write:
            save_report(self.logic.settings, self.run, report)
        return report

    def cancel(self) -> None:
        """Stop what is running; the journal knows what is done."""
        with suppress(Py4JError, OSError):  # the JVM may be gone
            self.logic.spark.sparkContext.cancelAllJobs()

    def publish(self, diff: ResultDiff) -> bool:
        """Where all chunks must appear at once: put them in place; False if nothing was to do."""
        spark, position = self.logic.spark, self.run.position
        if self.run.only_changed and not diff.differs:
            self._sink.discard(spark, self._by)
            return False
        try:
            replaced = replaced_range(self.logic.shape, self.run.owned)
            self._sink.publish(spark, self._by, replaced, position)
        except (PySparkException, Py4JError, OSError) as error:
            raise EbbtideError(
                f"All chunks are computed, but the table cannot be written: {_first_line(error)}",
                f"Fix that, then: ebbtide retry {self.run.id}",
            ) from None
        return True

    def _run(self, chunk: Chunk) -> ChunkReport:
        logic = self.logic
        # 5
        seen = Observation()
        new = logic.chunk_results(chunk, seen).persist()
        try:
            results = new.count()
            records, broken = _counted(seen, results)
            # 6
            compared = compare(new, self._held(new, chunk), logic.shape).persist()
            bucket = logic.shape.slide or self.run.owned.length / _POINTS
            diff = summarize_results(compared, find_measure(new, logic.shape), bucket)
            written = self._write(new, compared, chunk, results) if self.write else 0
            compared.unpersist()
        finally:
            new.unpersist()
        return ChunkReport(
            chunk.number,
            DONE,
            records=records,
            broken=broken,
            results=results,
            written=written,
            diff=diff,
        )

    def _held(self, new: DataFrame, chunk: Chunk) -> DataFrame:
        """What the output held of this chunk's results before the run."""
        logic = self.logic
        shape = logic.shape
        held = self._all_held(new.schema)
        own = held.where(belongs(shape, chunk.owns, first=chunk.number == 1))
        if shape.kind != "session" or shape.start is None:
            return own
        # sessions that a new one has swallowed are gone, wherever they began
        return own.unionByName(reaches_into(held, new, shape, ~belongs(shape, self.run.owned)))

    def _all_held(self, schema: StructType) -> DataFrame:
        """What the output held before the run, read once for all chunks."""
        with self._lock:
            if self._held_rows is None:
                self._held_rows = self._sink.read_held(
                    self.logic.spark, self.run.position, schema, self.run.id
                )
                if len(self.run.chunks) > 1:
                    self._held_rows.persist()
            return self._held_rows

    def close(self) -> None:
        """Free what was kept for all chunks."""
        if self._held_rows is not None:
            with suppress(Py4JError, OSError):
                self._held_rows.unpersist()

    def _write(self, new: DataFrame, compared: DataFrame, chunk: Chunk, results: int) -> int:
        is_replaced = connector_of(self.logic.pipeline.sink).sink.is_replaced
        # a range that is replaced as a whole needs the unchanged rows as well
        if self.run.only_changed and not is_replaced:
            new = only_changed(new, compared, self.logic.shape)
            results = new.count()
        if results or is_replaced:
            self._sink.write_chunk(new, self._by, chunk.number)
        return results


def _counted(seen: Observation, results: int) -> tuple[int, int]:
    """How many records were read, and how many of them broken."""
    try:
        counts = seen.get
    except Py4JError:
        if results:
            raise
        return 0, 0  # there was no file to read, and Spark left out the counting, too
    return int(counts["records"]), int(counts["broken"])


def _first_line(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    text = java.toString() if java is not None else str(error)
    return text.strip().splitlines()[0] if text.strip() else type(error).__name__
