"""What every page needs: settings, snapshots, the session and the templates."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import psutil
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from ebbtide.config import Settings
from ebbtide.version import __version__
from ebbtide.web.audit import AuditLog
from ebbtide.web.filters import FILTERS
from ebbtide.web.snapshots import Snapshots
from ebbtide.web.tasks import Tasks

FOLDER = Path(__file__).parent


@dataclass
class VisitorSession:
    """The secrets of one run: the web UI has one visitor and a link that opens it once."""

    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    cookie: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    opened: bool = False

    def open(self, token: str) -> bool:
        """Whether the token opens the web UI; it does so once."""
        if self.opened or not secrets.compare_digest(token.encode(), self.token.encode()):
            return False
        self.opened = True
        return True


@dataclass
class WebContext:
    """What every page needs."""

    settings: Settings
    port: int = 8765
    host: str = "127.0.0.1"
    read_only: bool = False
    opened: tuple[str, ...] = ()
    """Checkpoints that were named on the command line."""
    session: VisitorSession = field(default_factory=VisitorSession)

    def __post_init__(self) -> None:
        self.snapshots = Snapshots(self.settings, self.opened)
        self.audit = AuditLog(self.settings.home / "audit.jsonl")
        self.tasks = Tasks(self.audit)

    @property
    def hosts(self) -> frozenset[str]:
        """The values of the Host header that we accept."""
        names = {"127.0.0.1", "localhost", *_names(self.host)}
        bare = names if self.port == 80 else set()
        return frozenset({f"{name}:{self.port}" for name in names} | bare)

    @property
    def link(self) -> str:
        """The link that opens the web UI once."""
        return f"http://{_names(self.host)[0]}:{self.port}/open?token={self.session.token}"

    def render(
        self, request: Request, template: str, status: int = 200, **values: Any
    ) -> HTMLResponse:
        """Render a page, or only its content if htmx asks for a part."""
        fragment = is_fragment(request)
        text = (
            make_templates()
            .get_template(template)
            .render(
                request=request,
                fragment=fragment,
                layout="fragment.html" if fragment else "base.html",
                read_only=self.read_only,
                version=__version__,
                csrf=self.session.csrf,
                **values,
            )
        )
        return HTMLResponse(text, status)


def is_fragment(request: Request) -> bool:
    """Whether htmx asks for a part of a page; when going back, it asks for all of it."""
    whole = ("HX-History-Restore-Request", "HX-Boosted")
    return "HX-Request" in request.headers and not any(name in request.headers for name in whole)


@cache
def make_templates() -> Environment:
    """The templates: every value is escaped, and an unknown name is a bug."""
    found = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= FILTERS
    return found


def _names(host: str) -> list[str]:
    """The names of this machine for an address to listen on, as they appear in a link.

    >>> _names("::1"), _names("127.0.0.1")
    (['[::1]'], ['127.0.0.1'])
    """
    if host not in ("0.0.0.0", "::", ""):
        return [f"[{host}]" if ":" in host else host]
    found = [address for of_card in psutil.net_if_addrs().values() for address in of_card]
    plain = sorted(a.address for a in found if a.family == socket.AF_INET)
    # a link cannot name a network interface
    newer = sorted(a.address for a in found if a.family == socket.AF_INET6 and "%" not in a.address)
    return [socket.gethostname(), *plain, *(f"[{address}]" for address in newer)]
