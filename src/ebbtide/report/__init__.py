"""Messages and summaries that the command line and the web UI share."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["messages", "overview"]


def __getattr__(name: str) -> Any:
    """Load what needs the clients of Kafka and Delta on first use."""
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(name)
