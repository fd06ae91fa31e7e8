"""The commands `ebbtide jobs` and `run`, which list and run pipelines."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

from ebbtide import runtime
from ebbtide.cli import options
from ebbtide.cli.commands import command
from ebbtide.cli.output import log_line, prepare_run, rows_apart, show_json, show_table
from ebbtide.times import parse_time

if TYPE_CHECKING:
    from ebbtide.config import Settings
    from ebbtide.connectors import progress
    from ebbtide.pipeline import Pipeline


@command("ebbtide jobs")
def jobs(output: options.Output = options.OUTPUT) -> None:
    """List the built-in jobs."""
    from ebbtide.systems import READY, find_pipeline

    pipelines = {name: find_pipeline(name) for name in READY}
    if output == "json":
        show_json([_to_dict(*job) for job in pipelines.items()])
    else:
        columns = ("job", "reads", "writes", "watermark", "mode")
        show_table(columns, [_to_row(*job) for job in pipelines.items()], folds="writes")


def _to_dict(name: str, pipeline: Pipeline) -> dict[str, object]:
    return {
        "name": name,
        "source": str(pipeline.source),
        "sink": str(pipeline.sink),
        "watermark": pipeline.watermark,
        "output_mode": pipeline.output_mode,
        "scope": pipeline.scope,
    }


def _to_row(name: str, pipeline: Pipeline) -> list[str]:
    # almost all ends are topics, and the names of two fill a line
    ends = [str(end).removeprefix("topic ") for end in (pipeline.source, pipeline.sink)]
    mode = pipeline.output_mode if pipeline.scope == "stream" else "batch"
    return [name, *ends, pipeline.watermark or "", mode]


@command(
    "ebbtide run visits-windows-counter",
    "ebbtide run my_pipelines.py:clicks --available-now",
    "ebbtide run my_pipelines.py:clicks --profile latency",
    "ebbtide run visits-counter --master spark://host:7077 --home s3a://lake/ebbtide",
    "ebbtide run my_pipelines.py:clicks --kafka-config client.properties",
)
def run(
    query: options.QueryOptions,
    environment: options.Environment,
    pipeline: str = options.PIPELINE,
    profile: options.Profile | None = options.PROFILE,
    output: options.Output = options.OUTPUT,
) -> None:
    """Run a pipeline as a stream until Ctrl-C or SIGTERM.

    Both let the running batch finish.
    """
    from ebbtide.systems import find_pipeline

    chosen = find_pipeline(pipeline)
    if profile is not None:
        chosen = replace(chosen, profile=profile)
    stream_options = read_stream_options(query)
    settings = prepare_run(environment.settings, chosen, stream_options, broker=chosen.needs_broker)
    log_start(chosen.name, chosen.source, chosen.sink, settings.timezone)
    describe = partial(describe_late, reference=pipeline, pipeline=chosen, settings=settings)
    run_it = partial(runtime.run_stream, chosen, settings, stream_options)
    show_run(run_it, output, describe=describe)


def describe_late(
    late: progress.LateRecords, reference: str, pipeline: Pipeline | None, settings: Settings
) -> str:
    """How many records were too late for their results, and how to count them after all.

    `reference` is what to type for the pipeline; `pipeline` is None if it is not at hand.
    """
    from ebbtide.reprocessing import EventTimeRange, ReprocessRequest

    what = f"{late} late records are missing from results that were complete when they came"
    if pipeline is not None and (why := pipeline.why_no_range):
        return (
            f"{what}. A reprocess cannot add them: {pipeline.name} {why}. Use a longer watermark."
        )
    if late.times is None:
        return f"{what}. A reprocess of their event times counts them; a longer watermark waits."
    span = EventTimeRange(*map(parse_time, late.times))
    if pipeline is not None and pipeline.archive is None:
        return (
            f"{what}: {span}. Use a longer watermark; or give {pipeline.name} an archive, from "
            "which ebbtide reprocess counts such records."
        )
    command = ReprocessRequest(reference, span).command_line(settings)
    return f"{what}. With an archive (ebbtide archive {reference}), this counts them: {command}"


def read_stream_options(query: options.QueryOptions) -> runtime.StreamOptions:
    """Check the options of a query."""
    return runtime.StreamOptions(**{**asdict(query), "conf": query.read_conf()})


def log_start(name: str, source: object, sink: object, timezone: str) -> None:
    """Log what is about to run, and how to stop it."""
    log_line(
        f"{name}: {source} to {sink}, time zone {timezone}. "
        "Ctrl-C stops it after the running batch. Starting Spark …"
    )


def show_run(
    run: Callable[..., runtime.StreamResult],
    output: options.Output,
    rows: str = "rows",
    broken: str = "broken",
    describe: Callable[[progress.LateRecords], str] = str,
) -> None:
    """Run a query; log each batch in a line of text or JSON, and show what the query did.

    What `describe` says of late records is logged with the first and, if others came, at the end.
    """
    first: list[progress.LateRecords] = []

    def log_batch(batch: runtime.BatchReport) -> None:
        if output == "json":
            log_line(json.dumps(asdict(batch)))
            return
        started = batch.watermark and not batch.watermark.startswith("1970-01-01T00:00:00")
        watermark = f" · watermark {batch.watermark}" if started else ""
        dropped = batch.late if batch.late and batch.late.records else None
        late = f" · {dropped} late" if dropped else ""
        counts = f"{batch.rows:,} {rows} · {batch.broken:,} {broken}{late}"
        log_line(f"batch {batch.id} · {counts}{watermark} · {batch.duration_ms / 1000:.1f} s")
        if dropped and not first:
            first.append(dropped)
            log_line(describe(dropped))

    with rows_apart(output):
        result = run(on_batch=log_batch, say=log_line)
    if output == "json":
        show_json(asdict(result))
    last = result.last_batch
    when = "before a batch ran" if last is None else f"after batch {last}"
    log_line(f"Stopped {when}: {result.rows:,} {rows}, {result.broken:,} {broken}.")
    if result.late and result.late.records and [result.late] != first:
        log_line(describe(result.late))
