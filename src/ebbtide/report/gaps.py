"""Explain why columns of a history are empty, and how to fill them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from shlex import quote
from typing import Any

from ebbtide.checkpoint import Checkpoint, Owner
from ebbtide.formatting import format_batches

_YOUR_JOB = "docs/start/your-own-job.md"
Run = Mapping[str, Any]
"""A batch as `overview.summarize_run` has it."""


def explain_gaps(checkpoint: Checkpoint, runs: Sequence[Run], location: str) -> list[str]:
    """A line for each reason; `location` is the checkpoint as the user typed it."""
    owner = Owner.read(checkpoint.folder)
    done = [run for run in runs if run["committed"]]
    recorded = [run for run in done if run["started"] is not None and not run["rebuilt"]]
    return [
        *_explain_no_history(checkpoint, done, owner, location),
        *_explain_rebuilt(done),
        *_explain_event_times(recorded, owner),
        *_explain_output(recorded, owner),
        *_explain_watermark(done),
    ]


def _choose(runs: Sequence[Run], is_meant: Callable[[Run], object]) -> str:
    ids = [run["id"] for run in runs if is_meant(run)]
    text = format_batches(ids) if ids else ""
    return text[:1].upper() + text[1:]


def _explain_no_history(
    checkpoint: Checkpoint, runs: Sequence[Run], owner: Owner, location: str
) -> Iterator[str]:
    which = _choose(runs, lambda run: run["started"] is None)
    if not which:
        return
    kept = next((run["id"] for run in runs if run["started"] is not None), None)
    since = "" if kept is None else f", which is kept since batch {kept}"
    field = "" if owner.event_time else " --event-time-field NAME"
    if checkpoint.logs.reads_kafka:
        how = (
            f"To read rows and event times from Kafka: ebbtide history {quote(location)} --rebuild"
        )
        yield f"{which}: no history{since}. {how}{field}"
    else:
        how = f"To record the next ones, add ebbtide.attach to the job: {_YOUR_JOB}"
        yield f"{which}: no history{since}. {how}"


def _explain_rebuilt(runs: Sequence[Run]) -> Iterator[str]:
    if which := _choose(runs, lambda run: run["rebuilt"]):
        yield (
            f"{which}: rebuilt afterwards, so what they wrote and how long they took is not known. "
            "Only the run of a batch can note that."
        )


def _explain_event_times(runs: Sequence[Run], owner: Owner) -> Iterator[str]:
    which = _choose(runs, lambda r: r["event_times"] is None and r["rows"] > (r.get("broken") or 0))
    if not which:
        return
    if owner.is_attached:
        yield (
            f"{which}: no event times, as ebbtide.attach saw no column of them. Name it in the "
            f"job with ebbtide.observe: {_YOUR_JOB}"
        )
    elif owner.event_time is None:
        yield f"{which}: no event times, as the pipeline names no field. Set its event_time."
    else:
        yield f"{which}: no event times, as they are noted only for a batch that is read once."


def _explain_output(runs: Sequence[Run], owner: Owner) -> Iterator[str]:
    which = _choose(runs, lambda run: run["output"] is None)
    if not which:
        return
    if owner.is_attached:
        yield (
            f"{which}: no output or digest, as ebbtide.attach does not see the rows. Name them in "
            f"the job with ebbtide.observe: {_YOUR_JOB}"
        )
    else:
        yield f"{which}: no output or digest, as they are noted only for a batch that is read once."


def _explain_watermark(runs: Sequence[Run]) -> Iterator[str]:
    if len(runs) > 1 and all(run["watermark"] is None for run in runs):
        yield "No watermark: the query declares none (withWatermark), or no event has moved it yet."
