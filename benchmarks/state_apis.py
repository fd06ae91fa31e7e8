"""The early writer's semantics on transformWithState: a key a visit, and buckets in three shapes.

Functions and classes are made inside of functions, so that they travel to the workers by value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, Literal

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812

from ebbtide.systems.early_writer.adapter import BUCKETS
from ebbtide.systems.early_writer.fold import GAP

_REPORT = "visit_id INT, visited_pages INT, is_finished BOOLEAN"
_GAP_MS = GAP // timedelta(milliseconds=1)
Shape = Literal["bytes", "arrays", "list"]


def visit_by_visit(events: DataFrame) -> DataFrame:
    """As its examples have it: the visit is the key, its pages are a value, rows come in."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Pages(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._handle = handle
            self._pages = handle.getValueState("pages", "pages INT")

        def handleInputRows(  # noqa: N802
            self,
            key: Any,
            rows: Iterator[Any],
            timerValues: Any,  # noqa: N803
        ) -> Iterator[Row]:
            times = [row["ms"] for row in rows]
            held = self._pages.get()
            pages = (held[0] if held else 0) + len(times)
            self._pages.update((pages,))
            watermark = timerValues.getCurrentWatermarkInMs()
            for timer in self._handle.listTimers():
                self._handle.deleteTimer(timer)
            self._handle.registerTimer((watermark if watermark > 0 else max(times)) + _GAP_MS)
            yield Row(visit_id=key[0], visited_pages=pages, is_finished=False)

        def handleExpiredTimer(  # noqa: N802
            self,
            key: Any,
            timerValues: Any,  # noqa: ARG002, N803
            expiredTimerInfo: Any,  # noqa: ARG002, N803
        ) -> Iterator[Row]:
            held = self._pages.get()
            self._pages.clear()
            yield Row(visit_id=key[0], visited_pages=held[0], is_finished=True)

        def close(self) -> None:
            pass

    grouped: Any = events.groupBy("visit_id")
    found: DataFrame = grouped.transformWithState(Pages(), _REPORT, "Update", "EventTime")
    return found


def by_bucket(events: DataFrame, shape: Shape) -> DataFrame:
    """The same fold as ours, a key a bucket, on transformWithStateInPandas."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Buckets(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._handle = handle
            columns = "ids BIGINT, pages BIGINT, timers BIGINT"
            if shape == "list":
                self._state = handle.getListState("visits", columns)
            else:
                arrays = columns.replace("BIGINT", "ARRAY<BIGINT>")
                kind = "visits BINARY" if shape == "bytes" else arrays
                self._state = handle.getValueState("visits", kind)

        def handleInputRows(  # noqa: N802
            self,
            key: Any,  # noqa: ARG002
            rows: Iterable[Any],
            timerValues: Any,  # noqa: N803
        ) -> Iterator[Any]:
            import numpy as np

            from ebbtide.systems.early_writer.fold import fold

            parts = list(rows)
            ids, times = (
                np.concatenate([part[name].to_numpy(np.int64) for part in parts])
                for name in ("visit_id", "ms")
            )
            watermark = timerValues.getCurrentWatermarkInMs()
            visits, touched = fold(self._load(), ids, times, watermark)
            self._keep(visits)
            yield self._frame(touched, finished=False)

        def handleExpiredTimer(  # noqa: N802
            self,
            key: Any,  # noqa: ARG002
            timerValues: Any,  # noqa: N803
            expiredTimerInfo: Any,  # noqa: ARG002, N803
        ) -> Iterator[Any]:
            from ebbtide.systems.early_writer.fold import expire

            visits, ended = expire(self._load(), timerValues.getCurrentWatermarkInMs())
            self._keep(visits)
            yield self._frame(ended, finished=True)

        def _load(self) -> Any:
            import numpy as np

            from ebbtide.systems.early_writer.fold import NO_VISITS, OpenVisits
            from ebbtide.systems.early_writer.state import decode

            if shape == "list":
                rows = list(self._state.get())
                return OpenVisits(*np.array(rows, np.int64).T) if rows else NO_VISITS
            held = self._state.get()
            if held is None:
                return NO_VISITS
            if shape == "arrays":
                return OpenVisits(*(np.array(column, np.int64) for column in held))
            return decode(bytes(held[0]))

        def _keep(self, visits: Any) -> None:
            from ebbtide.systems.early_writer.state import encode

            for timer in list(self._handle.listTimers()):
                self._handle.deleteTimer(timer)
            if not len(visits):
                self._state.clear()
                return
            columns = [column.tolist() for column in (visits.ids, visits.pages, visits.timers)]
            if shape == "list":
                self._state.put(list(zip(*columns, strict=True)))
            else:
                self._state.update(tuple(columns) if shape == "arrays" else (encode(visits),))
            self._handle.registerTimer(int(visits.timers.min()))

        def _frame(self, visits: Any, *, finished: bool) -> Any:
            import numpy as np
            import pandas as pd  # type: ignore[import-untyped]

            return pd.DataFrame(
                {
                    "visit_id": visits.ids.astype(np.int32),
                    "visited_pages": visits.pages.astype(np.int32),
                    "is_finished": np.full(len(visits), finished),
                }
            )

        def close(self) -> None:
            pass

    bucket = F.pmod(F.xxhash64("visit_id"), F.lit(BUCKETS)).cast("int")
    grouped: Any = events.withColumn("bucket", bucket).groupBy("bucket")
    found: DataFrame = grouped.transformWithStateInPandas(Buckets(), _REPORT, "Update", "EventTime")
    return found
