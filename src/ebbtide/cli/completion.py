"""The command `ebbtide completion`, which lets a shell complete commands, options and jobs."""

from __future__ import annotations

import os
import sys
from typing import Literal

from ebbtide.cli.commands import argument, command

_PROGRAM, _VARIABLE = "ebbtide", "_EBBTIDE_COMPLETE"


@command(
    "ebbtide completion bash >> ~/.bashrc",
    "ebbtide completion zsh >> ~/.zshrc",
    "ebbtide completion fish > ~/.config/fish/completions/ebbtide.fish",
)
def completion(
    shell: Literal["bash", "zsh", "fish"] = argument("SHELL", "bash, zsh or fish."),
) -> None:
    """Print the script with which a shell completes commands, options and jobs.

    Add it to the file that your shell reads when it starts.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    script = get_completion_script(prog_name=_PROGRAM, complete_var=_VARIABLE, shell=shell)
    sys.stdout.write(f"{script.strip()}\n")


def prepare_completion() -> None:
    """Let Typer answer if a shell asks what could come next, which the script does."""
    if _VARIABLE in os.environ:
        from typer.completion import get_completion_inspect_parameters

        get_completion_inspect_parameters()
