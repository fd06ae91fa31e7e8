"""How fast visits are made and sent."""

from __future__ import annotations

import time
from collections.abc import Iterator

from ebbtide.connectors import kafka
from ebbtide.local.broker import temporary_broker
from ebbtide.local.visits import VisitGenerator

NEEDED = 150_000


def run(*, quick: bool) -> Iterator[str]:
    """visits made and stored by the embedded broker, as a ratio to the 150,000 events/s needed"""
    count = 50_000 if quick else 1_000_000
    plan = VisitGenerator(count=count, late=0.02)
    with temporary_broker() as broker:
        kafka.create_missing_topics(broker.connection, ["visits"])
        for _ in range(1 if quick else 3):
            started = time.perf_counter()
            with kafka.Sender(broker.connection, "visits") as sender:
                for chunk in plan.messages():
                    sender.send_all(chunk)
            rate = count / (time.perf_counter() - started)
            yield f"{rate:>9,.0f} events/s  {rate / NEEDED:.2f} × needed"
