"""Messages and summaries that the command line and the web UI share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbtide.lazy import load_on_use

if TYPE_CHECKING:
    from ebbtide.report import gaps, messages, overview

__all__ = ["gaps", "messages", "overview"]

if not TYPE_CHECKING:  # so that the type checker sees which names there are
    # they need the clients of Kafka and Delta
    __getattr__ = load_on_use(__name__, gaps="gaps", messages="messages", overview="overview")
