"""Parse what Spark's console sink printed, for the demos of systems that print."""

from __future__ import annotations

import re
from dataclasses import dataclass

_HEAD = re.compile(r"-{5,}\nBatch: (\d+)\n-{5,}\n")


@dataclass(frozen=True)
class ConsoleBatch:
    """One printed batch: its id, its rows by column name, and the text as printed."""

    id: int
    rows: tuple[dict[str, str], ...]
    text: str


def parse_console(text: str) -> list[ConsoleBatch]:
    r"""The batches that were printed completely, in the order of printing.

    >>> dashes = "-" * 43
    >>> table = "+-----+\n|count|\n+-----+\n|3    |\n+-----+\n\n"
    >>> parse_console(f"{dashes}\nBatch: 1\n{dashes}\n{table}")[0].rows
    ({'count': '3'},)
    """
    heads = list(_HEAD.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    batches = []
    for head, end in zip(heads, ends, strict=False):
        table = [line for line in text[head.end() : end].splitlines() if line[:1] in ("+", "|")]
        # border, header, border, rows, border
        if [line[0] for line in table].count("+") < 3:
            continue
        names = _cells(table[1])
        rows = tuple(dict(zip(names, _cells(row), strict=True)) for row in table[3:-1])
        batches.append(ConsoleBatch(int(head[1]), rows, text[head.start() : end].rstrip()))
    return batches


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]
