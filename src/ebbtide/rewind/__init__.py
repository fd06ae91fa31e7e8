"""Plan, apply and undo a rewind: the only package that changes a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbtide.lazy import load_on_use
from ebbtide.rewind import lease, target

if TYPE_CHECKING:
    from ebbtide.rewind import backups, fork, sinks
    from ebbtide.rewind.apply import (
        apply_rewind,
        finish_interrupted,
        restore_offsets,
        undo_rewind,
    )
    from ebbtide.rewind.plan import RewindPlan, plan_rewind
    from ebbtide.rewind.request import RewindRequest

__all__ = [
    "RewindPlan",
    "RewindRequest",
    "apply_rewind",
    "backups",
    "finish_interrupted",
    "fork",
    "lease",
    "plan_rewind",
    "restore_offsets",
    "sinks",
    "target",
    "undo_rewind",
]
if not TYPE_CHECKING:  # so that the type checker sees which names there are
    # on first use: they need the clients of Kafka and Delta, and a lease does not
    __getattr__ = load_on_use(
        __name__,
        apply="apply_rewind finish_interrupted restore_offsets undo_rewind",
        backups="backups",
        fork="fork",
        plan="RewindPlan plan_rewind",
        request="RewindRequest",
        sinks="sinks",
    )
