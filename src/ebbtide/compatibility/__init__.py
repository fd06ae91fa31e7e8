"""Check before a deploy whether new code can go on from a checkpoint, and what Spark would do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbtide.compatibility.demands import find_missing, read_demands
from ebbtide.compatibility.verdicts import CompatibilityReport
from ebbtide.lazy import load_on_use

if TYPE_CHECKING:
    from ebbtide.compatibility.checking import call_build, check_query, check_written, load_build
    from ebbtide.compatibility.writers import Written, describe_written

__all__ = [
    "CompatibilityReport",
    "Written",
    "call_build",
    "check_query",
    "check_written",
    "describe_written",
    "find_missing",
    "load_build",
    "read_demands",
]

if not TYPE_CHECKING:  # so that the type checker sees which names there are
    # these need pyspark
    __getattr__ = load_on_use(
        __name__,
        checking="call_build check_query check_written load_build",
        writers="Written describe_written",
    )
