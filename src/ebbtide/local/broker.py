"""Start, find and stop a one-node Kafka broker (KRaft) whose data lies in a folder."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType

from ebbtide.config import Settings, make_folder, write_whole
from ebbtide.connections import SERVERS
from ebbtide.connectors import kafka
from ebbtide.errors import BrokerError
from ebbtide.notes import INVALID, decode
from ebbtide.parsing import parse_json
from ebbtide.processes import find_process, start_time
from ebbtide.runtime import java as jvm

HOST = "127.0.0.1"
DEFAULT_PORT = 9092
BROKER = "kafka.Kafka"
_PORTS = range(20_000, 32_000)
_chosen: set[int] = set()
"""The ports that this process has got; nothing may listen on them yet."""
_START_SECONDS = 60
_STOP_SECONDS = 30
_FREE_SECONDS = 3

_PROPERTIES = """\
# Written by Ebbtide at every start.
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={data}
# one node: every internal topic has one copy
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
# a killed broker can restart only after its old session has expired: 9 s by default
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
# a local broker keeps what it is given
log.retention.ms=-1
num.partitions=2
# a typo must not create a topic
auto.create.topics.enable=false
"""


@dataclass(frozen=True)
class EmbeddedBroker:
    """A running embedded broker."""

    pid: int
    started: float
    """The process's start time, as a pid may be reused."""
    port: int
    controller_port: int

    @property
    def bootstrap_servers(self) -> str:
        """The address to give to clients."""
        return f"{HOST}:{self.port}"

    @property
    def connection(self) -> kafka.KafkaConnection:
        """How clients connect to it."""
        return kafka.KafkaConnection(self.bootstrap_servers)

    @property
    def alive(self) -> bool:
        """Whether the process that we started is still running."""
        return find_process(self.pid, self.started) is not None


def find_broker(folder: Path) -> EmbeddedBroker | None:
    """The broker that runs in this folder, if one does."""
    broker = _last_broker(folder)
    return broker if broker and broker.alive else None


def find_connection(
    settings: Settings, own: Mapping[str, str] = MappingProxyType({})
) -> kafka.KafkaConnection | None:
    """The connection in the settings, else a guess: the embedded broker of the home, if it runs.

    A source or a sink may have properties of a connection of its `own`.
    """
    if settings.names_kafka or SERVERS in own:
        return settings.connect(own)
    broker = find_broker(settings.broker)
    return replace(broker.connection, guessed=True) if broker else None


def require_connection(
    settings: Settings, own: Mapping[str, str] = MappingProxyType({})
) -> kafka.KafkaConnection | None:
    """As `find_connection`; raises if the broker in the settings does not answer."""
    connection = find_connection(settings, own)
    if connection is not None and not connection.guessed:
        problem = kafka.find_problem(connection)
        if problem is not None:
            raise problem
    return connection


