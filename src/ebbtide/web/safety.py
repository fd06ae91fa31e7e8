"""Decide which requests the web UI accepts.

Steps: **1** the request comes from our own user, where Linux can tell, and names our host; **2**
the link opens the web UI once; **3** every other request needs the cookie of the session. A request
to change something also needs **4** one of our own pages as its origin; **5** the token that only
our pages contain; **6** a web UI that is not read-only. Every response tells the browser to load
nothing but our own files.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, Response
from starlette.types import Message, Receive, Scope, Send

from ebbtide.errors import EbbtideError
from ebbtide.web.context import WebContext
from ebbtide.web.socket_owner import find_user

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    # not no-referrer: the browser would not send the origin of a form
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
_LARGEST_FORM = 1 << 20


class _Refusal(HTMLResponse):
    def __init__(self, status: int, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f'<!doctype html><html lang="en"><title>Ebbtide</title><p>{reason}</p></html>', status
        )


class Safety:
    """Middleware that lets only requests of the one session through."""

    def __init__(self, app: Starlette, context: WebContext) -> None:
        self.app, self._context = app, context
        self._cookie = f"ebbtide-{context.port}"
        self._hosts = context.hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # websockets are not supported
            await send({"type": "websocket.close", "code": 1008})
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers["Cache-Control"] = "no-cache" if "etag" in headers else "no-store"
            await send(message)

        headers, changes = Headers(scope=scope), scope["method"] not in ("GET", "HEAD")
        refusal = self._enter(scope, headers)
        if refusal is None and changes:
            body, receive = await _read_body(receive)
            refusal = self._check_change(headers, body)
        # requests of strangers are not logged: they could fill the disk
        if isinstance(refusal, _Refusal) and changes and self._has_cookie(headers):
            outcome = f"refused: {refusal.reason}"
            with suppress(EbbtideError):  # it is refused even if it cannot be logged
                self._context.audit.write(scope["method"], scope["path"], outcome)
        await (refusal or self.app)(scope, receive, answer)

    def _enter(self, scope: Scope, headers: Headers) -> Response | None:
        """Refuse or redirect a visitor (steps 1 to 3); None lets the request through."""
        # 1
        if _is_of_another_user(scope):
            return _Refusal(403, "This web UI belongs to another user of this machine.")
        if headers.get("host") not in self._hosts:
            return _Refusal(403, "This web UI answers only at the address that ebbtide ui printed.")
        known = self._has_cookie(headers)
        # 2
        if scope["path"] == "/open" and scope["method"] == "GET":
            token = QueryParams(scope["query_string"]).get("token", "")
            if not known and not self._context.session.open(token):
                return _Refusal(
                    403,
                    "This link has been used or is outdated. For a new link, stop ebbtide ui with "
                    "Ctrl-C and start it again.",
                )
            return self._let_in(headers)
        # 3
        if not known:
            return _Refusal(401, "Open the link that ebbtide ui printed in the terminal.")
        return None

    def _has_cookie(self, headers: Headers) -> bool:
        # the standard library stops at the first invalid cookie, and the browser also sends the
        # cookies of every other server on this machine
        sent = cookie_parser(headers.get("cookie", "")).get(self._cookie, "")
        return secrets.compare_digest(sent.encode(), self._context.session.cookie.encode())

    def _let_in(self, headers: Headers) -> Response:
        answer = Response(status_code=303, headers={"Location": "/"})
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            # the link was clicked on another site, such as a terminal in the browser: the cookie
            # is sent only with requests from a page of ours
            answer = HTMLResponse('<!doctype html><meta http-equiv="refresh" content="0; url=/">')
        answer.set_cookie(
            self._cookie, self._context.session.cookie, httponly=True, samesite="strict", path="/"
        )
        return answer

    def _check_change(self, headers: Headers, body: bytes | None) -> Response | None:
        """Refuse a request that may not change anything (steps 4 to 6); None lets it through."""
        if body is None:
            return _Refusal(400, "This form was cut off.")
        if len(body) > _LARGEST_FORM:
            return _Refusal(413, "This form is too large.")
        # 4
        origin = headers.get("origin")
        ours = {f"http://{host}" for host in self._hosts}
        same = headers.get("sec-fetch-site") == "same-origin" if origin is None else origin in ours
        if not same:
            return _Refusal(403, "This request came from another page.")
        # 5
        sent = headers.get("x-csrf-token") or _field(headers, body, "csrf")
        if not secrets.compare_digest(sent.encode(), self._context.session.csrf.encode()):
            return _Refusal(403, "This form is outdated. Reload the page, then send it again.")
        # 6
        if self._context.read_only:
            return _Refusal(
                403, "This web UI is read-only: ebbtide ui was started with --read-only."
            )
        return None


def _is_of_another_user(scope: Scope) -> bool:
    """Whether another user connects: browsers send a cookie to every port of a host."""
    near, far = scope.get("client"), scope.get("server")
    if not near or not far or far[1] is None:
        return False
    user = find_user(tuple(near), tuple(far))
    # root may do everything, and relays connections from outside (WSL)
    return user is not None and user not in (0, os.getuid())


async def _read_body(receive: Receive) -> tuple[bytes | None, Receive]:
    """The body of a request, and a way to read it again; None if the client disconnected."""
    body, more = b"", True
    while more and len(body) <= _LARGEST_FORM:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None, receive
        body += message.get("body", b"")
        more = message.get("more_body", False)
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def read_again() -> Message:
        return messages.pop() if messages else await receive()

    return body, read_again


def _field(headers: Headers, body: bytes, name: str) -> str:
    """One field of a URL-encoded form."""
    if headers.get("content-type", "").partition(";")[0] != "application/x-www-form-urlencoded":
        return ""
    return parse_qs(body.decode("utf-8", errors="replace")).get(name, [""])[0]
