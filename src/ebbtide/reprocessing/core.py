"""Reprocess a range of event time beside the running stream, or retry what is missing.

Both are generators of events. Nothing happens between two events while the caller looks at one;
a caller that does not want what is planned closes the generator.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ebbtide.config import Settings, make_folder
from ebbtide.errors import BrokerError, EbbtideError, UsageError
from ebbtide.pipeline import Pipeline
from ebbtide.reprocessing.events import (
    PlanRefused,
    RangeRequested,
    ReprocessEvent,
    ReprocessPlanned,
    RunStarted,
    SparkStarting,
)
from ebbtide.reprocessing.journal import DONE, ReprocessRun, create_run, load_reports
from ebbtide.reprocessing.ranges import require_range
from ebbtide.reprocessing.request import ReprocessRequest

if TYPE_CHECKING:
    from ebbtide.archive import Archive
    from ebbtide.reprocessing.logic import Logic

_POLITE = 5
"""The priority of a nice process; 0 is usual, 19 is for what may starve."""


@dataclass(frozen=True)
class SparkSetup:
    """With which Spark a reprocess runs."""

    master: str | None = None
    """The local machine if none is named."""
    conf: Mapping[str, str] = field(default_factory=dict)
    fetch_jars: Callable[[], None] | None = None
    """Fetches the JVM side's jars, if some are missing and it is to be watched."""


ReprocessEvents = Generator[ReprocessEvent, None, None]


def reprocess(
    request: ReprocessRequest,
    settings: Settings,
    pipeline: Pipeline,
    spark: SparkSetup = SparkSetup(),  # noqa: B008 - frozen
) -> ReprocessEvents:
    """Plan a reprocess and, as the request's mode says, compare or write its results.

    Events: `RangeRequested`, `SparkStarting`, `ReprocessPlanned`; of a plan alone `PlanRefused` if
    it could not be carried out; else `RunStarted` if results are written, a `ChunkFinished` for
    each chunk, and `RunFinished`. Whatever else ends it is raised as an `EbbtideError`.
    """
    require_range(pipeline)
    yield RangeRequested(pipeline.name, request.asked, settings.timezone)
    settings, archive = _prepare(pipeline, settings, None, spark)
    yield SparkStarting()
    with _open_logic(pipeline, settings, archive, spark) as logic:
        from ebbtide.reprocessing.plan import plan_reprocess
        from ebbtide.reprocessing.run import run_chunks

        plan = plan_reprocess(logic, request)
        yield ReprocessPlanned(plan)
        if request.mode == "plan":
            if plan.refusal is not None:
                yield PlanRefused(plan.refusal)
            return
        plan.require()
        run, executed = plan.begin(), request.mode == "execute"
        if not executed:
            yield from run_chunks(logic, run, write=False)
            return
        create_run(settings, run)
        with _interruptible(run):
            yield RunStarted(run)
            yield from run_chunks(logic, run)


def retry(
    run: ReprocessRun,
    settings: Settings,
    pipeline: Pipeline,
    spark: SparkSetup = SparkSetup(),  # noqa: B008 - frozen
) -> ReprocessEvents:
    """Run the chunks of a run that failed or were not reached, over the same archive version.

    Events: `RunStarted`, `SparkStarting`, `ChunkFinished` for each chunk, `RunFinished`.
    """
    if settings.bootstrap_servers not in (None, run.servers):
        raise UsageError(
            f"Run {run.id} wrote to {run.servers or 'the embedded broker of its home'}, "
            f"not to {settings.bootstrap_servers}.",
            "Leave out --bootstrap-servers, or start a new reprocess.",
        )
    settings = replace(settings, timezone=run.zone, bootstrap_servers=run.servers)
    done = [report for report in load_reports(settings, run).values() if report.status == DONE]
    yield RunStarted(run, len(done), resumed=True)
    settings, archive = _prepare(pipeline, settings, run.archive_version, spark)
    yield SparkStarting()
    with _open_logic(pipeline, settings, archive, spark) as logic:
        from ebbtide.reprocessing.run import run_chunks

        if (shape := logic.shape.describe()) != run.shape:
            raise EbbtideError(
                f"Pipeline {run.pipeline} had {run.shape} when the run began, and has {shape} now.",
                "Start a new reprocess.",
            )
        with _interruptible(run):
            yield from run_chunks(logic, run)


def follow(events: ReprocessEvents, show: Callable[[ReprocessEvent], None]) -> None:
    """Show each event; Ctrl-C while one is shown ends the reprocess in order, too."""
    with closing(events):
        for event in events:
            try:
                show(event)
            except KeyboardInterrupt as interrupt:  # noqa: PERF203 - it is for the generator
                events.throw(interrupt)


def _prepare(
    pipeline: Pipeline, settings: Settings, version: int | None, options: SparkSetup
) -> tuple[Settings, Archive]:
    """All that is refused before Spark is started, and settings that name a broker."""
    from ebbtide.archive import read_archive
    from ebbtide.connectors import connector_of
    from ebbtide.connectors.kafka import require_broker
    from ebbtide.runtime import java

    make_folder(settings.home, "--home")
    archive = read_archive(pipeline, settings, version)
    if pipeline.topics:
        settings = _name_broker(settings)
        require_broker(settings.kafka)
    connector_of(pipeline.sink).sink.position(pipeline, settings)
    if java.missing_jars():
        (options.fetch_jars or java.resolve_jars)()
    if options.master is None or options.master.startswith("local"):
        # the others on this machine, above all the live stream, go first
        priority = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, max(priority, _POLITE))
    return settings, archive


def _name_broker(settings: Settings) -> Settings:
    if settings.bootstrap_servers:
        return settings
    from ebbtide.local import find_broker

    if (broker := find_broker(settings.broker)) is None:
        raise BrokerError.not_running()
    return replace(settings, bootstrap_servers=broker.bootstrap_servers)


@contextmanager
def _open_logic(
    pipeline: Pipeline, settings: Settings, archive: Archive, options: SparkSetup
) -> Iterator[Logic]:
    """The pipeline over its archive in a session of its own; what Spark says becomes our error."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from ebbtide.reprocessing.logic import Logic
    from ebbtide.runtime import open_session

    name, conf = f"{pipeline.name}-reprocess", dict(options.conf)
    with open_session(
        name, settings, master=options.master, conf=conf, wanted=pipeline.conf
    ) as spark:
        try:
            yield Logic.of(spark, pipeline, settings, archive)
        except (PySparkException, Py4JError) as error:
            first_line = str(error).strip().splitlines()[0].rstrip(".")
            raise EbbtideError(
                f"Spark cannot run {pipeline.name} over the archive: {first_line}.",
                f"Details: {settings.logs / f'{name}.log'}",
            ) from None


@contextmanager
def _interruptible(run: ReprocessRun) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise EbbtideError("Interrupted.", f"To go on: ebbtide retry {run.id}") from None
