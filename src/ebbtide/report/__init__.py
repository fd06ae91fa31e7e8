"""Messages and summaries that the command line and the web UI share."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["messages", "overview"]


def __getattr__(name: str) -> Any:
    # on first use: they need the clients of Kafka and Delta
    if name not in __all__:
        raise AttributeError(name)
    return import_module(f"{__name__}.{name}")
