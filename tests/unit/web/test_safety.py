"""Who gets in, what may change something, and what every answer says to the browser."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Mount, Route

from ebbtide.config import Settings
from ebbtide.web.context import WebContext
from ebbtide.web.safety import HEADERS
from ebbtide.web.socket_owner import find_user
from tests.trees import Shape, make
from tests.unit.web.conftest import ORIGIN, Visitor


def addresses(visitor: Visitor, method: str) -> list[str]:
    """Every address that answers to a method, with values that are there."""
    values = {"key": visitor.key(), "id": "3"}
    return [
        re.sub(r"{([^}]+)}", lambda name: values[name[1]], route.path)
        for route in visitor.app.app.routes
        if isinstance(route, Route) and method in (route.methods or ())
    ]


def audit(home: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (home / "audit.jsonl").read_text().splitlines()]


def files(*folders: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime_ns)
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_without_the_cookie_nothing_is_served(home: Path) -> None:
    stranger = Visitor(WebContext(Settings(home=home)))
    assert any(isinstance(route, Mount) for route in stranger.app.app.routes)
    paths = [*addresses(stranger, "GET"), "/static/vendor/htmx.min.js", "/nothing"]
    for path in paths:
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
            answer = stranger.send(method, path, headers={"Origin": ORIGIN})
            assert answer.status_code == 401, (method, path)
            assert "visits" not in answer.text
            assert dict(answer.headers) | {k.lower(): v for k, v in HEADERS.items()} == dict(
                answer.headers
            )
    assert not (home / "audit.jsonl").exists(), "strangers cannot fill it"
    wrong = {"Cookie": f"ebbtide-8765={stranger.context.session.cookie}x"}
    assert stranger.get("/", **wrong).status_code == 401
    right = {"Cookie": f'other[="1; ebbtide-8765={stranger.context.session.cookie}'}
    assert stranger.get("/", **right).status_code == 200


def test_the_link_works_once(home: Path) -> None:
    context = WebContext(Settings(home=home))
    first, second = Visitor(context), Visitor(context)
    assert first.get("/open?token=wrong").status_code == 403
    answer = first.get(context.link)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert first.get("/").status_code == 200
    # a second browser, and somebody who found the link later
    late = second.get(context.link)
    assert late.status_code == 403
    assert "start it again" in late.text
    assert second.get("/").status_code == 401
    # whoever is in may click it again
    assert first.get(context.link).status_code == 303


def test_a_link_that_was_clicked_on_another_page_opens_too(home: Path) -> None:
    context = WebContext(Settings(home=home))
    answer = Visitor(context).get(context.link, **{"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 200
    assert 'content="0; url=/"' in answer.text
    assert "set-cookie" in answer.headers


def test_asking_for_the_head_of_the_link_does_not_use_it_up(home: Path) -> None:
    visitor = Visitor(WebContext(Settings(home=home)))
    assert visitor.send("HEAD", visitor.context.link).status_code == 401
    visitor.enter()


def test_a_log_that_cannot_be_written_is_said(visitor: Visitor, home: Path, tmp_path: Path) -> None:
    (home / "audit.jsonl").mkdir()
    place = str(make(tmp_path / "other", Shape()))
    answer = visitor.post("/checkpoints", location=place)
    assert answer.status_code == 409
    assert "audit.jsonl cannot be written: Is a directory." in answer.text
    assert visitor.post("/checkpoints", csrf="", location=place).status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1:1", ""])
def test_another_host_is_refused(visitor: Visitor, host: str) -> None:
    assert visitor.get("/", Host=host).status_code == 403
    assert visitor.get("/", Host="localhost:8765").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {},
    ],
)
def test_a_form_of_another_page_is_refused(
    visitor: Visitor, home: Path, headers: dict[str, str]
) -> None:
    fields = {"csrf": visitor.context.session.csrf, "location": str(home)}
    answer = visitor.send("POST", "/checkpoints", data=fields, headers=headers)
    assert answer.status_code == 403
    assert "another page" in answer.text
    (line,) = audit(home)
    assert (line["action"], line["target"]) == ("POST", "/checkpoints")
    assert line["outcome"] == "refused: This request came from another page."


def test_a_form_without_its_token_is_refused(visitor: Visitor, home: Path) -> None:
    place = str(home / "checkpoints" / "visits")
    assert visitor.post("/checkpoints", csrf="", location=place).status_code == 403
    assert visitor.post("/checkpoints", csrf="wrong", location=place).status_code == 403
    header = {"X-CSRF-Token": visitor.context.session.csrf}
    assert visitor.post("/checkpoints", header, csrf="", location=place).status_code == 303
    same = {"Sec-Fetch-Site": "same-origin", **header}
    assert visitor.send("POST", "/checkpoints", data={"location": place}, headers=same).is_redirect
    outcomes = [line["outcome"] for line in audit(home)]
    assert (
        outcomes[:2] == ["refused: This form is outdated. Reload the page, then send it again."] * 2
    )
    assert outcomes[2:] == ["added to the list"] * 2


def test_a_form_that_is_too_large_is_no_form(visitor: Visitor) -> None:
    answer = visitor.post("/checkpoints", location="x" * (2 << 20))
    assert (answer.status_code, "too large" in answer.text) == (413, True)


def test_read_only_refuses_every_change(home: Path) -> None:
    visitor = Visitor(WebContext(Settings(home=home), read_only=True)).enter()
    before = files(home)
    for path in addresses(visitor, "POST"):
        answer = visitor.post(path, to_batch="3", confirm="visits", plan="x")
        assert answer.status_code == 403, path
        assert "read-only" in answer.text
    (home / "audit.jsonl").unlink()
    assert files(home) == before
    assert "<form" not in visitor.get("/").text
    assert "Rewind from here" not in visitor.get(visitor.place("/batches/3")).text


def test_a_look_changes_nothing(visitor: Visitor, home: Path) -> None:
    before = files(home)
    for path in addresses(visitor, "GET"):
        for headers in ({}, {"HX-Request": "true"}):
            assert visitor.get(path, **headers).status_code < 500, path
            assert visitor.send("HEAD", path, headers=headers).status_code < 500, path
    assert files(home) == before
    assert not (home.parent / "state-home").exists()


def test_every_answer_says_what_may_be_loaded(visitor: Visitor) -> None:
    for path in [*addresses(visitor, "GET"), "/static/vendor/htmx.min.js", "/nothing"]:
        headers = visitor.get(path).headers
        for name, value in HEADERS.items():
            assert headers[name] == value, path
        assert headers["cache-control"] in ("no-store", "no-cache"), path


def test_a_bug_is_a_page_with_the_same_headers(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ZeroDivisionError("<b>secret</b>")

    monkeypatch.setattr(visitor.context.snapshots, "entries", fail)
    answer = visitor.get("/")
    assert answer.status_code == 500
    assert "ZeroDivisionError" in answer.text
    assert "secret" not in answer.text
    assert answer.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]


def test_no_page_has_code_or_style_of_its_own(visitor: Visitor) -> None:
    """What the header forbids would be an error in the browser's console."""
    for path in addresses(visitor, "GET"):
        for text in (visitor.get(path).text, visitor.fragment(path).text):
            assert not re.search(
                r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=|javascript:", text
            ), path