def start_broker(folder: Path, port: int | None = None) -> EmbeddedBroker:
    """Start the broker of a folder, or find it running; returns once it answers.

    Steps: **1** lock the folder; **2** find it running; **3** choose ports; **4** write settings;
    **5** format new storage; **6** start; **7** wait until it answers; **8** record the process.
    """
    make_folder(folder, "--home")
    # 1
    from filelock import FileLock

    with FileLock(folder / "starting"):
        # 2
        if running := find_broker(folder):
            if port not in (None, running.port):
                raise BrokerError(
                    f"The embedded broker already runs at {running.bootstrap_servers}.",
                    "To move it, type: ebbtide broker stop",
                )
            return running
        # 3
        last = _last_broker(folder)
        if last and port in (None, last.port):
            # a killed process holds its port until its last thread has ended
            _wait_until(lambda: _is_free(last.port), _FREE_SECONDS)
        port = _choose_port(port, last.port if last else DEFAULT_PORT)
        controller_port = free_port()
        # 4
        properties = folder / "server.properties"
        data = folder / "data"
        write_whole(
            properties,
            _PROPERTIES.format(
                host=HOST, port=port, controller_port=controller_port, data=data.absolute()
            ),
        )
        # 5
        log = folder / "broker.log"
        if not (data / "meta.properties").exists():
            cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            # a leading "-" would be taken for a flag
            _format_storage(properties, f"e{cluster[1:]}", log)
        # 6: in a session of its own, so that it outlives the command that started it
        with (folder / "broker.out").open("ab") as out:
            process = subprocess.Popen(
                java_command(BROKER, str(properties), log=log),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        broker = EmbeddedBroker(process.pid, start_time(process.pid), port, controller_port)
        # 7
        _wait_until_it_answers(broker, process, log)
        # 8
        write_whole(folder / "broker.json", json.dumps(asdict(broker)))
        return broker


def stop_broker(folder: Path) -> EmbeddedBroker | None:
    """Stop the broker of a folder and wait for its end; None if it does not run."""
    import psutil

    broker = find_broker(folder)
    if broker is None:
        return None
    for number in (signal.SIGTERM, signal.SIGKILL):
        process = find_process(broker.pid, broker.started)
        if process is None:
            break
        with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
            process.send_signal(number)
            # not process.wait: the parent may be slow to collect the exit code
            _wait_until(lambda: not broker.alive, _STOP_SECONDS)
            process.wait(0)  # we are the parent, perhaps
    return broker


@contextmanager
def temporary_broker() -> Iterator[EmbeddedBroker]:
    """A broker on a free port with its data in a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="ebbtide-broker-"))
    try:
        yield start_broker(folder, port=free_port())
    finally:
        stop_broker(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _last_broker(folder: Path) -> EmbeddedBroker | None:
    try:
        return decode(EmbeddedBroker, parse_json((folder / "broker.json").read_text("utf-8")))
    except (OSError, *INVALID):
        return None


def _choose_port(wanted: int | None, preferred: int) -> int:
    if wanted is not None:
        if not _is_free(wanted):
            raise BrokerError(
                f"Port {wanted} on {HOST} is taken.",
                "Choose another with --port, or leave --port out to get a free one.",
            )
        return wanted
    return preferred if _is_free(preferred) else free_port()


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether something became true within a time."""
    deadline = time.monotonic() + seconds
    while not (is_true := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return is_true


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError):
            return False
    return True


def free_port() -> int:
    """A port that nothing listens on, another one at each call.

    It is not one of those that the system assigns to clients: a client that tries to reach a killed
    broker could get that very port, connect to itself and keep the broker from restarting.
    """
    ports = [port for port in random.sample(_PORTS, len(_PORTS)) if port not in _chosen]
    port = next(filter(_is_free, ports))
    _chosen.add(port)
    return port


def java_command(main: str, *arguments: str, log: Path) -> list[str]:
    """The command that starts a class of Kafka's, its log in a file."""
    writing = jvm.WRITE_ARCHIVES in os.environ
    return [
        str(jvm.find_java().executable),
        *("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        f"-Dlog4j2.configurationFile={jvm.LOG_SETTINGS}",
        f"-Debbtide.log={log.absolute()}",
        # the storage tool may use the broker's class archive, but must not overwrite it
        *(jvm.archive_options("broker") if main == BROKER or not writing else []),
        *("-cp", os.pathsep.join(map(str, jvm.jars("broker"))), main, *arguments),
    ]


def _format_storage(properties: Path, cluster: str, log: Path) -> None:
    command = java_command(
        "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties), log=log
    )
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        cause = (answer.stderr.strip() or answer.stdout.strip()).splitlines()[-1:]
        raise BrokerError(
            f"The broker's storage cannot be formatted: {' '.join(cause)}.", f"See {log}."
        )


def _wait_until_it_answers(
    broker: EmbeddedBroker, process: subprocess.Popen[bytes], log: Path
) -> None:
    def answers() -> bool:
        # before the port is open, a client would log refusals many times a second
        return not _is_free(broker.port) and (
            kafka.find_problem(broker.connection, timeout_seconds=5) is None
        )

    done = _wait_until(lambda: process.poll() is not None or answers(), _START_SECONDS)
    if done and process.poll() is None:
        return
    process.kill()
    problem = f"did not answer at {broker.bootstrap_servers} within {_START_SECONDS} s"
    if done:
        problem = f"ended at once (exit {process.returncode})"
    raise BrokerError(f"The embedded broker {problem}.", f"See {log}.")
