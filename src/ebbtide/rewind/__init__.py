"""Plan, apply and undo a rewind: the only package that changes a checkpoint."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ebbtide.rewind import lease, target

if TYPE_CHECKING:
    from ebbtide.rewind.apply import (
        apply_rewind,
        finish_interrupted,
        prune_backups,
        restore_offsets,
        undo_rewind,
    )
    from ebbtide.rewind.backups import find_backup
    from ebbtide.rewind.fork import fork_checkpoint
    from ebbtide.rewind.plan import RewindPlan, plan_rewind
    from ebbtide.rewind.request import RewindRequest

__all__ = [
    "RewindPlan",
    "RewindRequest",
    "apply_rewind",
    "find_backup",
    "finish_interrupted",
    "fork_checkpoint",
    "lease",
    "plan_rewind",
    "prune_backups",
    "restore_offsets",
    "target",
    "undo_rewind",
]
_MODULES = {
    "RewindPlan": "plan",
    "RewindRequest": "request",
    "find_backup": "backups",
    "fork_checkpoint": "fork",
    "plan_rewind": "plan",
}


def __getattr__(name: str) -> Any:
    # on first use: they need the clients of Kafka and Delta, and a lease does not
    if name not in __all__:
        raise AttributeError(name)
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'apply')}"), name)
