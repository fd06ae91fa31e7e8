"""Keep a JVM with a Spark context between commands, for `--warm` (docs/adr/030-warm-worker.md)."""

from ebbtide.warm_jvm.borrowing import (
    STATUS,
    STOP,
    WarmUse,
    ask_worker,
    open_session,
)

__all__ = ["STATUS", "STOP", "WarmUse", "ask_worker", "open_session"]
