"""Run a pipeline's logic over an archived range of event time, beside the running stream."""

from ebbtide.reprocess import events
from ebbtide.reprocess.core import SparkSetup, follow, reprocess, retry
from ebbtide.reprocess.journal import ReprocessRun, list_runs, load_run
from ebbtide.reprocess.plot import draw_diff
from ebbtide.reprocess.ranges import EventTimeRange
from ebbtide.reprocess.request import ReprocessPlan, ReprocessRequest

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
