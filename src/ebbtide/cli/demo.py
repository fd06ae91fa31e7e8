"""The command `ebbtide demo`, which plays a system end to end, with explanations."""

from __future__ import annotations

from ebbtide import runtime
from ebbtide.cli import options
from ebbtide.cli.commands import argument, command
from ebbtide.cli.output import ensure_jars, show_json
from ebbtide.errors import UsageError


@command("ebbtide demo", "ebbtide demo batch-reprocessor --timezone Europe/Paris")
def demo(
    environment: options.TimeOptions,
    name: str = argument(
        "NAME",
        "stream-reprocessor, batch-reprocessor, micro-batch, browser-stats, early-writer, or all.",
        "stream-reprocessor",
    ),
    output: options.Output = options.OUTPUT,
) -> None:
    """Play a system end to end on its own broker, with explanations.

    Exit 1 if an output is not as expected.
    """
    from ebbtide.systems import DEMOS, READY, find_pipeline, play_demo

    if name not in DEMOS and name != "all":
        raise UsageError(f"There is no demo {name!r}.", f"There are: {', '.join(DEMOS)}, all.")
    settings = environment.settings
    for job in READY:
        runtime.cluster.require_connectors(find_pipeline(job), {})
    ensure_jars()
    chosen = list(DEMOS) if name == "all" else [name]
    results = {each: play_demo(each, settings, to_stderr=output == "json") for each in chosen}
    if output == "json":
        show_json(results[name] if name != "all" else results)
