"""Lines with questions about a state in, lines with answers out: the process that holds Spark."""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ebbtide.config import Settings
from ebbtide.errors import EbbtideError
from ebbtide.web.subprocesses import MARK, Family

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAME = "page-state"
_END_SECONDS, _LAST_SECONDS = 10.0, 5.0
"""So long may take what nobody waits for any more; and so long its end."""


def main() -> None:
    """Answer questions until stdin ends."""
    home, zone = sys.argv[1:]
    settings = Settings(home=Path(home), timezone=zone)
    # the JVM writes where we write: only answers may go to the page
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    questions: queue.Queue[bytes | None] = queue.Queue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, questions), daemon=True).start()
    spark: SparkSession | None = None
    while (line := questions.get()) is not None:
        reply: dict[str, Any]
        try:
            spark = spark or _start(settings)
            reply = {"answer": _HANDLERS[(question := json.loads(line)).pop("do")](spark, question)}
        except EbbtideError as error:
            kind = type(error).__name__
            reply = {"kind": kind, "problem": error.problem, "next_step": error.next_step}
        except Exception:
            reply = {"bug": traceback.format_exc()}
        try:
            answers.write(json.dumps(reply).encode() + b"\n")
            answers.flush()
        except OSError:
            break  # nobody listens any more
        if "answer" not in reply and not _is_well(spark):
            break  # another process is better than one whose JVM is gone
    if spark is not None:
        from ebbtide.runtime.session import close_session

        close_session(spark)


def _listen(lines: IO[bytes], questions: queue.Queue[bytes | None]) -> None:
    for line in lines:
        questions.put(line)
    questions.put(None)
    # the page is gone; what is being read nobody waits for
    time.sleep(_END_SECONDS)
    Family(os.environ.get(MARK)).end(_LAST_SECONDS)  # a JVM that is not up yet outlives us
    os._exit(1)


def _start(settings: Settings) -> SparkSession:
    from ebbtide.runtime import java as jvm
    from ebbtide.runtime.session import build_session

    if jvm.missing_jars():
        jvm.resolve_jars(lambda _done, _all: None)
    return build_session(_NAME, settings)


def _is_well(spark: SparkSession | None) -> bool:
    try:
        return spark is None or not spark.sparkContext._jsc.sc().isStopped()
    except Exception:
        return False


def _show(spark: SparkSession, asked: dict[str, Any]) -> dict[str, Any]:
    from ebbtide.checkpoint import read_checkpoint
    from ebbtide.state.parts import find_part, require_state
    from ebbtide.state.preview import preview_state
    from ebbtide.state.reading import plain_errors, read_state

    found = read_checkpoint(asked["location"])
    part = find_part(found, **asked["part"])
    batch = require_state(found, part, asked["batch"])
    with plain_errors(found, part, batch):
        rows = read_state(spark, found, part, batch, contains=asked["contains"])
        return asdict(preview_state(rows, asked["limit"]))


def _diff(spark: SparkSession, asked: dict[str, Any]) -> dict[str, Any]:
    from ebbtide.checkpoint import read_checkpoint
    from ebbtide.state.diff import diff_state
    from ebbtide.state.parts import find_part, require_span
    from ebbtide.state.preview import preview_changes
    from ebbtide.state.reading import plain_errors

    found = read_checkpoint(asked["location"])
    part = find_part(found, **asked["part"])
    before, after = require_span(found, part, asked["before"], asked["after"])
    with plain_errors(found, part, before, after):
        changes = diff_state(spark, found, part, before, after, contains=asked["contains"])
        return asdict(preview_changes(changes, asked["limit"]))


_HANDLERS: Mapping[str, Callable[[SparkSession, dict[str, Any]], dict[str, Any]]] = {
    "show": _show,
    "diff": _diff,
}

if __name__ == "__main__":
    main()
