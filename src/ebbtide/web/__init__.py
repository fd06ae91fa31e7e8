"""The web UI, served to a browser on this machine."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["ServerOptions", "serve"]


def __getattr__(name: str) -> Any:
    # on first use: the processes that work for the web UI need none of the server's libraries
    if name not in __all__:
        raise AttributeError(name)
    return getattr(import_module("ebbtide.web.server"), name)
