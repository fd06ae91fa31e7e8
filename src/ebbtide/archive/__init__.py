"""Copy a topic into a Delta table, record by record, and read ranges of event time from it."""

from typing import TYPE_CHECKING, Any

from ebbtide.archive.facts import Archive, ArchiveCost, read_archive
from ebbtide.archive.layout import archive_name, archive_of
from ebbtide.archive.status import ArchiveLag, find_lags, who_fills

if TYPE_CHECKING:
    from ebbtide.archive.read import open_table, select_range
    from ebbtide.archive.runner import run_archive

__all__ = [
    "Archive",
    "ArchiveCost",
    "ArchiveLag",
    "archive_name",
    "archive_of",
    "find_lags",
    "open_table",
    "read_archive",
    "run_archive",
    "select_range",
    "who_fills",
]


def __getattr__(name: str) -> Any:
    """What needs pyspark is loaded when it is first used."""
    if name == "run_archive":
        from ebbtide.archive import runner as module
    elif name in ("open_table", "select_range"):
        from ebbtide.archive import read as module  # type: ignore[no-redef]
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(module, name)
