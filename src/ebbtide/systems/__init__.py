"""The five ready-made systems, each with its pipeline and its demo."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbtide.lazy import load_on_use
from ebbtide.state import register_decoder
from ebbtide.systems.jobs import READY, find_pipeline

if TYPE_CHECKING:
    from ebbtide.systems.demos import DEMOS

__all__ = ["DEMOS", "READY", "find_pipeline", "register_decoders"]

__getattr__ = load_on_use(__name__, demos="DEMOS")


def register_decoders() -> None:
    """Let this process read the state that our systems keep in formats of their own."""
    register_decoder("ebbtide.systems.early_writer.state_decoder:DECODER")
