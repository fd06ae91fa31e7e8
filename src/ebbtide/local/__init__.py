"""A real Kafka broker and a visit generator for the laptop; production needs neither."""

from __future__ import annotations

from ebbtide.local.broker import (
    DEFAULT_PORT,
    EmbeddedBroker,
    choose_servers,
    find_broker,
    free_port,
    require_servers,
    start_broker,
    stop_broker,
)
from ebbtide.local.visits import VisitGenerator, pace
from ebbtide.local.warmup import is_warm, warm_up

__all__ = [
    "DEFAULT_PORT",
    "EmbeddedBroker",
    "VisitGenerator",
    "choose_servers",
    "find_broker",
    "free_port",
    "is_warm",
    "pace",
    "require_servers",
    "start_broker",
    "stop_broker",
    "warm_up",
]
