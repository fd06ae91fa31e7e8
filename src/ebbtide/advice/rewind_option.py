"""What it takes to rewind a checkpoint to a batch."""

from __future__ import annotations

import socket

from ebbtide.advice.inputs import Scene
from ebbtide.advice.onset import Moment
from ebbtide.advice.options import Step, Way
from ebbtide.checkpoint import Checkpoint, layout
from ebbtide.checks import REFUSE, WARN, Check, CheckKind
from ebbtide.connectors import connector_of
from ebbtide.errors import BrokerError
from ebbtide.rewind import RewindPlan, RewindRequest, lease, target

_SEE = "See what it will do; the same with --execute does it."


def cost_rewind(scene: Scene, moment: Moment) -> Way:
    """What a rewind to the first batch of a moment takes."""
    if not isinstance(scene.checkpoint, Checkpoint) or moment.batch is None:
        return Way.closed("rewind", moment.found, moment.remedy)
    try:
        plan = _plan(scene, scene.checkpoint, moment.batch, moment.found)
    except BrokerError as error:
        return Way.closed("rewind", error.problem, error.next_step)
    problem, remedy = _problem(scene, plan)
    running = lease.check_running(
        scene.checkpoint.folder, scene.checkpoint.logs, assume_stopped=False
    )
    stop, flag = _stop(scene.checkpoint, running)
    restored = plan.sink is not None and plan.sink.change is not None
    request = RewindRequest(
        scene.location,
        target.ToBatch(plan.first_batch),
        replan=plan.mode == layout.REPLAN,
        remedy=_remedy(scene) if restored else None,
    )
    command = scene.command(request.command(), "--home", "--bootstrap-servers") + flag
    again = scene.command(
        f"ebbtide run {scene.reference}",
        *("--checkpoint", "--home", "--bootstrap-servers", "--timezone"),
    )
    given_up = sum(size for path, size in plan.bytes.items() if path.startswith("state/"))
    return Way(
        "rewind",
        problem,
        remedy,
        batches=plan.batches,
        records=plan.records,
        files=len(plan.removals),
        bytes=given_up,
        retention=describe_retention(plan),
        state=(
            f"is given up from batch {plan.first_batch} on and computed again: mended"
            if scene.stateful
            else "the query keeps none"
        ),
        stream=f"must stop; {running.detail}" if stop else f"must stay stopped; {running.detail}",
        sink=_sink(scene, plan),
        command=command,
        steps=(
            *scene.first_steps,
            *stop,
            Step(_SEE, command),
            Step("Start the stream again, with the mended code.", again),
        ),
        remarks=tuple(
            check.advice
            for check in plan.checks
            if check.verdict == WARN and check.kind is not CheckKind.SINK
        ),
    )


def _plan(scene: Scene, checkpoint: Checkpoint, batch: int, found: str) -> RewindPlan:
    """The plan that repeats the first batch; if Spark cannot, the one that plans it anew."""
    sink = scene.pipeline.sink

    def plan(*, replan: bool) -> RewindPlan:
        return RewindPlan.for_batch(
            checkpoint,
            batch,
            target=f"--to-batch {batch}",
            resolved=found,
            replan=replan,
            connection=scene.broker.connection,
            sink=connector_of(sink).sink.place(sink, scene.settings),
            remedy=_remedy(scene),
        )

    exact = plan(replan=False)
    if not any(check.kind is CheckKind.OFFSETS for check in exact.refusals):
        return exact
    anew = plan(replan=True)
    return exact if anew.refusals else anew


def _problem(scene: Scene, plan: RewindPlan) -> tuple[str | None, str]:
    if scene.broker.error is not None:
        return scene.broker.error.problem, scene.broker.error.next_step
    if plan.refusals:
        first = plan.refusals[0]
        remedy = f"With ebbtide rewind {scene.location}: {first.next}"
        problem = f"{first.detail[:1].upper()}{first.detail[1:]}."
        return problem, remedy if "--" in first.next else first.next
    return None, ""


def _stop(checkpoint: Checkpoint, running: Check) -> tuple[tuple[Step, ...], str]:
    """The step that stops the stream, and the flag that the rewind then needs."""
    if running.verdict != REFUSE:
        return (), ""
    holding = lease.read_lease(checkpoint.folder)
    if holding is not None and holding.holder() is not None:
        return (Step("Stop the stream; it ends after the running batch.", _kill(holding)),), ""
    return (Step(f"Stop the stream if it still runs: {running.detail}."),), " --assume-stopped"


def _kill(holding: lease.Lease) -> str:
    if holding.host == socket.gethostname() and (alive := holding.alive()):
        return f"kill -TERM {alive[0]}"
    return ""


def describe_retention(plan: RewindPlan) -> str:
    """Whether the sources still hold what is read again, as the checks of the plan found it."""
    found = [check.detail for check in plan.checks if check.kind.is_source]
    said = "; ".join(found) or "the source was not asked"
    return f"Kafka {said}" if said.startswith("holds") else said


def _remedy(scene: Scene) -> str | None:
    """What must become of the sink, where that has to be said: the first remedy rolls it back."""
    return next(iter(connector_of(scene.pipeline.sink).sink.remedies), None)


def _sink(scene: Scene, plan: RewindPlan) -> str:
    sink, last = scene.pipeline.sink, plan.last_batch or 0
    several = f"batches {plan.first_batch} to {last}"
    batches = several if last > plan.first_batch else f"batch {plan.first_batch}"
    check = next(check for check in plan.checks if check.kind is CheckKind.SINK)
    return connector_of(sink).sink.format_replay(sink, batches, check)
