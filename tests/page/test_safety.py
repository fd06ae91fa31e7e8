"""Nobody but the one who has the link sees or changes anything, and no content becomes code."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.browser import check_access
from tests.page.conftest import Windows
from tests.page.served import Served, find_key, serve, visit
from tests.page.stories import IMAGE, SCRIPT
from tests.trees import snapshot

PATHS = (
    "/",
    "/audit",
    "/nothing",
    "/static/app.css",
    "/static/vendor/htmx.min.js",
    "/static/../app.py",
    "/checkpoints/visits-counter",
    "/checkpoints/visits-counter/timeline.json",
    "/checkpoints/visits-counter/batches/1",
    "/checkpoints/visits-counter/rewind",
    "/tasks/1",
)


def test_without_the_token_nothing_is_served(small: Served, browser: Browser) -> None:
    with httpx.Client(base_url=small.origin) as stranger:
        for path in PATHS:
            for method in ("GET", "HEAD", "POST", "PUT", "OPTIONS"):
                answer = stranger.request(method, path)
                assert answer.status_code == 401, (method, path, answer.status_code)
                assert len(answer.content) < 300
                assert "visits" not in answer.text
        assert stranger.get("/open", params={"token": "x"}).status_code == 403
        assert stranger.get("/", headers={"Host": "evil.example"}).status_code == 403
    page = browser.new_page()
    answered = page.goto(f"{small.origin}/checkpoints/visits-counter")
    assert answered is not None
    assert answered.status == 401
    assert "Open the link that ebbtide ui printed" in page.inner_text("body")
    page.close()


def test_the_link_opens_once(small: Served, windows: Windows, browser: Browser) -> None:
    windows.open(small)
    (cookie,) = small.state["cookies"]
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    page = browser.new_page()
    answered = page.goto(small.link)
    assert answered is not None
    assert answered.status == 403
    assert "has been used" in page.inner_text("body")
    assert not page.context.cookies()
    page.close()


def test_another_name_is_refused_even_with_the_cookie(small: Served, windows: Windows) -> None:
    """Somebody else's name that points at us: the cookie alone lets nobody in."""
    windows.open(small)
    cookies = {cookie["name"]: cookie["value"] for cookie in small.state["cookies"]}
    with httpx.Client(base_url=small.origin, cookies=cookies) as us:
        assert us.get("/").status_code == 200
        assert us.get("/", headers={"Host": "evil.example"}).status_code == 403


@contextmanager
def another_site(html: str) -> Iterator[str]:
    """A page on another port; returns its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield str(server.server_port)
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("host", "status"), [("127.0.0.1", 403), ("localhost", 401)])
def test_another_page_cannot_change_anything(
    small: Served, browser: Browser, home: Path, host: str, status: int
) -> None:
    """Same host, other port: the browser sends our cookie along, so that alone must not do."""
    folder = home / "checkpoints" / "visits-counter"
    before = snapshot(folder)
    with visit(browser, small) as (page, watch):
        watch.allow("403", "401", "CORS", "ERR_FAILED", "console error", "ERR_BLOCKED")
        page.goto(small.origin)
        key = find_key(page, "visits-counter")
        target = f"{small.origin}/checkpoints/{key}/undo"
        with another_site(
            f'<form method="post" action="{target}"><input name="confirm" value="visits-counter">'
            "<button>Win a prize</button></form>"
        ) as port:
            page.goto(f"http://{host}:{port}/")
            with page.expect_response(target) as answered:
                page.click("button")
            assert answered.value.status == status
            page.goto(f"http://{host}:{port}/")
            page.evaluate(
                "url => fetch(url, {method: 'POST', mode: 'no-cors', credentials: 'include',"
                " body: new URLSearchParams({confirm: 'visits-counter'})}).catch(() => 0)",
                target,
            )
    assert snapshot(folder) == before
    log = home / "audit.jsonl"
    told = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    # what comes without our cookie is not even noted: strangers could fill the disk
    assert len(told) == (2 if status == 403 else 0), told
    assert all(line["outcome"].startswith("refused: ") for line in told)
    assert all(line["target"].endswith("/undo") for line in told)


def test_read_only(home: Path, windows: Windows) -> None:
    folder = home / "checkpoints" / "visits-counter"
    before = snapshot(folder)
    with serve(home, "--read-only") as served:
        page = windows.open(served)
        key = find_key(page, "visits-counter")
        windows.allow("409")  # there is nothing to undo
        for path in ("", "/batches/8", "/rewind?to_batch=8", "/undo", "/reprocess"):
            page.goto(f"{served.origin}/checkpoints/{key}{path}")
            expect(page.get_by_text("read only", exact=True)).to_be_visible()
            assert page.locator("form[method=post i], [hx-post]").count() == 0, path
        csrf = page.locator("meta[name=csrf]").get_attribute("content")
        windows.allow("403")
        for action in ("rewind", "undo", "finish", "reprocess", "reprocess/retry"):
            status, text = page.evaluate(
                "([url, csrf]) => fetch(url, {method: 'POST', headers: {'X-CSRF-Token': csrf}})"
                ".then(async answer => [answer.status, await answer.text()])",
                [f"/checkpoints/{key}/{action}", csrf],
            )
            assert status == 403
            assert "read-only" in text
        page.context.close()
    assert snapshot(folder) == before


def test_names_are_text(large: Served, windows: Windows) -> None:
    """Names with markup in them: shown as they are, and nothing of them runs."""
    page = windows.open(large)
    expect(page.get_by_text(IMAGE, exact=True).first).to_be_visible()
    key = find_key(page, IMAGE)
    windows.allow("409")  # there is nothing to undo
    for path in ("", "/batches/8", "/rewind?to_batch=8", "/undo", "/reprocess"):
        page.goto(f"{large.origin}/checkpoints/{key}{path}")
        expect(page.locator("main")).to_contain_text(IMAGE)
        assert page.locator("main img, main script").count() == 0, path
        check_access(page)
    page.goto(f"{large.origin}/checkpoints/{key}/batches/8")
    expect(page.locator("#batch-view")).to_contain_text(SCRIPT)


class Strict(HTMLParser):
    """What in a page is code, or comes from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        addresses = [names.get(name) or "" for name in ("src", "href", "action", "hx-get")]
        if (
            tag == "style"
            or (tag == "script" and "src" not in names)
            or any(name == "style" or name.startswith(("on", "hx-on")) for name in names)
            or any(re.match(r"(?:\w+:)?//|javascript:", address) for address in addresses)
        ):
            self.found.append(f"{tag} {attrs}")


def test_no_page_has_code_of_its_own(large: Served, windows: Windows) -> None:
    """Scripts and styles are files of ours; the browser is told to run nothing else."""
    page = windows.open(large)
    key = find_key(page, IMAGE)
    for path in ("/", "/audit", *(f"/checkpoints/{key}{part}" for part in ("", "/batches/8"))):
        answer = page.request.get(f"{large.origin}{path}")
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert not Strict(answer.text()).found
