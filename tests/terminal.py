"""Run commands as a person types them, in a terminal of 80 columns, and draw what they show."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

COLUMNS, LINES = 80, 40
_ALWAYS = re.compile(r"(\. \S+activate|\w+=\S+)(\s|$)")
"""What the shell keeps for later commands."""
_LINE_SECONDS = 0.06
_COMMAND_SECONDS = 1.5


@dataclass(frozen=True)
class Shown:
    """A command as typed, what the terminal showed, and how it ended."""

    command: str
    output: str
    code: int

    @property
    def plain(self) -> str:
        """The output without colours."""
        return re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", self.output)


def type_in(
    lines: Iterable[str], folder: Path, environ: Mapping[str, str], answer: str = "y\n"
) -> list[Shown]:
    """Type the lines of a document one by one; a question gets the answer, an error ends it."""
    kept: list[str] = []
    shown: list[Shown] = []
    for line in lines:
        command = re.split(r"\s+# ", line)[0].strip()
        if not command:
            continue
        if _ALWAYS.match(command):
            kept.append(command)
            continue
        shown.append(_run(command, kept, folder, environ, answer))
        assert shown[-1].code == 0, f"{command}\n{shown[-1].plain}"
    return shown


def _run(
    command: str, kept: list[str], folder: Path, environ: Mapping[str, str], answer: str
) -> Shown:
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    echo = termios.tcgetattr(side)
    echo[3] &= ~termios.ECHO
    termios.tcsetattr(side, termios.TCSANOW, echo)
    sized = {"COLUMNS": str(COLUMNS), "LINES": str(LINES), "TERM": "xterm-256color"}
    process = subprocess.Popen(
        ["bash", "-c", "\n".join([*kept, command])],
        cwd=folder,
        env={**os.environ, **sized, **environ},
        stdin=side,
        stdout=side,
        stderr=side,
    )
    os.close(side)
    os.write(main, answer.encode())
    output = b""
    while True:
        try:
            read = os.read(main, 65_536)
        except OSError:  # the last process has closed its end
            break
        if not read:
            break
        output += read
    os.close(main)
    text = output.decode("utf-8", "replace").replace("\r\n", "\n")
    return Shown(command, text, process.wait())


def draw(shown: Iterable[Shown], file: Path, title: str) -> None:
    """Write an SVG in which line after line appears, as in the terminal."""
    from rich.ansi import AnsiDecoder
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    delays: list[float] = []
    now = 0.0
    for each in shown:
        lines = [Text.assemble(("$ ", "bold green"), each.command)]
        lines += AnsiDecoder().decode(each.output.strip("\n"))
        lines.append(Text(""))
        for number, line in enumerate(lines):
            rows = line.wrap(console, COLUMNS) or [line]
            console.print(line)
            now += _COMMAND_SECONDS if number == 1 else _LINE_SECONDS
            delays += [now] * len(rows)
        now += _COMMAND_SECONDS
    svg = console.export_svg(title=title, unique_id="rewind")
    for number, delay in reversed(list(enumerate(delays))):
        place = f'clip-path="url(#rewind-line-{number})"'
        svg = svg.replace(place, f'{place} class="step" style="animation-delay:{delay:.2f}s"')
    # two classes: rich gives each text its own
    svg = re.sub(r'class="([\w-]+)"([^>]*) class="step"', r'class="\1 step"\2', svg)
    motion = (
        "@media (prefers-reduced-motion: no-preference) "
        "{ .step { opacity: 0; animation: step 0s forwards } "
        "@keyframes step { to { opacity: 1 } } }"
    )
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # no request to another host
    file.write_text(svg.replace("</style>", f"{motion}\n</style>", 1), "utf-8")
