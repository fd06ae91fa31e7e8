"""Run a pipeline's logic over an archived range of event time, beside the running stream."""

from ebbtide.reprocessing import events
from ebbtide.reprocessing.core import SparkSetup, follow, reprocess, retry
from ebbtide.reprocessing.journal import ReprocessRun, list_runs, load_run
from ebbtide.reprocessing.plot import draw_diff
from ebbtide.reprocessing.ranges import EventTimeRange
from ebbtide.reprocessing.request import ReprocessPlan, ReprocessRequest

__all__ = [
    "EventTimeRange",
    "ReprocessPlan",
    "ReprocessRequest",
    "ReprocessRun",
    "SparkSetup",
    "draw_diff",
    "events",
    "follow",
    "list_runs",
    "load_run",
    "reprocess",
    "retry",
]
