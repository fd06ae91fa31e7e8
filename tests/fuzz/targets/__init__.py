"""All targets, by name."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from tests.fuzz.target import Target

_MODULES = (
    *("logs", "state", "notes", "plans", "files", "delta", "kafka", "settings", "values"),
    *("checkpoint", "command_line", "forms"),
)


@cache
def all_targets() -> dict[str, Target]:
    """Every target, in the order in which they are played."""
    found: dict[str, Target] = {}
    for name in _MODULES:
        for target in import_module(f"tests.fuzz.targets.{name}").TARGETS:
            assert target.name not in found, target.name
            found[target.name] = target
    return found
