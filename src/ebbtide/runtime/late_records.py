"""Count the records that a batch dropped because the watermark had passed them.

A batch that dropped none costs nothing, and Spark says which those are. Most operators drop record
by record, and Spark counts them. An aggregation first combines the rows of a group, so Spark counts
groups: then the range of the batch is read again, and its late records are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from ebbtide.checkpoint import log_files
from ebbtide.connectors import progress as batch_progress
from ebbtide.connectors import streams
from ebbtide.connectors.spark import late
from ebbtide.errors import first_line
from ebbtide.pipeline import Pipeline
from ebbtide.storage import Folder

_COMBINES = ("stateStoreSave", "sessionWindowStateStoreSaveExec")
"""Spark's names for the operators of an aggregation."""
_MULTIPLE = "spark.sql.streaming.statefulOperator.allowMultiple"


class LateCounter:
    """Counts the late records of the batches of one running query."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        source: streams.OpenSource,
        results: DataFrame,
        folder: Folder,
        warn: Callable[[str], None],
    ) -> None:
        self._spark, self._pipeline = spark, pipeline
        self._source, self._results, self._folder = source, results, folder
        self._warn, self._warned = warn, False

    @cached_property
    def _key(self) -> late.WatermarkedKey | None:
        return late.find_watermarked_key(self._results)

    def count(self, progress: Mapping[str, Any]) -> batch_progress.LateRecords | None:
        """The late records of a batch; None if the query keeps no state and so drops none."""
        operators = progress["stateOperators"]
        if not operators:
            return None
        rows = sum(one["numRowsDroppedByWatermark"] for one in operators)
        combined = [one for one in operators if one["operatorName"] in _COMBINES]
        if not any(one["numRowsDroppedByWatermark"] for one in combined):
            return batch_progress.LateRecords(rows)
        try:
            counted = self._read_again(progress)
        except Exception as error:
            counted = None
            if not self._warned:
                self._warned = True
                why = first_line(error)
                self._warn(
                    f"Warning: the late records of batch {progress['batchId']} cannot be counted: "
                    f"{why}. The stream continues; this warning is not repeated."
                )
        return counted or batch_progress.LateRecords(rows, exact=False)

    def _read_again(self, progress: Mapping[str, Any]) -> batch_progress.LateRecords | None:
        """The late records among those of the batch; None if they cannot be told from its plan."""
        read_again = self._source.read_again
        watermark_ms = self._watermark(progress["batchId"])
        if self._key is None or read_again is None or watermark_ms is None:
            return None
        offsets = (progress["sources"][0][name] for name in ("startOffset", "endOffset"))
        rows = late.with_id(read_again(*offsets))
        counted = late.count_late(self._spark, self._pipeline.query(rows), self._key, watermark_ms)
        return counted if counted.records else None

    def _watermark(self, batch: int) -> int | None:
        """The watermark that decides which records of a batch are late: that of the one before.

        Only with Spark's setting for a single stateful operator, it is the batch's own.
        """
        multiple = self._spark.conf.get(_MULTIPLE, "true") == "true"
        number = batch - 1 if multiple else batch
        text = self._folder.read("offsets", str(number))
        if text is None:
            return None
        where = self._folder.path("offsets", str(number))
        return log_files.parse_offsets(text, where).watermark_ms
