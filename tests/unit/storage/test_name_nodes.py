"""Which name node is asked, and what is said when none answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ebbtide import hadoop
from ebbtide.errors import CheckpointError, UsageError
from ebbtide.hadoop import use_spark_settings
from ebbtide.local.broker import free_port
from ebbtide.storage import open_folder
from ebbtide.storage.webhdfs import NameNodes

ACTIVE = {"FileStatus": {"type": "FILE", "length": 3, "modificationTime": 1_700_000_000_500}}
STANDBY = {"RemoteException": {"exception": "StandbyException", "message": "READ in standby"}}


@contextmanager
def name_node(
    status: int, answer: Any, is_active: Callable[[], bool] = lambda: True
) -> Iterator[str]:
    """A server that answers every request as a name node in one state does, or in standby."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if is_active() else 403)
            self.end_headers()
            self.wfile.write(json.dumps(answer if is_active() else STANDBY).encode())

        def do_PUT(self) -> None:
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Start the name nodes of a name service, each with its status and its answer."""
    monkeypatch.setattr(hadoop, "_OF_THE_RUN", {})
    with ExitStack() as running:

        def start(*nodes: tuple[int, Any]) -> None:
            found = [running.enter_context(name_node(*node)) for node in nodes]
            settings = {"dfs.nameservices": "lake", "dfs.ha.namenodes.lake": "n0,n1"}
            for n, address in enumerate(found):
                settings[f"dfs.namenode.http-address.lake.n{n}"] = address
            use_spark_settings({f"spark.hadoop.{name}": each for name, each in settings.items()})

        yield start


def test_the_active_name_node_is_found(lake: Callable[..., None]) -> None:
    lake((403, STANDBY), (200, ACTIVE))
    folder = open_folder("hdfs://lake/c")
    stat = folder.stat("metadata")
    assert stat is not None
    assert (stat.size, stat.modified) == (3, 1_700_000_000.5)
    assert folder.address == "hdfs://lake/c"


def test_a_failover_is_followed(lake: Callable[..., None]) -> None:
    active = [0]
    lake(*((200, ACTIVE, lambda n=n: active[0] == n) for n in (0, 1)))
    folder = open_folder("hdfs://lake/c")
    for number in (0, 1, 0):
        active[0] = number
        assert folder.filesystem._call("MKDIRS", method="put", path="/c").status_code == 200
        assert folder.stat("metadata") is not None


@contextmanager
def hanging_up() -> Iterator[str]:
    """A server that takes a request and hangs up."""

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("is_dead", [True, False])
def test_what_a_name_node_may_have_done_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, is_dead: bool
) -> None:
    monkeypatch.setattr(hadoop, "_OF_THE_RUN", {})
    with name_node(200, ACTIVE) as alive, hanging_up() as silent:
        other = f"127.0.0.1:{free_port()}" if is_dead else silent
        filesystem = NameNodes(other, alive)
        if is_dead:  # nothing was sent
            assert filesystem._call("RENAME", method="put", path="/c").status_code == 200
            return
        with pytest.raises(ConnectionError, match="WebHDFS does not answer"):
            filesystem._call("RENAME", method="put", path="/c")
        assert filesystem._call("RENAME", method="put", path="/c").status_code == 200


def test_no_active_name_node_is_said(lake: Callable[..., None]) -> None:
    lake((403, STANDBY), (403, STANDBY))
    with pytest.raises(UsageError, match="lake: no name node is active: READ in standby"):
        open_folder("hdfs://lake/c")


def test_the_address_that_was_tried_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("EBBTIDE_WEBHDFS_PORT", str(port))
    with pytest.raises(CheckpointError, match=rf"does not answer at http://127.0.0.1:{port} "):
        open_folder("hdfs://127.0.0.1:8020/c").read("metadata")


def test_an_error_is_never_taken_for_a_file() -> None:
    with name_node(500, {"RemoteException": {"exception": "IOException", "message": "lost"}}) as at:
        folder = open_folder(f"webhdfs://{at}/c")
        for read in (folder.read, folder.exists, folder.stat):
            with pytest.raises(CheckpointError, match="IOException: lost"):
                read("metadata")
