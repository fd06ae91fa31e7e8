"""The verbs of the public API; each does what the command of the same name does.

Modules are imported when a function is called, so that `import ebbtide` stays cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from ebbtide.config import Settings, SparkFlags, load_settings, make_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ebbtide.attaching import Attachment
    from ebbtide.checkpoint import Backup, Checkpoint
    from ebbtide.compatibility import CompatibilityReport
    from ebbtide.connectors import sources
    from ebbtide.pipeline import Pipeline
    from ebbtide.replaying import ReplayResult
    from ebbtide.reprocessing import events
    from ebbtide.rewind import RewindPlan
    from ebbtide.rewind import fork as forks
    from ebbtide.runtime import BatchReport, StreamResult

StrPath = str | PathLike[str]
Progress = Callable[[int, int], None]
"""Called with the number of files that are done, and the number of all."""


def _ignore(_done: int, _total: int) -> None:
    """Show no progress."""


def open_checkpoint(location: StrPath) -> Checkpoint:
    r"""Read the checkpoint at a path or fsspec URL.

    The result is a snapshot: open the checkpoint again to see what has changed since.

    >>> import fsspec
    >>> files = {
    ...     "metadata": '{"id":"7"}',
    ...     "offsets/0": 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n17',
    ...     "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
    ... }
    >>> memory = fsspec.filesystem("memory")
    >>> memory.pipe({f"/open/{path}": text.encode() for path, text in files.items()})
    >>> open_checkpoint("memory://open").logs.latest_committed.id
    0
    """
    from ebbtide.checkpoint import read_checkpoint

    return read_checkpoint(fspath(location))


def plan_rewind(
    checkpoint: Checkpoint | StrPath, *, settings: Settings | None = None, **flags: Any
) -> RewindPlan:
    r"""Plan a rewind; nothing is changed.

    `flags` are those of `ebbtide rewind`, with underscores: exactly one target (`to_batch`,
    `shift_by`, `to_datetime`, `by_duration`, `to_offsets`, `to_event_time`, `to_earliest`,
    `to_latest_good`), and `replan`, `sink`, `sink_table` (one, or a list), `sink_files`,
    `event_time_field`, `assume_stopped`. If Ebbtide does not run the query, name its sink, or pass
    `sink="none"` for one that accepts the same batches again; otherwise the plan is refused.
    `settings` name Kafka and the time zone; by default they come from the environment and from
    `ebbtide.toml`, as on the command line.

    >>> import fsspec
    >>> entry = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n17'
    >>> files = {"metadata": '{"id":"7"}', "offsets/0": entry}
    >>> memory = fsspec.filesystem("memory")
    >>> memory.pipe({f"/plan/{path}": text.encode() for path, text in files.items()})
    >>> plan = plan_rewind("memory://plan", to_earliest=True, sink="none", assume_stopped=True)
    >>> plan.first_batch, [check.name for check in plan.warnings]
    (0, ['not running', 'sink'])
    """
    from ebbtide import rewind

    settings = settings or load_settings()
    request = rewind.RewindRequest.parse(_locate(checkpoint), settings.timezone, **flags)
    return rewind.plan_rewind(request, connection=_connect(settings))


def apply_rewind(
    plan: RewindPlan,
    *,
    assume_stopped: bool = False,
    settings: Settings | None = None,
    on_file: Progress = _ignore,
) -> Backup:
    r"""Apply a plan, or finish one that was interrupted; return the backup for an undo.

    >>> import fsspec
    >>> entry = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n17'
    >>> commit = 'v1\n{"nextBatchWatermarkMs":0}'
    >>> files = {"metadata": '{"id":"7"}', "offsets/0": entry, "commits/0": commit}
    >>> memory = fsspec.filesystem("memory")
    >>> memory.pipe({f"/apply/{path}": text.encode() for path, text in files.items()})
    >>> plan = plan_rewind("memory://apply", to_batch=0, sink="none", assume_stopped=True)
    >>> apply_rewind(plan, assume_stopped=True).taken
    ('commits/0',)
    >>> undo_rewind("memory://apply", assume_stopped=True).action
    'undo'
    """
    from ebbtide import rewind

    connection = _connect(settings or load_settings())
    return rewind.apply_rewind(
        plan, connection=connection, assume_stopped=assume_stopped, on_file=on_file
    )


def undo_rewind(
    checkpoint: Checkpoint | StrPath,
    *,
    backup: str | None = None,
    leave_sink: bool = False,
    assume_stopped: bool = False,
    on_file: Progress = _ignore,
) -> Backup:
    """Go back to before the last rewind, or to a backup; return the backup of the present.

    Undoing an undo restores what was there before it. See `apply_rewind` for an example.
    """
    from ebbtide import rewind

    return rewind.undo_rewind(
        _locate(checkpoint),
        backup,
        leave_sink=leave_sink,
        assume_stopped=assume_stopped,
        on_file=on_file,
    )


def read_offsets(
    checkpoint: Checkpoint | StrPath,
    at_batch: int | None = None,
    *,
    settings: Settings | None = None,
) -> sources.QueryPosition:
    r"""Read where a query stands: as options of a new query, and as consumer-group offsets.

    By default that is where the next batch begins: where the last committed one ended. `at_batch`
    names another batch. Kafka is asked, if a broker is known, for partitions that were added.

    >>> import fsspec
    >>> entry = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n{"visits":{"0":17}}'
    >>> files = {"metadata": '{"id":"7"}', "offsets/0": entry, "commits/0": "v1\n{}"}
    >>> memory = fsspec.filesystem("memory")
    >>> memory.pipe({f"/place/{path}": text.encode() for path, text in files.items()})
    >>> position = read_offsets("memory://place")
    >>> position.batch, position.sources[0].options["startingOffsets"], position.csv
    (1, '{"visits":{"0":17}}', 'visits,0,17')
    """
    from ebbtide.connectors import sources

    contents = open_checkpoint(_locate(checkpoint))
    connection = _connect(settings or load_settings()) if contents.logs.reads_kafka else None
    return sources.read_position(contents, at_batch, connection)


def fork(
    checkpoint: Checkpoint | StrPath,
    new: StrPath,
    at_batch: int | None = None,
    *,
    offsets_only: bool = False,
    replan: bool = False,
    sink_files: StrPath | None = None,
    on_file: Progress = _ignore,
) -> forks.Fork:
    r"""Create a second checkpoint that starts with a batch of the first, which is only read.

    With `offsets_only` it begins where that batch does, by default the next one, but as batch 0 and
    without state: for code that cannot read the state. `sink_files` is the folder to which a job
    that `run` does not start will write files: it gets an empty log, without which Spark could not
    read it.

    >>> import fsspec
    >>> entry = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n17'
    >>> memory = fsspec.filesystem("memory")
    >>> memory.pipe({"/old/metadata": b'{"id":"7"}', "/old/offsets/0": entry.encode()})
    >>> fork("memory://old", "memory://new", at_batch=0).first_batch
    0
    """
    from ebbtide.connectors import SinkPlace
    from ebbtide.rewind import fork as forks

    places = SinkPlace.named({"--sink-files": [fspath(sink_files)] if sink_files else []})
    return forks.fork_checkpoint(
        _locate(checkpoint),
        fspath(new),
        at_batch,
        replan=replan,
        offsets_only=offsets_only,
        sink=next(iter(places), None),
        on_file=on_file,
    )


def check(
    checkpoint: Checkpoint | StrPath,
    build: Callable[[SparkSession], Any] | Pipeline | str,
    *,
    settings: Settings | None = None,
    spark: SparkSession | None = None,
    allow_missing: bool = False,
    **flags: Any,
) -> CompatibilityReport:
    """Check whether new code can go on from a checkpoint; nothing is run or changed.

    `build` is a function that takes the Spark session and returns a streaming DataFrame or a
    writer that was not started, a `Pipeline`, or the name of either as on the command line. `spark`
    is a session to plan with; by default the active one, or a new one with these `flags`: `master`,
    `conf`. With `allow_missing`, a query that has no checkpoint yet can start.

    >>> import fsspec
    >>> fsspec.filesystem("memory").makedirs("/never-ran", exist_ok=True)
    >>> check("memory://never-ran", lambda spark: spark.readStream.load())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ebbtide.errors.CheckpointError: There is no checkpoint at memory://never-ran yet, so any ...
    """
    from ebbtide.compatibility import check_query, find_missing, read_demands
    from ebbtide.systems import find_query

    location = _locate(checkpoint)
    if not (allow_missing and find_missing(location)):
        read_demands(location)  # refused before Spark starts
    return check_query(
        location,
        lambda: find_query(build) if isinstance(build, str) else build,
        settings or load_settings(),
        SparkFlags(**flags),
        spark or _active_session(),
        allow_missing=allow_missing,
    )


def run(
    pipeline: Pipeline | str,
    *,
    settings: Settings | None = None,
    on_batch: Callable[[BatchReport], None] = lambda _report: None,
    on_message: Callable[[str], None] = lambda _line: None,
    **flags: Any,
) -> StreamResult:
    """Run a pipeline as a stream until it ends, Ctrl-C or SIGTERM.

    `flags` are those of `ebbtide run`: `checkpoint`, `available_now`, `trigger`,
    `max_offsets_per_trigger`, `master`, `conf`, `archive_env`, `metrics_port`, `metrics_host`. A
    pipeline is a `Pipeline`, or named as on the command line.

    >>> run("visits-counter", available_now=True, trigger="20 seconds")
    Traceback (most recent call last):
    ebbtide.errors.UsageError: --available-now and --trigger exclude each other. Give one.
    """
    from ebbtide.runtime import StreamOptions, run_stream

    options, pipeline = StreamOptions(**flags), _find(pipeline)
    settings = _with_broker(pipeline, settings, options)
    return run_stream(pipeline, settings, options, on_batch=on_batch, say=on_message)


def replay(
    query: Pipeline | Callable[[SparkSession], Any] | str,
    *,
    settings: Settings | None = None,
    on_batch: Progress = _ignore,
    on_message: Callable[[str], None] = lambda _line: None,
    **flags: Any,
) -> ReplayResult:
    """Run rewound batches again as they were planned, and compare each with its first run.

    `query` is a `Pipeline`; a function that takes the Spark session and returns a streaming
    DataFrame or a writer that was not started; or the name of either as on the command line. For a
    function, `checkpoint` is needed.

    `flags` are those of `ebbtide replay`: `checkpoint`, `to_scratch`, `from_batch`, `to_batch`,
    `scratch`, `rows`, `master`, `conf`, `archive_env`.

    >>> replay("visits-counter", from_batch=3)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ebbtide.errors.UsageError: --from-batch, --to-batch and --scratch ...
    """
    from ebbtide.pipeline import Pipeline
    from ebbtide.replaying import ReplayOptions, replay_function, replay_pipeline
    from ebbtide.systems import find_code

    options, code = ReplayOptions(**flags), find_code(query)
    if isinstance(code, Pipeline):
        settings = _with_broker(code, settings, options)
        return replay_pipeline(code, settings, options, on_batch=on_batch, say=on_message)
    settings = settings or load_settings()
    return replay_function(code, settings, options, on_batch=on_batch, say=on_message)


def reprocess(
    pipeline: Pipeline | str,
    event_time_start: datetime | str,
    event_time_end: datetime | str,
    *,
    settings: Settings | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    archive_env: StrPath | None = None,
    **flags: Any,
) -> Iterator[events.ReprocessEvent]:
    """Run a pipeline's logic over an archived range of event time; yield events on the way.

    Without `execute=True` or `compare=True` only a plan is made. `flags` are those of
    `ebbtide reprocess`: `execute`, `compare`, `only_changed`, `chunk`, `max_active`,
    `run_backwards`.

    >>> reprocess("visits-counter", "2025-09-04T08:00", "2025-09-04T07:00")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ebbtide.errors.UsageError: The range starts at 2025-09-04T08:00:00.000Z and ends at ...
    """
    from ebbtide import reprocessing as core

    settings = settings or load_settings()
    # the command line could not find an object again
    reference = pipeline if isinstance(pipeline, str) else ""
    start, end = (
        at if isinstance(at, str) else at.isoformat() for at in (event_time_start, event_time_end)
    )
    request = core.ReprocessRequest.parse(settings, reference, start, end, **flags)
    setup = core.SparkSetup(master=master, conf=conf or {}, archive_env=archive_env)
    return core.reprocess(request, settings, _find(pipeline), setup)


def attach(
    target: Any,
    *,
    checkpoint: StrPath | None = None,
    metrics_port: int | None = None,
    metrics_host: str | None = None,
    **hooks: Any,
) -> Attachment:
    """Follow the streaming queries of a program of your own.

    `target` is a SparkSession, for all of its queries, or one StreamingQuery. Each batch is then
    recorded in the checkpoint's history; the checkpoint has a lease, so that nothing changes it
    while the query runs; and a rewind knows where the query writes. The query never waits for this,
    and never fails because of it: problems are logged as warnings (`ebbtide.attach`), or passed to
    `on_message`. `checkpoint` is only needed for a query of Spark Connect that runs already.

    >>> attach("a session")
    Traceback (most recent call last):
    ebbtide.errors.UsageError: attach needs a SparkSession or a StreamingQuery, not str. Type: \
