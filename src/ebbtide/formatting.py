"""Format values for people."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

_COMMAND = re.compile(
    r"(?<=: )(?!make sure)(?=(?:ebbtide|pip install|python3? -m|make|kill) \S|\.option\()"
)
"""Where the command begins that ends a message."""
_EMOJI = "\ufe0f"
"""Makes an emoji, which is two columns wide, of the character before it."""
_NAMED = 3
"""Maximum number of batches to list one by one."""


def format_bytes(size: float) -> str:
    """Format a number of bytes.

    >>> format_bytes(512), format_bytes(1536), format_bytes(5 * 1024**3)
    ('512 B', '1.5 KiB', '5.0 GiB')
    """
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def format_count(number: int | None) -> str:
    """Format a number for a table; `-` if it is not known.

    >>> format_count(12345), format_count(None)
    ('12,345', '-')
    """
    return "-" if number is None else f"{number:,}"


def format_number(number: int, noun: str) -> str:
    """A number with its noun, whose plural ends in -s.

    >>> format_number(1, "result"), format_number(20_000, "result")
    ('1 result', '20,000 results')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def find_runs(places: Sequence[float], step: float = 1) -> list[tuple[float, float]]:
    """Neighbouring numbers as ranges.

    >>> find_runs([1, 2, 3, 7, 9, 10])
    [(1, 3), (7, 7), (9, 10)]
    """
    runs: list[tuple[float, float]] = []
    for place in places:
        if runs and place - runs[-1][1] <= 1.5 * step:
            runs[-1] = (runs[-1][0], place)
        else:
            runs.append((place, place))
    return runs


def format_batches(ids: Sequence[int]) -> str:
    """Numbers of batches for a message.

    >>> format_batches([3]), format_batches([3, 4, 5]), format_batches([3, 4, 9])
    ('batch 3', 'batches 3 to 5', 'batches 3, 4 and 9')
    >>> format_batches([3, 5, 7, 9])
    '4 batches from 3 to 9'
    """
    *others, last = ids
    if not others:
        return f"batch {last}"
    if len(ids) > last - others[0]:
        return f"batches {others[0]} to {last}"
    if len(ids) > _NAMED:
        return f"{len(ids)} batches from {others[0]} to {last}"
    return f"batches {', '.join(map(str, others))} and {last}"


def display_width(text: str) -> int:
    """How many columns of a terminal a text takes.

    >>> display_width("visits"), display_width("訪問"), display_width("✍️")
    (6, 4, 2)
    """
    return len(text) if text.isascii() else sum(map(_width, text, f"{text[1:]} "))


def _width(character: str, following: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):  # combined with the one before
        return 0
    wide = following == _EMOJI or unicodedata.east_asian_width(character) in "WF"
    return 2 if wide else 1


def wrap(text: str, width: int) -> list[str]:
    """The lines of a text; no word, no path and no command is broken.

    A command at the end of a sentence, after a colon, gets a line of its own if it does not fit.

    >>> wrap("It is gone. To go back: ebbtide rewind /data/c --to-batch 1", 30)
    ['It is gone. To go back:', 'ebbtide rewind /data/c --to-batch 1']
    >>> wrap("/data/checkpoints/orders-by-customer is gone", 30)
    ['/data/checkpoints/orders-by-customer', 'is gone']
    >>> wrap("訪問 注文 訪問", 10)
    ['訪問 注文', '訪問']
    """
    return [line for each in text.split("\n") for line in _wrap_line(each, width)]


def _wrap_line(text: str, width: int) -> list[str]:
    if display_width(text) <= width:
        return [text]
    found = _COMMAND.search(text)
    prose, command = (text[: found.start()], text[found.start() :]) if found else (text, "")
    lines = _fill(prose, width)
    if command and lines and display_width(f"{lines[-1]} {command}") <= width:
        lines[-1] += f" {command}"
        return lines
    return [*lines, *filter(None, [command])]


def _fill(text: str, width: int) -> list[str]:
    """As `textwrap.wrap`, which takes every character for one column wide."""
    lines: list[str] = []
    # a no-break space is no end of a word
    for word in re.findall(r"\s*\S+", text.rstrip(), re.ASCII):
        if lines and display_width(lines[-1] + word) <= width:
            lines[-1] += word
        else:
            lines.append(word.lstrip() if lines else word)
    return lines
