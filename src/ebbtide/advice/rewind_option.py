"""Work out what a rewind of the checkpoint to the first affected batch would cost."""

from __future__ import annotations

from functools import partial

from ebbtide.advice.inputs import KAFKA_FLAGS, AdviceInputs
from ebbtide.advice.onset import Onset
from ebbtide.advice.options import RecoveryOption, RecoveryStep
from ebbtide.checkpoint import Checkpoint, layout
from ebbtide.checks import REFUSE, WARN, Check, CheckKind
from ebbtide.errors import BrokerError
from ebbtide.history import kept_entries
from ebbtide.rewind import RewindPlan, RewindRequest, lease, sinks, target

_SHOW = "Show the plan. The same command with --execute applies it."


def cost_rewind(inputs: AdviceInputs, onset: Onset) -> RecoveryOption:
    """What it takes to rewind to the first affected batch."""
    checkpoint = inputs.checkpoint
    if not isinstance(checkpoint, Checkpoint) or onset.batch is None:
        return RecoveryOption("rewind", onset.reason, onset.remedy)
    try:
        plan = _plan(inputs, checkpoint, onset.batch, onset.reason)
    except BrokerError as error:
        return RecoveryOption("rewind", error.problem, error.next_step)
    problem, remedy = _problem(inputs, plan)
    running = lease.check_running(checkpoint.folder, checkpoint.logs, assume_stopped=False)
    stop, flag = _stop(inputs, checkpoint, running)
    command = _command(inputs, checkpoint, plan) + flag
    state = f"removed from batch {plan.first_batch} on and computed again: repaired"
    warnings = [check for check in plan.checks if check.verdict == WARN]
    return RecoveryOption(
        "rewind",
        problem,
        remedy,
        batches=plan.batches,
        records=_count_records(checkpoint, plan),
        files=len(plan.removals),
        bytes=sum(size for path, size in plan.bytes.items() if path.startswith("state/")),
        retention=describe_retention(plan),
        state=state if inputs.stateful else "the query keeps none",
        stream=f"must {'stop' if stop else 'stay stopped'}; {running.detail}",
        sink=inputs.describe_output(plan),
        command=command,
        steps=(
            *inputs.first_steps,
            *inputs.trial(plan.first_batch),
            *stop,
            RecoveryStep(_SHOW, command),
            inputs.restart(),
        ),
        remarks=tuple(each.advice for each in warnings if each.kind is not CheckKind.SINK),
    )


def _plan(inputs: AdviceInputs, checkpoint: Checkpoint, batch: int, reason: str) -> RewindPlan:
    """The plan that repeats the first batch; if Spark cannot do that, one with --replan."""
    plan = partial(
        RewindPlan.for_batch,
        checkpoint,
        batch,
        target=f"--to-batch {batch}",
        resolved=reason,
        connection=inputs.connection,
        sinks=inputs.sinks,
    )
    exact = plan(replan=False)
    if not any(check.kind is CheckKind.OFFSETS for check in exact.refusals):
        return exact
    replanned = plan(replan=True)
    return exact if replanned.refusals else replanned


def _problem(inputs: AdviceInputs, plan: RewindPlan) -> tuple[str | None, str]:
    if (error := inputs.broker_error) is not None:
        return error.problem, error.next_step
    if not plan.refusals:
        return None, ""
    first = plan.refusals[0]
    remedy = f"With ebbtide rewind {inputs.location}: {first.next}"
    problem = f"{first.detail}."
    if not first.kind.is_source:  # whose detail may begin with the name of a topic
        problem = problem[:1].upper() + problem[1:]
    return problem, remedy if "--" in first.next else first.next


def _command(inputs: AdviceInputs, checkpoint: Checkpoint, plan: RewindPlan) -> str:
    """The line that shows the plan again."""
    restored = any(planned.change for planned in plan.sinks)
    remedies = (planned.remedy for planned in inputs.sinks if planned.remedy)
    request = RewindRequest(
        inputs.location,
        target.ToBatch(plan.first_batch),
        replan=plan.mode == layout.REPLAN,
        remedy=next(remedies, None) if restored else None,
    )
    known = sinks.KnownSinks.read(checkpoint.folder)
    line = f"{request.command()} {known.flags_for(plan.places)}".rstrip()
    return inputs.command(line, "--home", *KAFKA_FLAGS)


def _count_records(checkpoint: Checkpoint, plan: RewindPlan) -> int | None:
    """How many records the committed batches read: by Kafka's offsets, or else by the history."""
    if all(source["topics"] for source in plan.sources):
        return plan.records
    entries = kept_entries(checkpoint)
    batches = [b.id for b in checkpoint.logs.batches if b.committed and b.id >= plan.first_batch]
    missing = [batch for batch in batches if batch not in entries]
    return None if missing else sum(entries[batch].rows for batch in batches)


def _stop(
    inputs: AdviceInputs, checkpoint: Checkpoint, running: Check
) -> tuple[tuple[RecoveryStep, ...], str]:
    """The step that stops the stream, and the flag that the rewind then needs."""
    if running.verdict != REFUSE:
        return (), ""
    using = lease.read_lease(checkpoint.folder)
    if using is None or using.holder() is None:
        what = f"Stop the stream if it is still running: {running.detail}."
        return (RecoveryStep(what),), " --assume-stopped"
    return (inputs.stop(next(iter(using.alive()), None)),), ""


def describe_retention(plan: RewindPlan) -> str:
    """Whether the sources still hold what is read again, according to the plan's checks."""
    details = [check.detail for check in plan.checks if check.kind.is_source]
    text = "; ".join(details) or "the source was not checked"
    return f"Kafka {text}" if text.startswith("holds") else text
