"""Reprocess a range of event time beside the running stream, or retry the missing chunks.

Both are generators of events, so nothing happens while the caller handles an event. A caller that
does not want the plan carried out closes the generator.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from ebbtide.config import Settings, SparkFlags, make_folder
from ebbtide.errors import BrokerError, EbbtideError, UsageError, first_line
from ebbtide.pipeline import Pipeline
from ebbtide.reprocessing import events
from ebbtide.reprocessing.events import ReprocessEvent, ReprocessEvents
from ebbtide.reprocessing.journal import (
    DONE,
    ReprocessRun,
    create_run,
    load_reports,
    retry_flags,
)
from ebbtide.reprocessing.ranges import require_range
from ebbtide.reprocessing.request import ReprocessRequest
from ebbtide.warm_jvm import WarmUse, open_session

if TYPE_CHECKING:
    from ebbtide.archive import Archive
    from ebbtide.reprocessing.logic import Logic

_NICENESS = 5
"""0 is the default, 19 the lowest priority."""


@dataclass(frozen=True, kw_only=True)
class SparkSetup(SparkFlags):
    """The Spark that runs a reprocess."""

    fetch_jars: Callable[[], None] | None = None
    """Downloads missing jars and shows the progress; by default they are downloaded silently."""
    warm: WarmUse | None = None
    """Whether to borrow a warm JVM and leave one; a program has its own and does not."""


def reprocess(
    request: ReprocessRequest,
    settings: Settings,
    pipeline: Pipeline,
    spark: SparkSetup = SparkSetup(),  # noqa: B008 - frozen
) -> ReprocessEvents:
    """Plan a reprocess and, depending on the request's mode, compare or write its results.

    Events: `RangeRequested`, `SparkStarting`, `ReprocessPlanned`; in mode `plan` then `PlanRefused`
    if it could not be carried out; otherwise `RunStarted` if results are written, `ChunkFinished`
    for each chunk, and `RunFinished`. Any other end is raised as an `EbbtideError`.
    """
    require_range(pipeline)
    yield events.RangeRequested(pipeline.name, request.asked, settings.timezone)
    settings, archive, spark = _prepare(pipeline, settings, None, spark)
    yield events.SparkStarting()
    with _open_logic(pipeline, settings, archive, spark) as logic:
        from ebbtide.reprocessing.plan import plan_reprocess
        from ebbtide.reprocessing.run import run_chunks

        plan = plan_reprocess(logic, request)
        yield events.ReprocessPlanned(plan)
        if request.mode == "plan":
            if plan.refusal is not None:
                yield events.PlanRefused(plan.refusal)
            return
        plan.require()
        run = plan.begin(retry_flags(settings))
        if request.mode == "compare":
            yield from run_chunks(logic, run, write=False)
            return
        create_run(settings, run)
        with _interruptible(run):
            yield events.RunStarted(run)
            yield from run_chunks(logic, run, alone=True)  # nobody else knows its name


def retry(
    run: ReprocessRun,
    settings: Settings,
    pipeline: Pipeline,
    spark: SparkSetup = SparkSetup(),  # noqa: B008 - frozen
    *,
    assume_stopped: bool = False,
) -> ReprocessEvents:
    """Run the chunks of a run that failed or were not started, over the same archive version.

    `assume_stopped` says that no other process works on the run, where a store cannot tell.
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
    yield events.RunStarted(run, len(done), resumed=True)
    settings, archive, spark = _prepare(pipeline, settings, run.archive_version, spark)
    yield events.SparkStarting()
    with _open_logic(pipeline, settings, archive, spark) as logic:
        from ebbtide.reprocessing.run import run_chunks

        if (shape := logic.shape.describe()) != run.shape:
            raise EbbtideError(
                f"Pipeline {run.pipeline} had {run.shape} when the run began, and has {shape} now.",
                "Start a new reprocess.",
            )
        with _interruptible(run):
            yield from run_chunks(logic, run, alone=assume_stopped)


def follow(running: ReprocessEvents, show: Callable[[ReprocessEvent], None]) -> None:
    """Show each event; Ctrl-C while one is shown also ends the reprocess cleanly."""
    with closing(running):
        for event in running:
            try:
                show(event)
            except KeyboardInterrupt as interrupt:  # noqa: PERF203 - it is for the generator
                running.throw(interrupt)


def _prepare(
    pipeline: Pipeline, settings: Settings, version: int | None, options: SparkSetup
) -> tuple[Settings, Archive, SparkSetup]:
    """Check all that needs no Spark; returns settings that name a broker, and a Spark to start."""
    from ebbtide.archive import read_archive
    from ebbtide.connectors import connector_of
    from ebbtide.connectors.kafka import require_brokers
    from ebbtide.local import find_connection
    from ebbtide.runtime import cluster, java

    locations = _find_locations(pipeline, settings)
    options = cluster.check_start(pipeline, options, locations)
    make_folder(settings.home, "--home")
    archive = read_archive(pipeline, settings, version)
    if pipeline.needs_broker:
        cluster.require_broker_of_cluster(options.master, settings)
        if (connection := find_connection(settings)) is None:
            raise BrokerError.not_running()
        settings = replace(settings, bootstrap_servers=connection.address)
    require_brokers(settings, pipeline.endpoints)
    connector_of(pipeline.sink).sink.position(pipeline, settings)
    if not cluster.is_submitted() and java.missing_jars("spark"):
        (options.fetch_jars or partial(java.resolve_jars, "spark"))()
    if cluster.is_local(cluster.find_master(options.master)):
        # other processes on this machine, above all the live stream, take precedence
        priority = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, max(priority, _NICENESS))
    return settings, archive, options


def _find_locations(pipeline: Pipeline, settings: Settings) -> dict[str, str]:
    from ebbtide.archive import archive_of
    from ebbtide.runtime import cluster

    archive = settings.table(archive_of(pipeline)[1].path)
    journal = settings.location("runs")
    return cluster.find_locations(pipeline, settings, archive=archive, journal=journal)


@contextmanager
def _open_logic(
    pipeline: Pipeline, settings: Settings, archive: Archive, options: SparkSetup
) -> Iterator[Logic]:
    """The pipeline over its archive in its own session; errors of Spark become ours."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from ebbtide.reprocessing.logic import Logic

    name, conf = f"{pipeline.name}-reprocess", dict(options.conf)
    with open_session(
        name,
        settings,
        options.warm,
        master=options.master,
        conf=conf,
        wanted=pipeline.conf,
        transform=pipeline.transform,
        locations=_find_locations(pipeline, settings).values(),
    ) as spark:
        try:
            yield Logic.of(spark, pipeline, settings, archive)
        except (PySparkException, Py4JError) as error:
            why = first_line(error)
            raise EbbtideError(
                f"Spark cannot run {pipeline.name} over the archive: {why}.",
                f"Details: {settings.logs / f'{name}.log'}",
            ) from None


@contextmanager
def _interruptible(run: ReprocessRun) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise EbbtideError("Interrupted.", f"To continue: {run.retry_line}") from None
