"""The web UI, served to a browser on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbtide.lazy import load_on_use

if TYPE_CHECKING:
    from ebbtide.web.server import ServerOptions, serve
else:
    # the processes that work for the web UI need none of the server's libraries
    __getattr__ = load_on_use(__name__)

__all__ = ["ServerOptions", "serve"]
