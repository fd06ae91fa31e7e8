"""A real Kafka broker and a visit generator for the laptop; production needs neither."""

from __future__ import annotations

from ebbtide.local.broker import (
    DEFAULT_PORT,
    EmbeddedBroker,
    find_broker,
    find_connection,
    free_port,
    require_connection,
    start_broker,
    stop_broker,
)
from ebbtide.local.visits import VisitGenerator, pace
from ebbtide.local.warmup import is_warm, warm_up

__all__ = [
    "DEFAULT_PORT",
    "EmbeddedBroker",
    "VisitGenerator",
    "find_broker",
    "find_connection",
    "free_port",
    "is_warm",
    "pace",
    "require_connection",
    "start_broker",
    "stop_broker",
    "warm_up",
]
