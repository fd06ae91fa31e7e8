"""Archives of many days of visits, in the files that the archive itself would have written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from ebbtide.archive.commit import TableWriter
from ebbtide.archive.files import ROWS, HourFiles
from ebbtide.archive.layout import properties
from ebbtide.archive.write import create_table
from ebbtide.config import Settings
from ebbtide.pipeline import Kafka
from ebbtide.systems.batch_reprocessor.pipeline import pipeline
from ebbtide.times import EPOCH

FIRST = datetime(2025, 9, 1, tzinfo=timezone.utc)
_HOUR_MICROS = 3_600_000_000


@dataclass(frozen=True)
class Visits:
    """Records of visits, as many in each hour, evenly over it and from two partitions."""

    an_hour: int

    def of_hour(self, number: int) -> pa.Table:
        """The rows of an hour since `FIRST`."""
        start = FIRST + timedelta(hours=number)
        ids, details = self._texts
        values = pc.binary_join_element_wise(
            f'{{"event_id":"click-{number}-', ids, f"{start:%Y-%m-%dT%H}", details, ""
        )
        first = (start - EPOCH) // timedelta(microseconds=1)
        times = pa.array(self._micros + first).cast(ROWS.field("event_time").type)
        numbers = np.arange(self.an_hour) + number * self.an_hour
        columns = {
            "event_time": times,
            "partition": pa.array(numbers % 2).cast(pa.int32()),
            "offset": pa.array(numbers // 2),
            "timestamp": times,
            "key": pa.nulls(self.an_hour, pa.binary()),
            "value": values.cast(pa.binary()),
            "headers": pa.nulls(self.an_hour, ROWS.field("headers").type),
        }
        return pa.table([columns[name] for name in ROWS.names], ROWS)

    @cached_property
    def _micros(self) -> Any:
        """The time of each in its hour, to the millisecond."""
        return np.arange(self.an_hour) * _HOUR_MICROS // self.an_hour // 1000 * 1000

    @cached_property
    def _texts(self) -> tuple[Any, Any]:
        """What a record says between the number of its hour and the hour, and what after it."""
        ids, details = [], []
        for at, micros in enumerate(self._micros.tolist()):
            minute, rest = divmod(micros // 1000, 60_000)
            ids.append(f'{at}","visit_id":{at * 7919 % 100_000},"event_time":"')
            page = at * 31 % 53
            details.append(
                f':{minute:02}:{rest // 1000:02}.{rest % 1000:03}","page":"page_{page}"}}'
            )
        return pa.array(ids), pa.array(details)


def fill(spark: SparkSession, homes: dict[int, Path], an_hour: int) -> None:
    """An archive of the first so many days in each home, with one file an hour.

    The files are written once, as links make those of the longest the others', too.
    """
    files: list[str] = []
    written = ""
    for days, home in sorted(homes.items(), reverse=True):
        settings = Settings(home=home)
        path = settings.table("visits")
        create_table(spark, path, properties(pipeline, settings, f"{path}-checkpoint"))
        writer = TableWriter(spark, path)
        folder = writer.find_folder()
        assert folder is not None
        if not files:
            files, written = list(_write(folder, spark.version, Visits(an_hour), days)), folder
        else:
            _link(files[: 24 * days], written, folder)
        transaction = writer.begin("bench", 0)
        assert transaction is not None
        transaction.commit(files[: 24 * days])


def _write(folder: str, spark: str, visits: Visits, days: int) -> Iterator[str]:
    assert isinstance(pipeline.source, Kafka)
    hours = HourFiles(folder, pipeline.source.topic, spark)
    since_epoch = (FIRST - EPOCH) // timedelta(hours=1)
    for number in range(24 * days):
        yield hours.write(since_epoch + number, visits.of_hour(number).to_batches())


def _link(added: list[str], source: str, target: str) -> None:
    """The same files in another table's folder, without a copy."""
    for line in added:
        name = json.loads(line)["add"]["path"]
        Path(target, name).parent.mkdir(parents=True, exist_ok=True)
        os.link(Path(source, name), Path(target, name))
