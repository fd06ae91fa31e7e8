"""Compare the rows that two runs of a batch wrote to the sink."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from ebbtide.connectors import streams
from ebbtide.errors import EbbtideError, first_line
from ebbtide.replaying.verdicts import DIFFERS, IDENTICAL, NOT_COMPARED, ReplayVerdict
from ebbtide.runtime import failures

_NOT_SHOWN = "the differing rows cannot be shown"
ReadRows = Callable[[], streams.WrittenRows]


def compare_runs(
    verdict: ReplayVerdict, read_first: ReadRows, read_again: ReadRows, shown: int | None
) -> ReplayVerdict:
    """A verdict by digests, with the rows that only one of the two runs wrote.

    If there are no digests to compare, the rows themselves decide.
    """
    if verdict.verdict == IDENTICAL:
        return verdict
    try:
        first, again = read_first(), read_again()
        if first.rows is None or again.rows is None:
            return _without_rows(verdict, first.reason or again.reason)
        doubt = first.doubt or again.doubt
        if verdict.verdict == NOT_COMPARED and doubt:
            return _without_rows(verdict, doubt)
        old, new = first.rows.persist(), again.rows.persist()
        try:
            compared = _compare(verdict, old, new, shown)
            return _compare_types(compared, first.types, again.types)
        finally:
            old.unpersist()
            new.unpersist()
    except (PySparkException, EbbtideError) as error:
        return _without_rows(verdict, first_line(error))
    except Py4JJavaError as error:  # such as a damaged file
        return _without_rows(verdict, failures.root_cause(error))


def _without_rows(verdict: ReplayVerdict, why: str) -> ReplayVerdict:
    if verdict.verdict == NOT_COMPARED:
        return replace(verdict, reason=f"{verdict.reason}, and {why}")
    return replace(verdict, reason=f"{_NOT_SHOWN}: {why}")


def _compare(
    verdict: ReplayVerdict, old: DataFrame, new: DataFrame, shown: int | None
) -> ReplayVerdict:
    counts = []
    for rows, wrote, run in ((old, verdict.old_rows, "first"), (new, verdict.new_rows, "second")):
        counts.append(count := rows.count())
        if wrote is not None and count != wrote:
            lacks = f"its {run} run wrote {wrote:,} rows, and {count:,} are available"
            return _without_rows(verdict, lacks)
    plus, minus = new.exceptAll(old), old.exceptAll(new)
    added, removed = plus.count(), minus.count()
    if verdict.verdict == NOT_COMPARED:
        if not (added or removed):
            return ReplayVerdict(verdict.batch, IDENTICAL, counts[0], counts[1])
        verdict = ReplayVerdict(verdict.batch, DIFFERS, counts[0], counts[1])
    elif not (added or removed):
        verdict = replace(verdict, reason="as text, the rows are the same")
    return replace(
        verdict,
        added=added,
        removed=removed,
        new=_texts(plus, shown),
        old=_texts(minus, shown),
    )


def _compare_types(
    verdict: ReplayVerdict, old: Mapping[str, str], new: Mapping[str, str]
) -> ReplayVerdict:
    """Rows that are the same as text differ if their types do; the digest of rows sees that."""
    both = [(name, kind, new.get(name, kind)) for name, kind in old.items()]
    changed = [f"{name} {before}, now {now}" for name, before, now in both if before != now]
    if verdict.verdict != IDENTICAL or not (verdict.new_rows and changed):
        return verdict
    reason = f"as text, the rows are the same, but their types differ: {'; '.join(changed)}"
    return replace(verdict, verdict=DIFFERS, reason=reason, added=0, removed=0)


def _texts(rows: DataFrame, shown: int | None) -> tuple[str, ...]:
    ordered = rows.orderBy("row")
    return tuple(r["row"] for r in (ordered if shown is None else ordered.limit(shown)).collect())
