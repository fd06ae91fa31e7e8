"""A secured Kafka: our own clients and Spark, what is said if it fails, and where no secret is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from pyspark.sql import SparkSession

from ebbtide.config import Settings, load_settings
from ebbtide.connections import read_properties
from ebbtide.connections.mapping import to_java
from ebbtide.connectors import kafka
from ebbtide.connectors.kafka import clients, diagnosis
from ebbtide.connectors.kafka.admin import list_topics
from ebbtide.errors import EbbtideError
from ebbtide.web.context import WebContext
from tests.conftest import SHORT_LIVED, Cli
from tests.e2e.conftest import wait_until
from tests.servers.kafka import GUEST, SecuredKafka, secured_kafka
from tests.unit.web.conftest import Visitor

KINDS = ["scram", "plain", "mtls-pem", "mtls-pkcs12", "mtls-jks"]
JOBS = """
from pyspark.sql import functions as F
from ebbtide import Delta, Kafka, Pipeline

def job(name, transform):
    return Pipeline(
        name,
        source=Kafka("visits", schema="visit_id INT, event_time TIMESTAMP"),
        event_time="event_time",
        transform=transform,
        sink=Kafka(name, key="visit_id"),
        archive=Delta("visits"),
    )

copy = job("copy", lambda visits: visits)
failing = job("failing", lambda visits: visits.withColumn("visit_id", F.raise_error(F.lit("no"))))
"""
VISITS = '{"visit_id": 1, "event_time": "2025-09-04T07:00:00"}\nbroken\n'


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with secured_kafka(tmp_path_factory.mktemp("secured") / "kafka") as cluster:
        yield cluster


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    (tmp_path / "jobs.py").write_text(JOBS)
    return tmp_path / "jobs.py"


def connect(cluster: SecuredKafka, kind: str = "scram") -> kafka.KafkaConnection:
    return load_settings(environ={}, kafka_config=str(cluster.clients[kind])).kafka


def send(cluster: SecuredKafka, topic: str, text: str = VISITS) -> None:
    kafka.create_missing_topics(connect(cluster), [topic])
    with kafka.Sender(connect(cluster), topic) as sender:
        for line in text.splitlines():
            sender.send(line.encode())


# --- the matrix -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_our_clients_log_in(secured: SecuredKafka, kind: str, inside: Cli, cli: Cli) -> None:
    topic = f"by-{kind}"
    config = ("--kafka-config", secured.clients[kind])
    if kind == "scram":  # as a user does, once: the others differ in the connection only
        sent = cli("produce", topic, *config, stdin=VISITS)
        assert "Sent 2 records" in sent.stderr, sent
    else:
        kafka.create_missing_topics(connect(secured, kind), [topic])
        with kafka.Sender(connect(secured, kind), topic) as sender:
            for line in VISITS.splitlines():
                sender.send(line.encode())
    read = inside("consume", topic, "--from-beginning", "--max", "2", *config)
    assert sorted(read.stdout.splitlines()) == sorted(VISITS.splitlines()), read.stderr


@pytest.mark.usefixtures("one_jvm")
@pytest.mark.parametrize("kind", ["mtls-pem", "mtls-pkcs12"])
def test_spark_logs_in(
    secured: SecuredKafka, kind: str, inside: Cli, tmp_path: Path, jobs: Path
) -> None:
    text = JOBS.replace('"visits"', f'"visits-{kind}"').replace('job("copy"', f'job("copy-{kind}"')
    jobs.write_text(text)
    send(secured, f"visits-{kind}")
    # whatever is written about a store, Java gets what it is: it refuses the password of a PEM file
    wrong = {f"ssl.{role}.type": "JKS" for role in ("truststore", "keystore")}
    passwords = {f"ssl.{role}.password": secured.password for role in ("truststore", "keystore")}
    properties = {**read_properties(secured.clients[kind]), **wrong, **passwords}
    run = inside(
        *("run", f"{jobs}:copy", "--available-now", "--home", tmp_path),
        EBBTIDE_KAFKA_CONFIG=str(secured.write_client(f"spark-{kind}", properties)),
    )
    assert run.returncode == 0, run.stderr
    records = kafka.consume(connect(secured), f"copy-{kind}", from_beginning=True, max_records=1)
    assert [json.loads(record.value or b"")["visit_id"] for record in records] == [1]
    letters = f"copy-{kind}.dead-letters"
    (letter,) = kafka.consume(connect(secured), letters, from_beginning=True, max_records=1)
    assert letter.value == b"broken"


SASL, SSL = {"security.protocol": "SASL_SSL"}, {"security.protocol": "SSL"}


def trust(cluster: SecuredKafka, file: str = "ca.pem") -> dict[str, str]:
    return cluster.store("truststore", file)


FAILURES: dict[str, tuple[str, Callable[[SecuredKafka], dict[str, str]], str]] = {
    "wrong password": (
        "SASL_SSL",
        lambda k: SASL | k.login("SCRAM-SHA-512", password="wrong") | trust(k),
        "refused user ebbtide: .*invalid credentials.* Check the user name, the password",
    ),
    "wrong mechanism": (
        "SASL_SSL",
        lambda k: SASL | k.login("PLAIN") | {"sasl.mechanism": "SCRAM-SHA-256"} | trust(k),
        "broker's supported mechanisms: SCRAM-SHA-512,PLAIN.* Check sasl.mechanism",
    ),
    "unknown authority": (
        "SASL_SSL",
        lambda k: SASL | k.login("PLAIN") | trust(k, "stranger.pem"),
        "is not trusted: unable to get local issuer certificate.* ssl.truststore.location",
    ),
    "expired certificate": (
        "EXPIRED",
        lambda k: SSL | trust(k),
        "certificate of Kafka at localhost:.* has expired",
    ),
    "wrong host name": (
        "ELSEWHERE",
        lambda k: SSL | trust(k),
        "is another host's: Hostname mismatch.*'localhost'.* Use the host name of the certificate",
    ),
    "no TLS on our side": ("SASL_SSL", lambda _: {}, "speaks TLS.* --kafka-config FILE"),
    "no TLS on their side": (
        "PLAINTEXT",
        lambda k: SSL | trust(k),
        "speaks no TLS.* Check the port",
    ),
    "no certificate": (
        "SSL",
        lambda k: SSL | trust(k),
        "asks for a certificate of this client.* Add ssl.keystore.location",
    ),
    "expired certificate of the client": (
        "SSL",
        lambda k: (
            {"security.protocol": "SSL"}
            | k.store("truststore", "ca.pem")
            | k.store("keystore", "client-expired.pem")
        ),
        "refused the certificate of this client: it expired on .* Renew",
    ),
}


@pytest.mark.parametrize("case", FAILURES)
def test_one_line_names_what_failed(
    secured: SecuredKafka, case: str, inside: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # these are the longest waits, one after the other
    assert clients.ANSWER_SECONDS + diagnosis.TRIED * diagnosis.HANDSHAKE_SECONDS < 15
    monkeypatch.setattr(diagnosis, "HANDSHAKE_SECONDS", 60)  # a busy broker is slow
    listener, properties, says = FAILURES[case]
    address = {"bootstrap.servers": secured.address(listener)}
    config = secured.write_client(case, {**address, **properties(secured)})
    said = inside("consume", "visits", "--kafka-config", config, "--home", tmp_path)
    assert said.returncode == 1
    (line,) = said.stderr.strip().splitlines()
    assert re.search(says, line), line
    assert secured.password not in line


def test_a_run_is_refused_before_spark_starts(
    secured: SecuredKafka, inside: Cli, tmp_path: Path, jobs: Path
) -> None:
    config = secured.write_client(
        "refused",
        {
            "security.protocol": "SASL_SSL",
            "bootstrap.servers": secured.address("SASL_SSL"),
            **secured.login("PLAIN", password="wrong"),
            **secured.store("truststore", "ca.pem"),
        },
    )
    home = tmp_path / "home"
    said = inside("run", f"{jobs}:copy", "--kafka-config", config, "--home", home)
    assert said.returncode == 1
    assert "refused user ebbtide: " in said.stderr
    assert not (home / "logs").exists(), "no JVM has been started"


def test_rights_that_are_missing_are_named(secured: SecuredKafka) -> None:
    send(secured, "guarded")
    guest = secured.login("PLAIN", user=GUEST)
    options = {"security.protocol": "SASL_SSL", **guest, **secured.store("truststore", "ca.pem")}
    connection = kafka.KafkaConnection(secured.address("SASL_SSL"), options)
    with pytest.raises(EbbtideError, match=r"user guest is not authorized \(TOPIC_AUTHOR.*Ask for"):
        kafka.create_missing_topics(connection, ["guarded"])
    with pytest.raises(EbbtideError, match="There are: none that this user may see"):
        list(kafka.consume(connection, "guarded"))
    # reading needs no right to a group: nobody joins one
    admin = clients.make_client(AdminClient, connect(secured))
    read = AclBinding(
        ResourceType.TOPIC,
        "guarded",
        ResourcePatternType.LITERAL,
        f"User:{GUEST}",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    for future in admin.create_acls([read]).values():
        future.result(60)
    wait_until(lambda: "guarded" in list_topics(connection))  # the broker learns of it later
    records = kafka.consume(connection, "guarded", from_beginning=True, max_records=2)
    assert len(list(records)) == 2
    # the client notices at any moment: while it connects, while it sends, at the end
    refused = rf"^\d+ of \d+ records did not reach topic guarded: user {GUEST} is not authorized"
    for count in (1, 2, 100) * 10:
        with pytest.raises(EbbtideError, match=refused):
            send_as(connection, count)


def send_as(connection: kafka.KafkaConnection, count: int) -> None:
    with kafka.Sender(connection, "guarded") as sender:
        for _ in range(count):
            sender.send(b"x")


# --- secrets ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("one_jvm")
def test_no_secret_is_anywhere(
    secured: SecuredKafka, inside: Cli, tmp_path: Path, jobs: Path
) -> None:
    home = tmp_path / "home"
    properties = read_properties(secured.clients["scram"]) | secured.store("keystore", "client.pem")
    config = secured.write_client("all-secrets", properties)
    key = to_java(properties)["ssl.keystore.key"].splitlines()[2]
    secrets = (secured.password, key)
    flags = ("--home", str(home), "--kafka-config", str(config))
    (home / "events").mkdir(parents=True)
    # compressed, it would show nothing
    events = {"enabled": "true", "dir": f"{home}/events", "compress": "false"}
    settings = [f"spark.eventLog.{name}={value}" for name, value in events.items()]
    conf = [word for setting in settings for word in ("--conf", setting)]
    send(secured, "visits")
    shown = _run_watched(secrets, "run", f"{jobs}:copy", "--available-now", *conf, *flags)
    assert "1 broken" in shown, shown
    failed = inside("run", f"{jobs}:failing", "--available-now", *flags)
    assert "Batch 0 of failing failed" in failed.stderr
    shown += failed.stdout + failed.stderr + _log_of_the_session()
    checkpoint = home / "checkpoints" / "copy"
    plan = home / "plan.json"
    day = ("--event-time-start", "2025-09-04", "--event-time-end", "2025-09-05")
    for command in (
        ("archive", f"{jobs}:copy", "--available-now"),
        ("reprocess", f"{jobs}:copy", *day, "--execute", "--yes"),
        ("inspect", checkpoint),
        ("rewind", checkpoint, "--to-batch", "0", "--save-plan", plan),
        ("fork", checkpoint, home / "fork", "--at-batch", "0"),
        ("apply", plan, "--yes"),
        ("history", checkpoint),
        ("consume", "copy.dead-letters", "--from-beginning", "--max", "1"),
        ("rewind", "/nowhere", "--to-batch", "0"),
    ):
        said = inside(*command, *flags)
        assert said.returncode in (0, 1), said
        shown += said.stdout + said.stderr
    shown += _visit(load_settings(environ={}, home=str(home), kafka_config=str(config)))
    assert f"To do it: ebbtide apply {plan} --bootstrap-servers " in shown
    assert not any(secret in shown for secret in secrets)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any(file.name == "copy.log" for file in files), "Spark's log is among them"
    assert plan in files
    assert any(file.name == "chunk-0001.json" for file in files), "and the journal of a reprocess"
    assert any("_delta_log" in file.parts for file in files), "and the archive"
    assert any("events" in file.parts for file in files), "and its event log"
    leaks = [str(f) for f in files for secret in secrets if secret.encode() in f.read_bytes()]
    assert leaks == []


def _run_watched(secrets: Iterable[str], *arguments: str) -> str:
    """Run a command; every process that it starts is looked at, again and again."""
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": SHORT_LIVED}
    seen = set()
    with subprocess.Popen(
        [sys.executable, "-m", "ebbtide", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        while process.poll() is None:
            for one in (process.pid, *psutil.pids()):
                for what in ("cmdline", "environ"):
                    try:
                        content = Path(f"/proc/{one}/{what}").read_bytes()
                    except OSError:
                        continue
                    assert not any(secret.encode() in content for secret in secrets)
                    seen |= {word for word in content.split(b"\0") if b"SparkSubmit" in word}
            time.sleep(0.1)
        assert seen, "the JVM was among them"
        return process.stdout.read()


def _log_of_the_session() -> str:
    """The log of the JVM that tests share: a batch has failed in it, so it has Spark's plans."""
    spark = SparkSession.getActiveSession()
    assert spark is not None
    options = spark.sparkContext.getConf().get("spark.driver.extraJavaOptions") or ""
    log = re.search(r"-Debbtide\.log=(\S+)", options)
    assert log is not None
    text = Path(log[1]).read_text()
    assert "failing" in text
    return text


def _visit(settings: Settings) -> str:
    visitor = Visitor(WebContext(settings)).enter()
    paths = ("", "/facts", "/batches/0", "/batches/0/records", "/rewind")
    pages = [visitor.get(visitor.place(path, "copy")).text for path in paths]
    return "\n".join([visitor.get("/").text, *pages, repr(settings), repr(settings.kafka)])
