"""The embedded broker through its commands: started, found, killed, started again, stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.local.broker import DEFAULT_PORT, find_broker, free_port, temporary_broker
from tests.conftest import Cli
from tests.e2e.conftest import wait_until


@pytest.fixture
def home(cli: Cli, tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    cli("broker", "stop", "--home", tmp_path)


def status(inside: Cli, home: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(
        inside("broker", "status", "--home", home, "-o", "json").stdout
    )
    return found


def test_its_data_outlives_a_stop_and_a_kill(cli: Cli, inside: Cli, home: Path) -> None:
    assert inside("broker", "status", "--home", home).returncode == 1
    missing = inside("consume", "visits", "--home", home)
    assert (missing.returncode, "Type: ebbtide broker start" in missing.stderr) == (1, True)

    assert cli("broker", "start", "--home", home, "--port", str(free_port())).returncode == 0
    first = status(inside, home)
    lines = "".join(f'{{"n": {n}}}\n' for n in range(1_500))
    sent = cli("produce", "visits", "--home", home, stdin=lines)
    assert "Sent 1,500 records to visits" in sent.stderr
    # a second start finds it
    assert inside("broker", "start", "--home", home).returncode == 0
    assert status(inside, home)["pid"] == first["pid"]

    broker = find_broker(home / "broker")
    assert broker is not None
    os.kill(broker.pid, signal.SIGKILL)
    wait_until(lambda: not broker.alive)
    assert status(inside, home)["running"] is False
    cli("broker", "start", "--home", home)
    assert status(inside, home)["bootstrap_servers"] == first["bootstrap_servers"]
    read = ("consume", "visits", "--home", home, "--from-beginning", "--max", "1500")
    assert sorted(inside(*read).stdout.splitlines()) == sorted(lines.splitlines())

    assert cli("broker", "stop", "--home", home).returncode == 0
    assert status(inside, home)["running"] is False
    cli("broker", "start", "--home", home)
    assert len(inside(*read).stdout.splitlines()) == 1_500


def test_free_ports_are_not_those_of_clients() -> None:
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        lowest = int(file.read().split()[0])
    assert all(free_port() < lowest for _ in range(50))


def test_a_taken_port(cli: Cli, inside: Cli, home: Path) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken = DEFAULT_PORT
        with suppress(OSError):  # something may hold it already: as good
            other.bind(("127.0.0.1", taken))
            other.listen()
        refused = inside("broker", "start", "--home", home, "--port", str(taken))
        assert refused.returncode == 1
        assert f"Port {taken} on 127.0.0.1 is taken. Choose another with --port" in refused.stderr
        assert "Traceback" not in refused.stderr
        started = cli("broker", "start", "--home", home)
        assert started.returncode == 0
        address = status(inside, home)["bootstrap_servers"]
        assert address != f"127.0.0.1:{taken}"
        assert f"chose {str(address).split(':')[1]}" in started.stderr
    moved = inside("broker", "start", "--home", home, "--port", "1")
    assert moved.returncode == 1
    assert f"already runs at {address}" in moved.stderr


def test_records_that_come_together_stay_together() -> None:
    with temporary_broker() as broker:
        connection = broker.connection
        kafka.create_missing_topics(connection, ["t"])
        for n in range(8):
            with kafka.Sender(connection, "t") as sender:
                for k in range(5):
                    sender.send(b"%d-%d" % (n, k))
        found = list(kafka.consume(connection, "t", from_beginning=True, max_records=40))
        for n in range(8):
            mine = [r for r in found if r.value is not None and r.value.startswith(b"%d-" % n)]
            assert len({r.partition for r in mine}) == 1
            assert [r.value for r in sorted(mine, key=lambda r: r.offset)] == [
                b"%d-%d" % (n, k) for k in range(5)
            ]
    assert not broker.alive


def test_generate_and_consume(inside: Cli, settings: Settings) -> None:
    home = settings.home
    flags = ("--count", "20000", "--broken", "0.1", "--late", "0.1", "--seed", "3")
    for topic in ("one", "two"):
        made = inside("generate", "visits", "--home", home, "--topic", topic, *flags, "-o", "json")
        assert json.loads(made.stdout) == {"topic": topic, "sent": 20_000}
    contents = [
        sorted(
            (r.key or b"", r.value or b"")
            for r in kafka.consume(settings.kafka, topic, from_beginning=True, max_records=20_000)
        )
        for topic in ("one", "two")
    ]
    assert contents[0] == contents[1]
    one = ("consume", "one", "--home", home)
    record = json.loads(inside(*one, "--from-beginning", "--max", "1", "-o", "json").stdout)
    assert (record["topic"], record["offset"]) == ("one", 0)
    silent = inside(*one, "--timeout", "1")
    assert (silent.returncode, silent.stdout) == (0, "")
    unknown = inside("consume", "three", "--home", home)
    assert unknown.returncode == 1
    assert "There is no topic three" in unknown.stderr
    assert "There are: one, two." in unknown.stderr
