"""Work out what a rewind of the checkpoint to the first affected batch would cost."""

from __future__ import annotations

import socket

from ebbtide.advice.inputs import AdviceInputs
from ebbtide.advice.onset import Onset
from ebbtide.advice.options import RecoveryOption, RecoveryStep
from ebbtide.checkpoint.journal import rewind_command
from ebbtide.checkpoint.reader import Checkpoint
from ebbtide.connectors.sink_plans import RESTORE
from ebbtide.connectors.sink_plans import Sink as SinkPlace
from ebbtide.errors import BrokerError
from ebbtide.pipeline import Console, Delta, Files, ForeachBatch, Kafka, Sink
from ebbtide.rewind import checks
from ebbtide.rewind.lease import read_lease
from ebbtide.rewind.plan import Plan, plan_for

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
    running = checks.check_running(checkpoint.folder, checkpoint.logs, assume_stopped=False)
    stop, flag = _stop(checkpoint, running)
    command = rewind_command(inputs.location, plan.first_batch, plan.mode)
    if plan.sink is not None and plan.sink.sink.kind == "delta" and plan.sink.change is not None:
        command += f" --sink {RESTORE}"
    command = inputs.command(command, "--home", "--bootstrap-servers") + flag
    restart = inputs.command(
        f"ebbtide run {inputs.reference}",
        *("--checkpoint", "--home", "--bootstrap-servers", "--timezone"),
    )
    return RecoveryOption(
        "rewind",
        problem,
        remedy,
        batches=plan.batches,
        records=plan.records,
        files=len(plan.removals),
        bytes=sum(size for path, size in plan.bytes.items() if path.startswith("state/")),
        retention=_retention(plan),
        state=(
            f"removed from batch {plan.first_batch} on and computed again: repaired"
            if inputs.stateful
            else "the query keeps none"
        ),
        stream=f"must {'stop' if stop else 'stay stopped'}; {running.detail}",
        sink=_sink(inputs.pipeline.sink, plan),
        command=command,
        steps=(
            *inputs.first_steps,
            *stop,
            RecoveryStep(_SHOW, command),
            RecoveryStep("Start the stream again, with the corrected code.", restart),
        ),
        remarks=tuple(
            f"{check.detail}. {check.next}".strip()
            for check in plan.checks
            if check.verdict == checks.WARN and check.name != "sink"
        ),
    )


def _plan(inputs: AdviceInputs, checkpoint: Checkpoint, batch: int, reason: str) -> Plan:
    """The plan that repeats the first batch; if Spark cannot do that, one with --replan."""

    def plan(*, replan: bool) -> Plan:
        return plan_for(
            checkpoint,
            batch,
            target=f"--to-batch {batch}",
            resolved=reason,
            replan=replan,
            connection=inputs.broker.connection,
            sink=SinkPlace.of(inputs.pipeline.sink, inputs.settings),
            remedy=RESTORE if isinstance(inputs.pipeline.sink, Delta) else None,
        )

    exact = plan(replan=False)
    if not any(check.name == "offsets" for check in exact.refusals):
        return exact
    replanned = plan(replan=True)
    return exact if replanned.refusals else replanned


def _problem(inputs: AdviceInputs, plan: Plan) -> tuple[str | None, str]:
    if inputs.broker.error is not None:
        return inputs.broker.error.problem, inputs.broker.error.next_step
    if not plan.refusals:
        return None, ""
    first = plan.refusals[0]
    remedy = f"With ebbtide rewind {inputs.location}: {first.next}"
    problem = f"{first.detail[:1].upper()}{first.detail[1:]}."
    return problem, remedy if "--" in first.next else first.next


def _stop(checkpoint: Checkpoint, running: checks.Check) -> tuple[tuple[RecoveryStep, ...], str]:
    """The step that stops the stream, and the flag that the rewind then needs."""
    if running.verdict != checks.REFUSE:
        return (), ""
    lease = read_lease(checkpoint.folder)
    if lease is None or lease.holder() is None:
        what = f"Stop the stream if it is still running: {running.detail}."
        return (RecoveryStep(what),), " --assume-stopped"
    processes = lease.alive() if lease.host == socket.gethostname() else None
    kill = f"kill -TERM {processes[0]}" if processes else ""
    return (RecoveryStep("Stop the stream; it ends after the running batch.", kill),), ""


def _retention(plan: Plan) -> str:
    details = [check.detail for check in plan.checks if check.name in ("kafka", "sources")]
    text = "; ".join(details) or "the source was not checked"
    return f"Kafka {text}" if text.startswith("holds") else text


def _sink(sink: Sink, plan: Plan) -> str:
    last = plan.last_batch or 0
    several = f"batches {plan.first_batch} to {last}"
    batches = several if last > plan.first_batch else f"batch {plan.first_batch}"
    match sink:
        case Kafka(topic=topic, key=key):
            how = "under the same keys" if key else "without keys, so that readers see both"
            return f"topic {topic} gets the output of {batches} again, {how}"
        case Delta() | Files():
            return next(check.detail for check in plan.checks if check.name == "sink")
        case ForeachBatch():
            return f"the foreachBatch function gets {batches} again"
        case Console():
            return f"the console shows the output of {batches} again"
