"""Bash completes commands, options and jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Cli

PROGRAM = """
source "$1"; shift
COMP_CWORD=$(($# - 1))
COMP_WORDS=("$@")
$(complete -p ebbtide | sed 's/.*-F \\([^ ]*\\) .*/\\1/') ebbtide
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory, cli: Cli) -> Path:
    """The script, and a program `ebbtide` that runs this tree."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "script").write_text(cli("completion", "bash").stdout)
    program = folder / "ebbtide"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ebbtide "$@"\n')
    program.chmod(0o755)
    return folder / "script"


@pytest.mark.parametrize(
    ("words", "offered", "others"),
    [
        (["re"], {"rewind", "replay", "reprocess", "retry"}, {"run"}),
        (["rewind", "c", "--to-"], {"--to-batch", "--to-latest-good"}, {"--sink"}),
        (["run", "visits-w"], {"visits-windows-counter"}, {"visits-counter"}),
        (["archive", "visits-"], {"visits-counter"}, {"browser-stats-stateless"}),
        (["reprocess", "b"], {"browser-stats-stateful"}, {"visits-counter"}),
        (["broker", "st"], {"start", "stop", "status"}, {"run"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bash_offers(script: Path, words: list[str], offered: set[str], others: set[str]) -> None:
    path = f"{script.parent}{os.pathsep}{os.environ['PATH']}"
    answer = subprocess.run(
        ["bash", "--norc", "-c", PROGRAM, "bash", script, "ebbtide", *words],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PATH": path},
    )
    found = set(answer.stdout.split())
    assert offered <= found, answer
    assert not others & found


@pytest.mark.parametrize(("shell", "line"), [("zsh", "compdef"), ("fish", "complete --command")])
def test_other_shells_have_a_script(inside: Cli, shell: str, line: str) -> None:
    said = inside("completion", shell)
    assert said.returncode == 0
    assert line in said.stdout
    assert "_EBBTIDE_COMPLETE" in said.stdout


def test_an_unknown_shell_is_refused(inside: Cli) -> None:
    refused = inside("completion", "tcsh")
    assert refused.returncode == 2
    assert "'tcsh' is not one of 'bash', 'zsh'" in refused.stderr
