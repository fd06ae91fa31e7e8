"""The session builder's parts that need no JVM."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import py4j.java_gateway
import pytest
from pyspark import SparkContext

from ebbtide import api
from ebbtide.config import Settings
from ebbtide.errors import UsageError
from ebbtide.pipeline import Console, Kafka, Pipeline
from ebbtide.runtime import run_stream
from ebbtide.runtime.session import (
    _defaults,
    _java_flags,
    _not_from_py4j,
    build_session,
    parse_conf,
)


def record(file: str) -> logging.LogRecord:
    return logging.LogRecord("root", logging.ERROR, file, 1, "Exception while sending", (), None)


def test_py4j_does_not_log_tracebacks_over_our_error() -> None:
    assert not _not_from_py4j(record(py4j.java_gateway.__file__))
    assert _not_from_py4j(record(__file__))


@pytest.mark.parametrize("master", ["mars", "localhost:7077", "http://host"])
def test_what_is_no_master_is_refused(master: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a Spark master.*spark://host:port"):
        build_session("x", Settings(home=tmp_path), master=master)


def test_a_session_of_the_users_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a broker, a home or a lease is there."""
    monkeypatch.setattr(SparkContext, "_active_spark_context", object())
    clicks = Pipeline(
        "clicks",
        source=Kafka("clicks", schema="at TIMESTAMP"),
        event_time="at",
        transform=lambda rows: rows,
        sink=Console(),
    )
    refused = pytest.raises(UsageError, match=r"has a Spark session already\. .*spark\.stop\(\)")
    with refused:
        api.run(clicks, settings=Settings(home=tmp_path / "home"))
    with refused:
        run_stream(clicks, Settings(home=tmp_path / "home", bootstrap_servers="kafka:9092"))
    with refused:
        build_session("x", Settings(home=tmp_path / "home"))
    assert not list(tmp_path.iterdir())


def test_a_conf_without_a_value_is_refused() -> None:
    assert parse_conf(["a=b=c"]) == {"a": "b=c"}
    with pytest.raises(UsageError, match="--conf a has no value"):
        parse_conf(["a"])


@pytest.mark.parametrize(
    "option",
    [
        "kafka.sasl.jaas.config",
        "kafka.ssl.key.password",
        "kafka.ssl.keystore.key",
        "kafka.ssl.truststore.password",
        "kafka.basic.auth.user.info",
        "fs.s3a.secret.key",
        "fs.s3a.access.key",
        "fs.s3a.encryption.key",
        "fs.azure.account.key.ours.dfs.core.windows.net",
        "fs.azure.sas.data.ours.blob.core.windows.net",
        "fs.gs.auth.service.account.private.key",
        "kafka.sasl.oauthbearer.assertion.private.key.passphrase",
    ],
)
def test_spark_hides_every_secret_of_a_connection(option: str) -> None:
    """Its plans, logs and event logs hide the value of an option whose name matches."""
    hidden = _defaults(Settings(), local=True)["spark.redaction.regex"]
    assert re.search(hidden, option)
    assert not re.search(hidden, "kafka.bootstrap.servers")


@pytest.mark.parametrize("where", ["extraJavaOptions", "defaultJavaOptions", "JAVA_TOOL_OPTIONS"])
def test_java_gets_one_collector(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "-XX:+UseParallelGC" in _java_flags({})
    if where.isupper():
        monkeypatch.setenv(where, "-Xmx1g -XX:+UseG1GC")
        assert "-XX:+UseParallelGC" not in _java_flags({})
    else:
        assert "-XX:+UseParallelGC" not in _java_flags({f"spark.driver.{where}": "-XX:+UseZGC"})