ebbtide.attach(spark)
    """
    from ebbtide import attaching

    location = None if checkpoint is None else fspath(checkpoint)
    return attaching.attach(
        target,
        checkpoint=location,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        **hooks,
    )


def observe(rows: DataFrame, event_time: str | None = None) -> DataFrame:
    """Let a query report more of each batch; the rows stay as they are.

    With `event_time`, a timestamp column, it is the earliest and the latest event time: put it
    around the source. A query with a watermark reports these anyway. Without, it is the number and
    a digest of the rows, by which a replay is compared: put it around what is written. Spark allows
    each once in a query.
    """
    from ebbtide import attaching

    return attaching.observe(rows, event_time)


def _locate(checkpoint: Checkpoint | StrPath) -> str:
    return fspath(checkpoint) if isinstance(checkpoint, str | PathLike) else checkpoint.location


def _active_session() -> SparkSession | None:
    import sys

    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _find(pipeline: Pipeline | str) -> Pipeline:
    from ebbtide.systems import find_pipeline

    return find_pipeline(pipeline) if isinstance(pipeline, str) else pipeline


def _connect(settings: Settings) -> Any:
    from ebbtide.local import require_connection

    return require_connection(settings)


def _with_broker(pipeline: Pipeline, settings: Settings | None, flags: SparkFlags) -> Settings:
    """Settings that name a broker: the given one, or the embedded one, started if needed."""
    from ebbtide.local import start_broker
    from ebbtide.runtime import cluster

    settings = settings or load_settings()
    flags = cluster.check_spark(pipeline, flags)
    make_folder(settings.home, "--home")
    if not pipeline.needs_broker or settings.names_kafka:
        return settings
    cluster.require_broker_of_cluster(flags.master, settings)
    return settings.use_embedded(start_broker(settings.broker).bootstrap_servers)
