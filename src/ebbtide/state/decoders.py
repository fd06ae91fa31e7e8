"""Decoders for state that a pipeline keeps in a format of its own, such as packed bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_REFERENCES: list[str] = []


@dataclass(frozen=True)
class StateDecoder:
    """Turns rows of the state (`key`, `value`, `partition`) into rows that people can read."""

    matches: Callable[[DataFrame], bool]
    """Whether these rows are in the decoder's format, judged by their schema."""
    decode: Callable[[DataFrame], DataFrame]
    """The decoded rows, with the same three columns; one row may become several."""


def register_decoder(reference: str) -> None:
    """Register the `StateDecoder` at `module:attribute`; it is imported when state is read.

    Every process that reads state registers its decoders itself.
    """
    if reference not in _REFERENCES:
        _REFERENCES.append(reference)


def find_decoder(rows: DataFrame) -> StateDecoder | None:
    """The first registered decoder that matches these rows."""
    decoders: list[StateDecoder] = [resolve_name(reference) for reference in _REFERENCES]
    return next((decoder for decoder in decoders if decoder.matches(rows)), None)
