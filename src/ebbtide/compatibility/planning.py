"""Have Spark plan a query without running it, as `explain` does, and describe the plan.

From Spark 4.0 on, planning a batch writes the names and schemas of the stateful operators to the
checkpoint, after comparing them with what is there. So the query is planned twice, each time for a
folder of our own: one that is empty, from which we read what the new query would keep, and one that
holds a copy of the checkpoint's metadata, to see whether Spark itself refuses. Spark 3.5 does both
in the tasks of a batch; there the schemas are taken from the plan's operators.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ebbtide.checkpoint import Checkpoint
from ebbtide.compatibility import old_plans
from ebbtide.compatibility.demands import CheckpointDemands
from ebbtide.compatibility.operators import OperatorState, read_operators
from ebbtide.compatibility.planned import PlannedOperator, PlannedQuery, TimeWindow
from ebbtide.compatibility.plans import (
    Lineage,
    class_of,
    find_sources,
    find_watermarks,
    key_attributes,
    walk,
)
from ebbtide.compatibility.writers import Written
from ebbtide.errors import first_line
from ebbtide.runtime import failures, versions
from ebbtide.storage import open_folder

_STREAMING = "org.apache.spark.sql.execution.streaming"
_PARTITIONS = "spark.sql.shuffle.partitions"
_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_V4_0, _V4_1 = versions.SparkVersion((4, 0)), versions.SparkVersion((4, 1))
_MODES = {"append": "Append", "update": "Update", "complete": "Complete"}


class Planner:
    """Plans one query for one checkpoint; `session` is a clone with the checkpoint's settings."""

    def __init__(self, spark: SparkSession, demands: CheckpointDemands) -> None:
        self.spark, self.demands = spark, demands
        self.jvm: Any = spark.sparkContext._jvm
        self.version = versions.SparkVersion.parse(spark.version)
        self._inner = self.version >= _V4_1
        seq = f"{_STREAMING}.checkpointing" if self._inner else _STREAMING
        self._metadata = self._module(f"{seq}.OffsetSeqMetadata")

    def plan(
        self, rows: DataFrame, written: Written, checkpoint: Checkpoint | None
    ) -> PlannedQuery:
        """Describe a query that has not been started; without a checkpoint, its first start."""
        analyzed = rows._jdf.queryExecution().analyzed()
        mode = written.output_mode or self._guess_mode(analyzed)
        refusal = self._find_refusal(analyzed, mode)
        lineage = Lineage(analyzed)
        operators: list[PlannedOperator] = []
        own_check = None
        if refusal is None:
            try:
                operators = self._plan_operators(analyzed, mode, lineage)
            except (Py4JJavaError, PySparkException) as error:
                refusal = _explain(error)
        if refusal is None and checkpoint is not None and self.version >= _V4_0:
            own_check = self._ask_spark(analyzed, mode, checkpoint)
        conf = self.spark.conf
        names = self.demands.conf
        return PlannedQuery(
            spark=str(self.version),
            sources=tuple(find_sources(analyzed)),
            operators=tuple(operators),
            watermarks=find_watermarks(self.jvm, analyzed),
            source_columns=frozenset(lineage.columns),
            key_choices=frozenset(lineage.key_choices),
            output_mode=written.output_mode,
            sink=written.sink,
            conf={name: value for name in names if (value := conf.get(name, None)) is not None},
            partitions=int(conf.get(_PARTITIONS) or 200),
            format_version=int(conf.get(_FORMAT, "1") or 1),
            refusal=refusal,
            own_check=own_check,
            is_pipeline=written.is_pipeline,
            functions=tuple(sorted({*lineage.functions, *written.functions})),
        )

    def _guess_mode(self, analyzed: Any) -> str:
        """An output mode that Spark accepts, where the function returned rows only."""
        for mode in _MODES:
            if self._find_refusal(analyzed, mode) is None:
                return mode
        return "append"

    def _find_refusal(self, analyzed: Any, mode: str) -> str | None:
        """Why Spark does not run such a plan as a stream with this output mode."""
        checker = self._module("org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker")
        try:
            checker.checkForStreaming(analyzed, self._mode(mode))
        except (Py4JJavaError, PySparkException) as error:
            return _explain(error)
        return None

    def _plan_operators(self, analyzed: Any, mode: str, lineage: Lineage) -> list[PlannedOperator]:
        """The stateful operators, in order of their ids, and what each would keep."""
        with _scratch() as folder:
            _plan_batches(folder, 0)
            planned = self._execute(analyzed, mode, folder, batch=0)
            nodes = {
                int(node.stateInfo().get().operatorId()): node
                for node in walk(planned)
                if _keeps_state(node)
            }
            states: Iterable[OperatorState]
            if self.version >= _V4_0:
                states = read_operators(opened := open_folder(str(folder)), opened.scan())
            else:
                states = [old_plans.describe(self.jvm, id_, nodes[id_]) for id_ in sorted(nodes)]
            return [_describe(state, nodes.get(state.id), lineage) for state in states]

    def _ask_spark(self, analyzed: Any, mode: str, checkpoint: Checkpoint) -> str | None:
        """Why Spark itself refuses the state's metadata; None if it does not."""
        with _scratch() as folder:
            _copy_metadata(checkpoint, folder)
            try:
                self._execute(analyzed, mode, folder, batch=self.demands.next_batch)
            except (Py4JJavaError, PySparkException) as error:
                return _explain(error)
        return None

    def _execute(self, analyzed: Any, mode: str, folder: Path, batch: int) -> Any:
        """The physical plan of a batch, as a start of the query would plan its first one."""
        session = self.spark._jsparkSession.cloneSession()
        metadata = self._metadata.apply(self.demands.metadata)
        state = session.sessionState().conf()
        self._metadata.setSessionConf(metadata, state if self.version >= _V4_0 else session.conf())
        for name in ("adaptive.enabled", "cbo.enabled"):  # as for every stream
            state.setConfString(f"spark.sql.{name}", "false")
        inner = f"{_STREAMING}.runtime" if self._inner else _STREAMING
        uuid, none = self.jvm.java.util.UUID.randomUUID(), self._module("scala.None")
        propagator = self._module(f"{inner}.WatermarkPropagator").noop()
        arguments = [session, analyzed, self._mode(mode), _state_of(folder), uuid, uuid, batch]
        arguments += [none, metadata, propagator]
        execution = getattr(self.jvm, f"{inner}.IncrementalExecution")
        if self.version >= _V4_0:
            arguments.append(True)
            # what newer versions take besides, they have defaults for
            (constructor,) = self.jvm.java.lang.Class.forName(execution._fqn).getConstructors()
            others = range(len(arguments) + 1, constructor.getParameterCount() + 1)
            arguments += [getattr(execution, f"$lessinit$greater$default${n}")() for n in others]
        return execution(*arguments).executedPlan()

    def _mode(self, mode: str) -> Any:
        return getattr(self.jvm.org.apache.spark.sql.streaming.OutputMode, _MODES[mode])()

    def _module(self, name: str) -> Any:
        """A Scala object."""
        return getattr(getattr(self.jvm, f"{name}$"), "MODULE$")


