"""The five ready-made systems, each with its pipeline and its demo."""

from __future__ import annotations

from ebbtide.state import register_decoder
from ebbtide.systems.jobs import (
    DEMOS,
    READY,
    find_code,
    find_pipeline,
    find_query,
    names_pipeline,
    play_demo,
    require_reference,
)

__all__ = [
    "DEMOS",
    "READY",
    "find_code",
    "find_pipeline",
    "find_query",
    "names_pipeline",
    "play_demo",
    "register_decoders",
    "require_reference",
]


def register_decoders() -> None:
    """Let this process read the state that our systems keep in formats of their own."""
    register_decoder("ebbtide.systems.early_writer.state_decoder:DECODER")
