"""A connector as somebody else would add it: a file of lines as a source, a file a batch as a sink.

All that Ebbtide knows of it is the one line that registers it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ebbtide.checkpoint import Backup, SinkChange
from ebbtide.checks import OK, REFUSE, Check, CheckKind
from ebbtide.config import Settings
from ebbtide.connectors import SinkPlace, SinkPlan
from ebbtide.connectors.base import (
    Connector,
    Limit,
    ReplayedQuery,
    Retention,
    RetentionRequest,
    SinkConnector,
    SourceConnector,
    SourceReplay,
    SourceVerdict,
)
from ebbtide.connectors.streams import SparkSink, SparkSource
from ebbtide.pipeline import Sink, Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

AUDITED = datetime(2030, 1, 1, tzinfo=timezone.utc)
"""Until then nobody may throw a ledger away."""
SCHEMA = "n INT, at TIMESTAMP"


@dataclass(frozen=True)
class Ledger(Source, Sink):
    """As a source a file of lines, as a sink a folder with a file for each batch."""

    kind: ClassVar[str] = "ledger"
    path: str


class LedgerSource(SourceConnector[Ledger]):
    """Lines are never changed, but the file may be cut."""

    def owns(self, offset: Any) -> bool:
        return isinstance(offset, dict) and set(offset) == {"line"}

    def format_offset(self, offset: Any) -> str:
        return f"line {offset['line']}"

    def describe(
        self, source: Ledger, settings: Settings, folder: Any, before: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {"kind": source.kind, "path": source.path}

    def check(self, replay: SourceReplay) -> SourceVerdict:
        lines = len(Path(replay.note["path"]).read_text().splitlines())
        checks = []
        for read in replay.ranges:
            needed = json.loads(read.end)["line"]
            detail = f"the ledger has {lines} of {needed} lines"
            checks.append(Check(CheckKind.OTHER_SOURCE, OK if lines >= needed else REFUSE, detail))
        return SourceVerdict(tuple(checks))

    def limit(self, asked: RetentionRequest) -> Retention:
        return Retention({batch: Limit("ledger", AUDITED) for batch in asked.batches})


class LedgerSink(SinkConnector[Ledger]):
    """A batch that comes again would be written over, so the files of a rewind are set aside."""

    can_restore = True

    def place(self, sink: Ledger, settings: Settings) -> SinkPlace:
        return SinkPlace(sink.kind, "the ledger", sink.path)

    def plan(self, place: SinkPlace, query: ReplayedQuery) -> tuple[SinkPlan, Check]:
        change = self._change(place.path, query.first)
        check = Check(CheckKind.SINK, OK, f"{len(change.files)} pages of the ledger are set aside")
        return SinkPlan(place, change=change), check

    def _change(self, path: str, first: int) -> SinkChange:
        pages = sorted(int(page.stem) for page in Path(path).glob("*.json"))
        gone = tuple(f"{page}.json" for page in pages if page >= first)
        return SinkChange("ledger", path, files=gone)

    def plan_undo(
        self, folder: Any, change: SinkChange, backup: Backup, ids: Collection[str]
    ) -> SinkChange:
        return self._change(change.path, backup.first_batch)

    def apply(
        self, folder: Any, change: SinkChange, backup: Backup, returning: Backup | None
    ) -> None:
        root = Path(change.path)
        aside = root / "aside" / backup.id
        aside.mkdir(parents=True, exist_ok=True)
        for page in change.files:
            (root / page).rename(aside / page)
        if returning is not None and returning.sink is not None:
            for page in returning.sink.files:
                (root / "aside" / returning.id / page).rename(root / page)

    def format_change(self, change: SinkChange) -> str | None:
        return f"{len(change.files)} pages of the ledger are set aside."

    def format_return(self, change: SinkChange) -> str:
        return f"{len(change.files)} pages of the ledger come back."


class LedgerStream(SparkSource):
    """The lines as rows, one a batch."""

    def read_stream(self, spark: SparkSession) -> DataFrame:
        assert isinstance(self.pipeline.source, Ledger)
        spark.dataSource.register(_data_source())
        return spark.readStream.format("ledger").option("file", self.pipeline.source.path).load()


class LedgerOutput(SparkSink[Ledger]):
    """A file for each batch."""

    def stream_writer(self, rows: DataFrame) -> DataStreamWriter:
        root = Path(self.sink.path)

        def write(batch: DataFrame, number: int) -> None:
            root.mkdir(exist_ok=True)
            (root / f"{number}.json").write_text(json.dumps([row.n for row in batch.collect()]))

        return rows.writeStream.foreachBatch(write)


def _data_source() -> Any:
    """How Spark reads the lines; inside a function, so that a worker needs no module of ours."""
    from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

    class Lines(SimpleDataSourceStreamReader):
        def __init__(self, file: str) -> None:
            self.file = file

        def initialOffset(self) -> dict[str, int]:  # noqa: N802
            return {"line": 0}

        def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[Any, ...]], dict[str, int]]:
            rows = list(self.rows(start["line"], start["line"] + 1))
            return iter(rows), {"line": start["line"] + len(rows)}

        def readBetweenOffsets(  # noqa: N802
            self, start: dict[str, int], end: dict[str, int]
        ) -> Iterator[tuple[Any, ...]]:
            return self.rows(start["line"], end["line"])

        def rows(self, first: int, last: int) -> Iterator[tuple[Any, ...]]:
            from datetime import datetime as moment
            from pathlib import Path as File

            for line in File(self.file).read_text().splitlines()[first:last]:
                yield int(line), moment(2025, 9, 4, 7, int(line))

    class LedgerData(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ledger"

        def schema(self) -> str:
            return SCHEMA_OF_LINES

        def simpleStreamReader(self, schema: Any) -> Lines:  # noqa: N802
            return Lines(self.options["file"])

    SCHEMA_OF_LINES = SCHEMA  # noqa: N806 - by value, as the rest
    return LedgerData


SOURCE, SINK = LedgerStream, LedgerOutput
CONNECTOR = Connector("ledger", "the ledger", LedgerSource(), LedgerSink(), __name__)
