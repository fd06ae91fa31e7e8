"""Compare the rows that two runs of a batch wrote to the sink."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from ebbtide.connectors import streams
from ebbtide.errors import EbbtideError, first_line
from ebbtide.replaying.verdicts import ReplayVerdict

_NOT_SHOWN = "the differing rows cannot be shown"


def show_rows(
    verdict: ReplayVerdict,
    read_first: Callable[[], streams.WrittenRows],
    read_again: Callable[[], streams.WrittenRows],
    shown: int | None,
) -> ReplayVerdict:
    """A verdict with the rows that only one of the two runs wrote."""
    try:
        first, again = read_first(), read_again()
        if first.rows is None or again.rows is None:
            return replace(verdict, reason=f"{_NOT_SHOWN}: {first.reason or again.reason}")
        old, new = first.rows.persist(), again.rows.persist()
        try:
            return _compare(verdict, old, new, shown)
        finally:
            old.unpersist()
            new.unpersist()
    except (PySparkException, EbbtideError) as error:
        return replace(verdict, reason=f"{_NOT_SHOWN}: {first_line(error)}")


def _compare(
    verdict: ReplayVerdict, old: DataFrame, new: DataFrame, shown: int | None
) -> ReplayVerdict:
    for rows, wrote, run in ((old, verdict.old_rows, "first"), (new, verdict.new_rows, "second")):
        if (count := rows.count()) != wrote:
            lacks = f"its {run} run wrote {wrote:,} rows, and {count:,} are available"
            return replace(verdict, reason=f"{_NOT_SHOWN}: {lacks}")
    plus, minus = new.exceptAll(old), old.exceptAll(new)
    added, removed = plus.count(), minus.count()
    return replace(
        verdict,
        added=added,
        removed=removed,
        new=_texts(plus, shown),
        old=_texts(minus, shown),
        reason="" if added or removed else "as text, the rows are the same",
    )


def _texts(rows: DataFrame, shown: int | None) -> tuple[str, ...]:
    ordered = rows.orderBy("row")
    return tuple(r["row"] for r in (ordered if shown is None else ordered.limit(shown)).collect())
