"""Compare what Spark's reader finds in state with the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from tests.walk.model import GAP, Case, State

Found = Sequence[Mapping[str, Any]]


def check_state(case: Case, expected: State, found: Found, watermark: int) -> None:
    """Every row of it; of a join, which Spark cleans up when it likes, those that must be there."""
    if case.operator == "join":
        known = {(row["id"], row["value"]): row["at"] for row in expected.get("rows", ())}
        for side in ("left", "right"):
            prefix = "other_" if side == "right" else ""
            held = {(r[f"{prefix}id"], r[f"{prefix}value"]) for r in found if r["side"] == side}
            needed = {key for key, at in known.items() if at > watermark}
            assert needed <= held <= set(known), (needed, held, known)
        return
    assert _plain(case.operator, found) == dict(expected), (found, expected)


def _plain(operator: str, found: Found) -> dict[Any, Any]:
    match operator:
        case "aggregation":
            return {row["key"]: (row["sum"], row["count"]) for row in found}
        case "tws":
            return {row["key"]: (row["total"], row["rows"]) for row in found}
        case "windowed":
            return {
                (_ms(row["window"]["start"]), row["key"]): (row["sum"], row["count"])
                for row in found
            }
        case "deduplication":
            return {(row["id"], _ms(row["at"])): () for row in found}
        case _:
            sessions = [(row, row["session_window"]) for row in found]
            assert all(_ms(s["end"]) - _ms(s["start"]) >= GAP for _, s in sessions)
            return {
                (row["key"], _ms(s["start"]), _ms(s["end"])): (row["sum"], row["count"])
                for row, s in sessions
            }


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)
