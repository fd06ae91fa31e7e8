"""The session builder's parts that need no JVM."""

from __future__ import annotations

import logging
from pathlib import Path

import py4j.java_gateway
import pytest

from ebbtide.config import Settings
from ebbtide.errors import UsageError
from ebbtide.runtime.session import _not_from_py4j, build_session, parse_conf


def record(file: str) -> logging.LogRecord:
    return logging.LogRecord("root", logging.ERROR, file, 1, "Exception while sending", (), None)


def test_py4j_does_not_log_tracebacks_over_our_error() -> None:
    assert not _not_from_py4j(record(py4j.java_gateway.__file__))
    assert _not_from_py4j(record(__file__))


@pytest.mark.parametrize("master", ["mars", "localhost:7077", "http://host"])
def test_what_is_no_master_is_refused(master: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a Spark master.*spark://host:port"):
        build_session("x", Settings(home=tmp_path), master=master)


def test_a_conf_without_a_value_is_refused() -> None:
    assert parse_conf(["a=b=c"]) == {"a": "b=c"}
    with pytest.raises(UsageError, match="--conf a has no value"):
        parse_conf(["a"])
