"""Compare a rewind with a reprocess, without changing anything and without a JVM.

**1** read the checkpoint, the archive and the broker; **2** find the first affected batch;
**3** find the affected event times; **4** cost both options; **5** recommend one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from ebbtide.advice.affected import AffectedResults, find_affected
from ebbtide.advice.inputs import (
    AdviceInputs,
    PipelineInputs,
    read_pipeline_inputs,
    read_plain_inputs,
)
from ebbtide.advice.onset import find_onset
from ebbtide.advice.options import Advice, OptionName, RecoveryOption
from ebbtide.advice.reprocess_option import cost_reprocess, refuse_reprocess
from ebbtide.advice.rewind_option import cost_rewind
from ebbtide.config import Settings
from ebbtide.credentials import take_credentials
from ebbtide.pipeline import Pipeline
from ebbtide.times import in_utc

_FAR_CHEAPER = 10
_WORTH_A_STOP = 1_000_000
"""A difference in records; a smaller one is read in the time that a stop takes."""


def compare_options(
    pipeline: Pipeline,
    settings: Settings,
    since: datetime,
    *,
    event_time: bool = False,
    checkpoint: str | None = None,
    reference: str | None = None,
    flags: Mapping[str, str] | None = None,
    on_read: Callable[[int], None] = lambda _records: None,
) -> Advice:
    """Compare both ways to recover from results that are wrong since a time.

    `since` is processing time: when the wrong code or data began to run. With `event_time` it is
    the first wrong event time. `reference` and `flags` are the pipeline and the flags as the user
    typed them; the commands in the advice repeat them.
    """
    location = take_credentials(checkpoint or settings.location("checkpoints", pipeline.name))
    reference = reference or pipeline.name
    # 1
    inputs = read_pipeline_inputs(pipeline, settings, location, reference, flags or {})
    return _compare(inputs, since, event_time=event_time, on_read=on_read)


def advise_on_checkpoint(
    checkpoint: str,
    settings: Settings,
    since: datetime,
    *,
    event_time: bool = False,
    event_time_field: str | None = None,
    flags: Mapping[str, str] | None = None,
    on_read: Callable[[int], None] = lambda _records: None,
) -> Advice:
    """As `compare_options`, for a query that is not a pipeline: only a rewind is possible.

    `event_time_field` is needed for event times that the history does not have.
    """
    location = take_credentials(checkpoint)
    # 1
    inputs = read_plain_inputs(location, settings, event_time_field, flags or {})
    return _compare(inputs, since, event_time=event_time, on_read=on_read)


def _compare(
    inputs: AdviceInputs, since: datetime, *, event_time: bool, on_read: Callable[[int], None]
) -> Advice:
    """Steps 2 to 5."""
    # 2
    onset = find_onset(inputs, since, by_event_time=event_time, on_read=on_read)
    # 3 and 4
    affected, reprocess = AffectedResults(), refuse_reprocess(inputs.location)
    if isinstance(inputs, PipelineInputs):
        affected = find_affected(inputs, onset)
        reprocess = cost_reprocess(inputs, affected)
    rewind = cost_rewind(inputs, onset)
    # 5
    recommended, reason = recommend(rewind, reprocess, affected)
    advised = {"rewind": rewind, "reprocess": reprocess}.get(recommended or "")
    late = (affected.records.late or 0) if reprocess.possible else 0
    return Advice(
        name=inputs.name,
        pipeline=inputs.name if isinstance(inputs, PipelineInputs) else None,
        checkpoint=inputs.location,
        since=since,
        clock="event time" if event_time else "processing time",
        zone=inputs.settings.timezone,
        first_batch=onset.batch,
        first_batch_reason=onset.reason,
        span=affected.span,
        span_origin=affected.origin,
        rewind=rewind,
        reprocess=reprocess,
        recommended=recommended,
        reason=reason,
        caveats=_caveats(advised, late, in_state=affected.in_state),
    )


def recommend(
    rewind: RecoveryOption, reprocess: RecoveryOption, affected: AffectedResults
) -> tuple[OptionName | None, str]:
    """The option to take, and the reason; the first rule that applies decides."""
    if not rewind.possible and not reprocess.possible:
        return None, f"Rewind: {rewind.problem} Reprocess: {reprocess.problem}"
    if not reprocess.possible:
        return "rewind", f"A reprocess is not possible. {reprocess.problem}"
    if not rewind.possible:
        return "reprocess", f"A rewind is not possible. {rewind.problem}"
    if affected.missing:
        return "rewind", (
            f"The archive lacks {affected.missing:,} of the records: it was started after the "
            "stream."
        )
    if affected.cut:
        return "rewind", (
            "The archive was started after the stream and holds no earlier records, so a "
            "reprocess would miss part of the windows that were open at that time."
        )
    if affected.in_state:
        since = f" that end after {in_utc(affected.closed)}" if affected.closed else ""
        return "rewind", (
            f"Only a rewind repairs the state. The windows{since} are still open and hold wrong "
            "values, which the stream would write even after a reprocess."
        )
    read, replayed = reprocess.records or 0, rewind.records or 0
    if read > _FAR_CHEAPER * replayed and read - replayed > _WORTH_A_STOP:
        return "rewind", (
            f"It is far cheaper: {replayed:,} records to replay, up to {read:,} to reprocess."
        )
    state = "its state holds nothing wrong" if affected.closed else "the query keeps no state"
    return "reprocess", f"The stream keeps running, and {state}, so one reprocess corrects it all."


def _caveats(advised: RecoveryOption | None, late: int, *, in_state: bool) -> tuple[str, ...]:
    """Reasons for the other option, and what to know before taking the recommended one."""
    if advised is None:
        return ()
    caveat = ""
    if advised.name == "rewind" and late:
        caveat = (
            f"If late records are what is missing, reprocess: up to {late:,} arrived behind the "
            "watermark, and a rewind drops them again."
        )
    if advised.name == "reprocess" and in_state:
        caveat = (
            "The state stays wrong, so the stream will write wrong results for the windows that "
            "are open now: reprocess them too, once they are closed (last step)."
        )
    return (*advised.remarks, caveat) if caveat else advised.remarks
