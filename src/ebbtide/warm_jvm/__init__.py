"""Keep a JVM between commands, for `--warm` (docs/adr/030-warm-jvm.md)."""

from ebbtide.warm_jvm.borrowing import WarmUse, ask_keeper, open_session

__all__ = ["WarmUse", "ask_keeper", "open_session"]