def _keeps_state(node: JavaObject) -> bool:
    """Whether a physical operator has an id of its own; a restore shares that of its save."""
    kind = class_of(node)
    return kind in old_plans.OPERATORS or kind.startswith("TransformWithState")


def _describe(state: OperatorState, node: Any, lineage: Lineage) -> PlannedOperator:
    attributes = key_attributes(node) if node is not None else []
    windows = [lineage.window_of(attribute) for attribute in attributes]
    known: list[TimeWindow] = [window for window in windows if window is not None]
    if not known and state.windows:
        # a session is no part of the key, and the optimizer may have replaced an attribute
        kinds = {kind for kind, _ in state.windows}
        fitting = [window for window in lineage.windows if window.kind in kinds]
        known = fitting if len(set(fitting)) == 1 else []
    columns = tuple(lineage.resolve(attribute) for attribute in attributes)
    return PlannedOperator(state, columns, tuple(known))


@contextmanager
def _scratch() -> Iterator[Path]:
    folder = Path(mkdtemp(prefix="ebbtide-check-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copy_metadata(checkpoint: Checkpoint, folder: Path) -> None:
    """Copy what Spark notes about operators and schemas, with the new place in absolute paths."""
    (folder / "state").mkdir()
    planned = {batch.id for batch in checkpoint.logs.batches}
    _plan_batches(folder, *planned | {checkpoint.logs.next_id})
    for directory, listing in checkpoint.tree.items():
        parts = directory.split("/")
        if parts[0] != "state" or not {"_metadata", "_stateSchema"} & set(parts):
            continue
        target = folder / directory
        target.mkdir(parents=True, exist_ok=True)
        for name in listing.names:
            if name.startswith(".") or not (
                content := checkpoint.folder.read_bytes(f"{directory}/{name}")
            ):
                continue
            if "_metadata" in parts and name != "schema":
                text = content.decode("utf-8", "surrogateescape")
                content = _move_paths(text, _state_of(folder)).encode("utf-8", "surrogateescape")
            (target / name).write_bytes(content)


def _plan_batches(folder: Path, *batches: int) -> None:
    """Let batches be in the log of offsets: Spark looks at their names when it plans one."""
    (folder / "offsets").mkdir()
    for batch in batches:
        (folder / "offsets" / str(batch)).touch()


def _state_of(folder: Path) -> str:
    """The state in a folder of ours as Spark takes it: elsewhere a bare path may be one of HDFS."""
    return f"file://{folder}/state"


def _move_paths(text: str, state: str) -> str:
    r"""Replace where a checkpoint's state lies in paths, however Spark has spelled it.

    >>> _move_paths('["file:/a/state/0/_stateSchema/default/0_1"]', "file:///b/state")
    '["file:///b/state/0/_stateSchema/default/0_1"]'
    """
    return re.sub(r'"[^"]*?/state/(\d+/_stateSchema/)', rf'"{state}/\1', text)


def _explain(error: Exception) -> str:
    """What Spark says, in one line."""
    inner = not isinstance(error, PySparkException)
    cause = failures.root_cause(error) if inner else first_line(error)
    return cause.split(" SQLSTATE: ")[0].rstrip(" .;")
