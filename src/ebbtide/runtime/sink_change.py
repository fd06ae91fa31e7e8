"""Carry out a change of a sink with Spark: a process that `connectors` starts and waits for.

Its input is the change, one line of JSON. If it fails, the last line of its output says why.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ebbtide.checkpoint import SinkChange
from ebbtide.config import load_settings
from ebbtide.errors import EbbtideError, first_line
from ebbtide.notes import decode

_APP = "sink-change"


def main() -> None:
    """Call the function that the input names, with a session."""
    plain: dict[str, Any] = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    module, _, name = plain["function"].partition(":")
    try:
        from ebbtide.runtime.session import open_session

        change = decode(SinkChange, plain["change"])
        with (
            TemporaryDirectory(ignore_cleanup_errors=True) as home,
            open_session(
                _APP,
                replace(load_settings(), home=Path(home)),
                master="local[*]",
                locations=[change.path],
            ) as spark,
        ):
            try:
                getattr(import_module(module), name)(spark, change, plain["marks"])
            except EbbtideError:
                raise
            except Exception as error:
                java = getattr(error, "java_exception", None)
                why = first_line(java.toString() if java else str(error))
                raise EbbtideError(
                    f"Spark cannot restore {change.path}: {why}.",
                    "Restore it yourself, then go on with --sink append-again.",
                ) from None
    except EbbtideError as error:
        print(json.dumps({"problem": error.problem, "next_step": error.next_step}))  # noqa: T201
        sys.exit(1)


def _end_with_parent() -> None:
    """End, and with us the JVM, as soon as the process that started us is gone."""
    sys.stdin.read()
    os._exit(1)
