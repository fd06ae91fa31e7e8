"""The command and its server: ports, links, and what it says when a part is missing."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import uvicorn

from ebbtide.config import Settings
from ebbtide.errors import UsageError, pip_line
from ebbtide.web import server
from ebbtide.web.context import WebContext
from ebbtide.web.server import ServerOptions, serve
from tests.conftest import Cli
from tests.unit.web.conftest import hanging


def test_a_port_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with server._listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(server, "DEFAULT_PORT", port)
        with server._listen("127.0.0.1", None) as other:
            assert port < other.getsockname()[1] < port + 100
        with pytest.raises(UsageError, match=rf"Cannot listen on 127.0.0.1:{port}: Address .*use"):
            server._listen("127.0.0.1", port)


def test_an_address_that_is_not_ours() -> None:
    with pytest.raises(UsageError, match=r"Cannot listen on 192.0.2.1:8765: .* with --host"):
        server._listen("192.0.2.1", None)


@pytest.mark.parametrize(
    ("host", "link"), [("127.0.0.1", "http://127.0.0.1:9000/"), ("::1", "http://[::1]:9000/")]
)
def test_the_link_names_the_address(tmp_path: Path, host: str, link: str) -> None:
    context = WebContext(Settings(home=tmp_path), host=host, port=9000)
    assert context.link.startswith(f"{link}open?token=")
    assert {"localhost:9000", "127.0.0.1:9000"} <= context.hosts
    assert link.split("/")[2] in context.hosts


def test_all_addresses_means_all_names_of_this_machine(tmp_path: Path) -> None:
    context = WebContext(Settings(home=tmp_path), host="0.0.0.0", port=80)
    name = socket.gethostname()
    assert {f"{name}:80", name, "127.0.0.1", "localhost:80"} <= context.hosts
    assert "0.0.0.0:80" not in context.hosts
    cards = [a.address for found in psutil.net_if_addrs().values() for a in found]
    assert not {f"[{a}]:80" for a in cards if a.count(":") == 5 and len(a) == 17} & context.hosts


def test_the_page_ends_with_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while it serves: what is under way is ended, and nothing is raised."""

    def run(served: uvicorn.Server, _: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        while not served.should_exit:
            time.sleep(0.01)

    closed: list[str] = []
    monkeypatch.setattr("uvicorn.Server.run", run)
    monkeypatch.setattr("ebbtide.web.tasks.Tasks.close", lambda _: closed.append("closed"))
    links: list[str] = []
    serve(ServerOptions(Settings(home=tmp_path), port=0, browser=False), links.append)
    assert (len(links), closed) == (1, ["closed"])
    assert list(tmp_path.iterdir()) == []


def test_the_browser_is_told_the_link_by_a_file_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is started with which words, every user of the machine can see."""
    seen: list[Any] = []

    def open_it(url: str) -> None:
        page = Path(url.removeprefix("file://"))
        modes = [place.stat().st_mode & 0o777 for place in (page, page.parent)]
        seen.extend([url, page.read_text(), modes, page])

    def run(*_: object) -> None:
        deadline = time.monotonic() + 60
        while len(seen) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)

    monkeypatch.setattr("webbrowser.open", open_it)
    monkeypatch.setattr("uvicorn.Server.run", run)
    monkeypatch.setattr(server, "_has_display", lambda: True)
    links: list[str] = []
    serve(ServerOptions(Settings(home=tmp_path), port=0), links.append)
    url, text, modes, page = seen
    assert "token" not in url
    assert f'content="0; url={links[0]}"' in text
    assert modes == [0o600, 0o700]
    assert not page.parent.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_store_that_does_not_answer_does_not_keep_the_page(
    tmp_path: Path, number: signal.Signals
) -> None:
    pytest.importorskip("aiohttp")
    with hanging() as port:
        words = ("ui", f"http://127.0.0.1:{port}/c", "--no-browser", "--port=0")
        page = subprocess.Popen(
            [sys.executable, "-m", "ebbtide", *words, f"--home={tmp_path}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert page.stdout is not None
        link = page.stdout.readline().strip()
        with httpx.Client(base_url=link.partition("/open")[0], timeout=60) as visitor:
            visitor.get(link)
            key = re.findall(r"/checkpoints/([\w-]+)/facts", visitor.get("/").text)[0]
            with pytest.raises(httpx.ReadTimeout):
                visitor.get(f"/checkpoints/{key}/facts", timeout=1)
            page.send_signal(number)
            code = page.wait(60)
        page.stdout.close()
    assert code == (0 if number == signal.SIGINT else 128 + number)


def test_the_command_prints_the_link_and_nothing_else(
    tmp_path: Path, inside: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: None)
    answer = inside("ui", "--home", tmp_path, "--port", "0", "--no-browser")
    assert answer.returncode == 0
    assert answer.stdout.startswith("http://127.0.0.1:")
    assert answer.stdout.count("\n") == 1
    assert "it works once" in answer.stderr
    answer = inside("ui", "--home", tmp_path, "--port", "0", "--no-browser", "-o", "json")
    assert answer.stdout.startswith('{\n  "url": "http://127.0.0.1:')
    answer = inside("ui", "--home", tmp_path, "--port", "0", "--no-browser", "--host", "0.0.0.0")
    assert "Warning: the web UI listens on 0.0.0.0, without encryption." in answer.stderr
    assert "and run code as you" in " ".join(answer.stderr.split())
    answer = inside("ui", "--home", tmp_path, "--port", "0", "--no-browser", "--host", "127.0.0.2")
    assert "Warning" not in answer.stderr


def test_without_its_extra_the_command_prints_the_pip_line(
    inside: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "ebbtide.web.server")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    answer = inside("ui")
    assert answer.returncode == 1
    assert "The web UI needs the extra 'ui'. Type: " + pip_line("ui") in answer.stderr
