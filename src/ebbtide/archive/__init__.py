"""Copy a topic into a Delta table, record by record, and read ranges of event time from it."""

from typing import TYPE_CHECKING

from ebbtide.archive.facts import Archive, ArchiveCost, read_archive
from ebbtide.archive.layout import archive_name, archive_of
from ebbtide.archive.status import ArchiveLag, find_lags, who_fills
from ebbtide.lazy import load_on_use

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
if not TYPE_CHECKING:  # so that the type checker sees which names there are
    # these need pyspark
    __getattr__ = load_on_use(__name__, read="open_table select_range", runner="run_archive")
