"""Read the state of a query after a batch, by Spark's own state reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbtide.lazy import load_on_use
from ebbtide.state import parts, values
from ebbtide.state.decoders import StateDecoder, register_decoder
from ebbtide.state.parts import StatePart

if TYPE_CHECKING:
    from ebbtide.state.diff import diff_state, summarize
    from ebbtide.state.preview import preview_changes, preview_state
    from ebbtide.state.reading import plain_errors, read_state, take

__all__ = [
    "StateDecoder",
    "StatePart",
    "diff_state",
    "parts",
    "plain_errors",
    "preview_changes",
    "preview_state",
    "read_state",
    "register_decoder",
    "summarize",
    "take",
    "values",
]

if not TYPE_CHECKING:  # so that the type checker sees which names there are
    # these need pyspark
    __getattr__ = load_on_use(
        __name__,
        diff="diff_state summarize",
        preview="preview_changes preview_state",
        reading="plain_errors read_state take",
    )
