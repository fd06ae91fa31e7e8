"""The process that runs Spark for the web UI and answers questions about state in JSON lines."""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

from ebbtide.config import Settings
from ebbtide.errors import EbbtideError
from ebbtide.web.subprocesses import MARK, ProcessTree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAME = "page-state"
_END_SECONDS, _LAST_SECONDS = 10.0, 5.0
"""How long a read that nobody waits for may go on, and how long its end may take."""


def main() -> None:
    """Answer questions until stdin ends, or until there has been none for a while."""
    home, zone, idle_seconds = sys.argv[1:]
    settings = Settings(home=Path(home), timezone=zone)
    # the JVM shares our stdout: only answers may go to the web UI
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    questions: queue.Queue[bytes | None] = queue.Queue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, questions), daemon=True).start()
    spark: SparkSession | None = None
    session = ExitStack()
    while line := _next_question(questions, float(idle_seconds)):
        reply: dict[str, Any]
        try:
            asked = json.loads(line)
            spark = spark or _start(settings, session, asked["location"])
            reply = {"answer": _read(spark, asked)}
        except EbbtideError as error:
            kind = type(error).__name__
            reply = {"kind": kind, "problem": error.problem, "next_step": error.next_step}
        except Exception:
            reply = {"bug": traceback.format_exc()}
        try:
            answers.write(json.dumps(reply).encode() + b"\n")
            answers.flush()
        except OSError:
            break  # nobody is listening
        if "answer" not in reply and not _is_well(spark):
            break  # the JVM is gone: the web UI starts another process
    try:
        session.close()
    except Exception:
        traceback.print_exc()
    _exit(0)


def _next_question(questions: queue.Queue[bytes | None], idle_seconds: float) -> bytes | None:
    with suppress(queue.Empty):
        return questions.get(timeout=idle_seconds)
    return None


def _listen(lines: IO[bytes], questions: queue.Queue[bytes | None]) -> None:
    for line in lines:
        questions.put(line)
    questions.put(None)
    # the web UI is gone, and nobody waits for what is being read
    time.sleep(_END_SECONDS)
    _exit(1)


def _exit(code: int) -> NoReturn:
    """End at once: Python would wait for a read, or fail because a thread still reads stdin."""
    ProcessTree(os.environ.get(MARK)).end(_LAST_SECONDS)  # a JVM that is not up yet outlives us
    os._exit(code)


def _start(settings: Settings, session: ExitStack, location: str) -> SparkSession:
    from ebbtide.runtime import session as sessions
    from ebbtide.systems import register_decoders

    register_decoders()
    options = {"master": "local[*]", "locations": [location]}
    return session.enter_context(sessions.open_session(_NAME, settings, **options))


def _is_well(spark: SparkSession | None) -> bool:
    try:
        return spark is None or not spark.sparkContext._jsc.sc().isStopped()
    except Exception:
        return False


def _read(spark: SparkSession, asked: Mapping[str, Any]) -> dict[str, Any]:
    from ebbtide.checkpoint import read_checkpoint
    from ebbtide.state import (
        diff_state,
        parts,
        plain_errors,
        preview_changes,
        preview_state,
        read_state,
    )

    checkpoint = read_checkpoint(asked["location"])
    part = parts.find_part(checkpoint, **asked["part"])
    contains, limit = asked["contains"], asked["limit"]
    if asked["do"] == "show":
        batch = parts.require_state(checkpoint, part, asked["batch"])
        with plain_errors(checkpoint, part, batch, has_where=False):
            rows = read_state(spark, checkpoint, part, batch, contains=contains)
            return preview_state(rows, limit)
    batches = parts.require_span(checkpoint, part, asked["before"], asked["after"])
    with plain_errors(checkpoint, part, *batches, has_where=False):
        changes = diff_state(spark, checkpoint, part, *batches, contains=contains)
        return preview_changes(changes, limit)


if __name__ == "__main__":
    main()
