"""Runs of cells in, what each did out, all in one session of whichever pyspark this Python has.

`python -m tests.compat.session runs.json results.json`; imports pyspark and the standard library
only. A run that fails has its error in the results, and the next one follows.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from tests import cells


@dataclass(frozen=True)
class Run:
    """One run of a cell: everything in its input folder that it has not read yet."""

    store: str
    query: str
    input: str
    checkpoint: str
    files: tuple[int, int]
    """Written first: from the one number up to, not including, the other."""
    wrong: bool = False
    snapshots: bool = False
    conf: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """What a run did, or why it failed."""

    batches: list[int] = field(default_factory=list)
    rows: cells.Rows = field(default_factory=list)
    error: str = ""


def run_all(runs: list[Run]) -> list[Result]:
    """One session, one run after the other."""
    spark = cells.build_session({})
    try:
        return [_run(spark, run) for run in runs]
    finally:
        spark.stop()


def _run(spark: SparkSession, run: Run) -> Result:
    cells.write_input(Path(run.input), range(*run.files))
    try:
        ran = cells.run(
            spark,
            run.query,
            run.store,
            Path(run.input),
            Path(run.checkpoint),
            wrong=run.wrong,
            snapshots=run.snapshots,
            conf=run.conf,
        )
    except Exception as error:  # whatever this Spark raises is the result
        return Result(error=str(error) or repr(error))
    return Result(ran.batches, ran.rows)


def main() -> None:
    """The command line."""
    runs, results = map(Path, sys.argv[1:])
    found = run_all([Run(**run) for run in json.loads(runs.read_text("utf-8"))])
    results.write_text(json.dumps([asdict(result) for result in found]), "utf-8")


if __name__ == "__main__":
    main()
