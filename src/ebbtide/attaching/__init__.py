"""Follow queries that somebody else's program runs: history, lease, metrics, sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbtide.lazy import load_on_use

if TYPE_CHECKING:
    from ebbtide.attaching.attachment import Attachment, attach, detach
    from ebbtide.attaching.observing import observe
    from ebbtide.attaching.program import run_program

__all__ = ["Attachment", "attach", "detach", "observe", "run_program"]

if not TYPE_CHECKING:  # so that the type checker sees which names there are
    # all of them need pyspark
    __getattr__ = load_on_use(
        __name__,
        attachment="Attachment attach detach",
        observing="observe",
        program="run_program",
    )
