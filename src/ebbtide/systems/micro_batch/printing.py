"""Bring what tasks print to the driver's stdout; a worker's own stdout ends in the JVM's log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from io import StringIO

from pyspark.sql import DataFrame, Row


def print_from_tasks(rows: DataFrame, task: Callable[[Iterable[Row]], None]) -> None:
    """Run a printing function over each partition's rows and print its output here.

    The output appears by partition once all tasks have ended; if a task fails, there is none.
    """

    # defined here, so that it is sent to the workers, which need no Ebbtide
    def capture(partition: Iterable[Row]) -> Iterable[str]:
        printed = StringIO()
        with redirect_stdout(printed):
            task(partition)
        yield printed.getvalue()

    for text in rows.rdd.mapPartitions(capture).collect():
        sys.stdout.write(text)
    sys.stdout.flush()
