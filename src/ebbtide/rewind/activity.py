"""Say by what a query is taken for running, for people who wonder whether it still does."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

from ebbtide.checkpoint import log_files
from ebbtide.rewind import holders
from ebbtide.storage import Folder


def describe_activity(
    folder: Folder, logs: log_files.Logs, run: holders.Lease | None, *, is_idle: bool
) -> tuple[str, ...]:
    """Who was seen last, and from when on the query counts as stopped, in whole sentences.

    `run` is the lease of its last run. Empty for a process on this machine, and for a query whose
    run has ended in order. There are times in it and no ages, so it changes only with the files.
    """
    held = run.is_held() if run else False
    return () if held else tuple(_describe(folder, logs, run, held, is_idle=is_idle))


def _describe(
    folder: Folder,
    logs: log_files.Logs,
    run: holders.Lease | None,
    held: bool | None,
    *,
    is_idle: bool,
) -> Iterator[str]:
    if run and held is None:
        yield f"Last renewed at {_format(run.renewed)} by the clock of that host."
        return
    if run and not run.ended:
        seen = f"{_format(run.renewed)} by the clock of host {run.host}"
        yield f"Its last run has not ended in order: it was last seen at {seen}."
    if is_idle or not logs.batches:
        return
    written = holders.last_write(folder, logs)
    if written is None:
        yield (
            "The store does not say when it last wrote: make sure that it is stopped, and say so "
            "when you rewind it (--assume-stopped)."
        )
    else:
        quiet = _format(written + holders.quiet_seconds(logs))
        seen = _format(written)
        yield f"It last wrote at {seen}; without a write, it counts as stopped at {quiet}."


def _format(seconds: float) -> str:
    """Seconds since 1970 as a time in UTC.

    >>> _format(1.5), _format(1e306)
    ('1970-01-01 00:00:01 UTC', 'an unknown time')
    """
    try:
        at = datetime.fromtimestamp(int(seconds), timezone.utc)
    except (OverflowError, ValueError, OSError):
        return "an unknown time"
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
