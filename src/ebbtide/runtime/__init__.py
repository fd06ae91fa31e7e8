"""Run pipelines: Java and jars, the Spark session, the stream runner and its dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbtide.lazy import load_on_use

if TYPE_CHECKING:
    from ebbtide.runtime import cluster, failures, java, session, stream, versions
    from ebbtide.runtime.ownership import check_owner, claim
    from ebbtide.runtime.stream import BatchReport, StreamOptions, StreamResult, run_stream

__all__ = [
    "BatchReport",
    "StreamOptions",
    "StreamResult",
    "check_owner",
    "claim",
    "cluster",
    "failures",
    "java",
    "run_stream",
    "session",
    "stream",
    "versions",
]

if not TYPE_CHECKING:  # so that the type checker sees which names there are
    # cluster, failures, session and stream need pyspark
    __getattr__ = load_on_use(
        __name__,
        cluster="cluster",
        failures="failures",
        java="java",
        ownership="check_owner claim",
        session="session",
        stream="BatchReport StreamOptions StreamResult run_stream stream",
        versions="versions",
    )
