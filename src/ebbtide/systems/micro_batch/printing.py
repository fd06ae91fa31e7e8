"""What tasks print in, the driver's stdout out: a worker's own stdout ends in the JVM's log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from io import StringIO

from pyspark.sql import DataFrame, Row


def print_from_tasks(rows: DataFrame, task: Callable[[Iterable[Row]], None]) -> None:
    """Run a function that prints over each partition's rows, and write here what it printed.

    Once all tasks have ended, partition after partition; if one fails, nothing.
    """

    # defined in here, so that workers get it by value and need no Ebbtide
    def capture(partition: Iterable[Row]) -> Iterable[str]:
        printed = StringIO()
        with redirect_stdout(printed):
            task(partition)
        yield printed.getvalue()

    for text in rows.rdd.mapPartitions(capture).collect():
        sys.stdout.write(text)
    sys.stdout.flush()
