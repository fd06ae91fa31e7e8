"""The command `ebbtide demo`, which plays a system end to end, with explanations."""

from __future__ import annotations

from pkgutil import resolve_name

from ebbtide.cli import options
from ebbtide.cli.commands import argument, command
from ebbtide.cli.output import ensure_jars, show_json
from ebbtide.errors import UsageError


@command("ebbtide demo", "ebbtide demo batch-reprocessor")
def demo(
    environment: options.HomeOptions,
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
    from ebbtide.systems import DEMOS

    if name not in DEMOS and name != "all":
        raise UsageError(f"There is no demo {name!r}.", f"There are: {', '.join(DEMOS)}, all.")
    settings = environment.settings
    ensure_jars()
    chosen = list(DEMOS) if name == "all" else [name]
    narrator = _Narrator(to_stderr=output == "json")
    results = {each: resolve_name(DEMOS[each])(settings, narrator) for each in chosen}
    if output == "json":
        show_json(results[name] if name != "all" else results)


class _Narrator:
    """Writes a demo's explanations to the terminal."""

    def __init__(self, *, to_stderr: bool) -> None:
        from rich.console import Console

        self._console = Console(stderr=to_stderr, highlight=False, markup=False)

    def title(self, text: str) -> None:
        self._console.print()
        self._console.rule(f" {text} ", align="left", style="bold cyan", characters="─")

    def tell(self, text: str) -> None:
        self._console.print(text, width=min(self._console.width, 80))

    def show(self, text: str) -> None:
        self._console.print()
        self._console.print(text.rstrip("\n"), soft_wrap=True, style="dim")
        self._console.print()

    def check(self, text: str) -> None:
        self._console.print(f"✓ {text}", style="green")