def test_a_form_that_was_cut_off_is_refused(visitor: Visitor, home: Path) -> None:
    cookie, port = visitor.context.session.cookie, visitor.context.port
    headers = {
        "host": f"127.0.0.1:{port}",
        "origin": ORIGIN,
        "cookie": f"ebbtide-{port}={cookie}",
        "x-csrf-token": visitor.context.session.csrf,
        "content-type": "application/x-www-form-urlencoded",
    }
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/checkpoints",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    come: list[Any] = [
        {
            "type": "http.request",
            "body": f"location={home}/checkpoints/vis".encode(),
            "more_body": True,
        },
        {"type": "http.disconnect"},
    ]
    answered: list[Any] = []

    async def receive() -> Any:
        return come.pop(0)

    async def send(message: Any) -> None:
        answered.append(message)

    asyncio.run(visitor.app(scope, receive, send))
    assert answered[0]["status"] == 400
    assert audit(home)[-1]["outcome"] == "refused: This form was cut off."


def listen(host: str) -> socket.socket | None:
    """A socket that listens on an address; None if this machine does not have it."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, 0), family=family)
    except OSError:
        return None


def test_who_connects_is_known() -> None:
    found = {host: socket_ for host in ("127.0.0.1", "::1") if (socket_ := listen(host))}
    assert "127.0.0.1" in found
    for host, listening in found.items():
        with listening, socket.create_connection(listening.getsockname()[:2]) as near:
            ends = near.getsockname()[:2], near.getpeername()[:2]
            assert find_user(*ends) == (os.getuid() if sys.platform == "linux" else None)
            assert find_user((host, 1), ends[1]) is None


@pytest.mark.parametrize(("user", "status"), [(None, 200), (os.getuid(), 200), (0, 200), (99, 403)])
def test_another_user_of_the_machine_is_refused(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch, user: int | None, status: int
) -> None:
    """The cookie does not help: a browser sends it to every port of the machine."""
    monkeypatch.setattr("ebbtide.web.safety.find_user", lambda *_: user)
    assert visitor.get("/").status_code == status
