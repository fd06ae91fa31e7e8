"""Run the chunks of a reprocess and compare their results with the output (steps 5 to 7).

**5** run each chunk with the stream's transform; **6** compare its results with what the output
holds: unchanged, changed, new, gone; **7** summarize, with the retry command if a chunk failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext, suppress
from dataclasses import replace
from threading import Lock

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation

from ebbtide.connectors import connector_of, streams
from ebbtide.errors import EbbtideError, mask
from ebbtide.reprocessing import compare, journal
from ebbtide.reprocessing.diff import ResultDiff
from ebbtide.reprocessing.events import ChunkFinished, RunFinished
from ebbtide.reprocessing.journal import DONE, FAILED, ChunkReport, ReprocessRun
from ebbtide.reprocessing.logic import Logic
from ebbtide.reprocessing.ranges import Chunk

_POINTS = 500
"""The number of points in a plot of results without windows."""


def run_chunks(
    logic: Logic, run: ReprocessRun, *, write: bool = True, alone: bool = False
) -> Iterator[ChunkFinished | RunFinished]:
    """Run the chunks that are not done yet; without `write`, only compare and keep no journal."""
    worker = _Worker(logic, run, write=write)
    if write:
        worker.require_safe()
    held = journal.hold_run(logic.settings, run, alone=alone)
    with held if write else nullcontext(journal.nothing) as worker.require_ours:
        reports = journal.load_reports(logic.settings, run) if write else {}
        reports = {n: report for n, report in reports.items() if report.status == DONE}
        todo = [chunk for chunk in run.chunks if chunk.number not in reports]
        ordered = todo[::-1] if run.backwards else todo
        with ThreadPoolExecutor(run.max_active) as pool:
            futures = [pool.submit(worker.work, chunk) for chunk in ordered]
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
        summary = journal.ReprocessSummary.of(run, reports, len(todo))
        if write and not summary.failed and not worker.publish(summary.diff):
            unwritten = tuple(replace(report, written=0) for report in summary.reports)
            summary = replace(summary, reports=unwritten)
        yield RunFinished(summary, executed=write)


class _Worker:
    def __init__(self, logic: Logic, run: ReprocessRun, *, write: bool) -> None:
        self.logic, self.run, self.write = logic, run, write
        archive, sink = logic.archive, logic.pipeline.sink
        name = archive.path.rstrip("/").rpartition("/")[2]
        self._by = streams.Provenance(run.id, f"{name}@{archive.version}")
        self._connector = connector_of(sink)
        self._sink = self._connector.open_sink(sink, logic.settings)
        self._held_rows: DataFrame | None = None
        self.require_ours: Callable[[], None] = journal.nothing
        """Called before anything is written, to raise if the run is another process's by now."""
        self._lock = Lock()

    def require_safe(self) -> None:
        """Refuse an output on which the stream and we could undo each other's work."""
        if (check := self._sink.check_writers(self.logic.spark)) is not None:
            raise EbbtideError(f"Nothing is written: {check.detail}.", check.next)

    def work(self, chunk: Chunk) -> ChunkReport:
        """Run one chunk and record how it ended."""
        try:
            report = self._run(chunk)
        except (PySparkException, Py4JError, EbbtideError, OSError) as error:
            report = ChunkReport(chunk.number, FAILED, error=_first_line(error))
        if self.write:
            self.require_ours()
            journal.save_report(self.logic.settings, self.run, report)
        return report

    def cancel(self) -> None:
        """Stop the running jobs; the journal has what is done."""
        with suppress(Py4JError, OSError):  # the JVM may be gone
            self.logic.spark.sparkContext.cancelAllJobs()

    def publish(self, diff: ResultDiff) -> bool:
        """Put results in place that must appear at once; False if there was nothing to do."""
        spark, run = self.logic.spark, self.run
        self.require_ours()
        if run.only_changed and not diff.differs:
            self._sink.discard(spark, self._by)
            return False
        try:
            replaced = compare.replaced_range(self.logic.shape, run.owned)
            self._sink.publish(spark, self._by, replaced, run.position)
        except (PySparkException, Py4JError, OSError) as error:
            raise EbbtideError(
                f"All chunks are computed, but the table cannot be written: {_first_line(error)}",
                f"Fix that, then: {run.retry_line}",
            ) from None
        return True

    def _run(self, chunk: Chunk) -> ChunkReport:
        logic, shape, seen = self.logic, self.logic.shape, Observation()
        # 5
        new = logic.chunk_results(chunk, seen).persist()
        try:
            results = new.count()
            records, broken = _counted(seen, results)
            # 6
            compared = compare.compare_rows(new, self._held(new, chunk), shape).persist()
            bucket = shape.slide or self.run.owned.length / _POINTS
            measure = compare.find_measure(new, shape)
            diff = compare.summarize_results(compared, measure, bucket)
            written = self._write(new, compared, chunk, results) if self.write else 0
            compared.unpersist()
        finally:
            new.unpersist()
        return ChunkReport(chunk.number, DONE, records, broken, results, written, diff)

    def _held(self, new: DataFrame, chunk: Chunk) -> DataFrame:
        """What the output held of this chunk's results before the run."""
        shape, run = self.logic.shape, self.run
        with self._lock:  # read once for all chunks
            if self._held_rows is None:
                self._held_rows = self._sink.read_held(
                    self.logic.spark, run.position, new.schema, run.id
                )
                if len(run.chunks) > 1:
                    self._held_rows.persist()
            held = self._held_rows
        own = held.where(compare.belongs(shape, chunk.owns, first=chunk.number == 1))
        if shape.kind != "session" or shape.start is None:
            return own
        # sessions that became part of a new one are gone, wherever they began
        outside = ~compare.belongs(shape, run.owned)
        return own.unionByName(compare.reaches_into(held, new, shape, outside))

    def close(self) -> None:
        """Free the held rows."""
        if self._held_rows is not None:
            with suppress(Py4JError, OSError):
                self._held_rows.unpersist()

    def _write(self, new: DataFrame, compared: DataFrame, chunk: Chunk, results: int) -> int:
        is_replaced = self._connector.sink.is_replaced
        # a range that is replaced as a whole needs the unchanged rows as well
        if self.run.only_changed and not is_replaced:
            new = compare.only_changed(new, compared, self.logic.shape)
            results = new.count()
        if results or is_replaced:
            self.require_ours()
            self._sink.write_chunk(new, self._by, chunk.number)
        return results


def _counted(seen: Observation, results: int) -> tuple[int, int]:
    """The number of records that were read, and how many of them are broken."""
    try:
        counts = seen.get
    except Py4JError:
        if results:
            raise
        counts = {}
    if not counts and not results:
        return 0, 0  # without a file to read, Spark does not count either
    return int(counts["records"]), int(counts["broken"])


def _first_line(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    text = java.toString() if java is not None else str(error)
    return mask(text).strip().splitlines()[0] if text.strip() else type(error).__name__
