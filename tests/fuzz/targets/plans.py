"""Saved plans of a rewind: edited, with a digest that fits, and edited without."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache

from ebbtide.parsing import parse_json
from ebbtide.rewind import RewindPlan, RewindRequest, plan_rewind
from ebbtide.rewind.plan import _DIGEST, _digest
from ebbtide.rewind.target import ToBatch
from tests.fuzz.target import Target, scratch
from tests.trees import Shape, make


@cache
def _plans() -> list[bytes]:
    folder = make(scratch() / "planned", Shape("changelog", batches=4, operator_metadata="v1"))
    plans = []
    for batch, replan, remedy in ((2, False, "none"), (1, True, "none"), (3, False, None)):
        tables = ("/t",) if remedy is None else ()
        request = RewindRequest(
            str(folder), ToBatch(batch), replan, remedy, tables, assume_stopped=True
        )
        plans.append(json.dumps(plan_rewind(request).to_dict()).encode())
    return plans


def _read(data: bytes) -> None:
    try:
        found = parse_json(data)
    except ValueError:  # `ebbtide apply` says so
        return
    with suppress(TypeError, ValueError, AttributeError):
        found[_DIGEST] = _digest(found)
    plan = RewindPlan.from_dict(found)
    _ = plan.records, plan.warnings, plan.places, plan.to_dict()
    assert not any(".." in path.split("/") for path in plan.removals)
    plan.require_allowed()


def _read_as_is(data: bytes) -> None:
    with suppress(ValueError):
        RewindPlan.from_dict(parse_json(data))


TARGETS = (
    Target("plan", _plans, _read, share=30),
    Target("plan-as-is", _plans, _read_as_is, share=10),
)
