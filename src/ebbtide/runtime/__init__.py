"""Run pipelines: Java and jars, the Spark session, the stream runner and its dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbtide.lazy import load_on_use

if TYPE_CHECKING:
    from ebbtide.runtime import (
        cluster,
        failures,
        java,
        metrics_endpoint,
        ownership,
        session,
        stream,
        versions,
    )
    from ebbtide.runtime.stream import BatchReport, StreamOptions, StreamResult, run_stream

__all__ = [
    "BatchReport",
    "StreamOptions",
    "StreamResult",
    "cluster",
    "failures",
    "java",
    "metrics_endpoint",
    "ownership",
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
        metrics_endpoint="metrics_endpoint",
        ownership="ownership",
        session="session",
        stream="BatchReport StreamOptions StreamResult run_stream stream",
        versions="versions",
    )
