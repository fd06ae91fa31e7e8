"""Messages and summaries that the command line and the web UI share."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ebbtide.report.state import brief, short

__all__ = ["brief", "messages", "overview", "short"]


def __getattr__(name: str) -> Any:
    """Load what needs the clients of Kafka and Delta on first use."""
    if name in ("messages", "overview"):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(name)
