"""Run pipelines: Java and jars, the Spark session, the stream runner and its dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbtide.lazy import load_on_use

if TYPE_CHECKING:
    from ebbtide.runtime import failures, java, session, stream
    from ebbtide.runtime.ownership import check_owner, claim
    from ebbtide.runtime.session import open_session, parse_conf
    from ebbtide.runtime.stream import BatchReport, StreamOptions, StreamResult, run_stream

__all__ = [
    "BatchReport",
    "StreamOptions",
    "StreamResult",
    "check_owner",
    "claim",
    "failures",
    "java",
    "open_session",
    "parse_conf",
    "run_stream",
    "session",
    "stream",
]

if not TYPE_CHECKING:  # so that the type checker sees which names there are
    # failures, session and stream need pyspark
    __getattr__ = load_on_use(
        __name__,
        failures="failures",
        java="java",
        ownership="check_owner claim",
        session="open_session parse_conf session",
        stream="BatchReport StreamOptions StreamResult run_stream stream",
    )
