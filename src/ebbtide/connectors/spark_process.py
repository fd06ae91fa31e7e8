"""Change a sink with Spark, in a process of its own, from code that itself needs no Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict

from ebbtide.checkpoint import SinkChange
from ebbtide.errors import CheckpointError

CODE = "import sys; sys.path.pop(0); from ebbtide.runtime.sink_change import main; main()"
"""By name, because the runtime lies above the connectors; no module of the current folder."""


def call_with_spark(function: str, change: SinkChange, marks: Mapping[str, str]) -> None:
    """Call a connector's function (`module:name`) with a session, the change and the marks.

    The process lives no longer than this one: it ends when its input does. So nothing is changed
    any more when an interrupted change is run again.
    """
    job = json.dumps({"function": function, "change": asdict(change), "marks": dict(marks)})
    # with a JVM of its own, also if ours was started by spark-submit
    gateway = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")
    environment = {name: value for name, value in os.environ.items() if name not in gateway}
    with subprocess.Popen(
        [sys.executable, "-c", CODE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{job}\n")
            process.stdin.flush()
            lines = process.stdout.read().splitlines()
        except BaseException:
            process.kill()
            raise
    if process.returncode == 0:
        return
    try:
        answer = json.loads(lines[-1])
        raise CheckpointError(answer["problem"], answer["next_step"])
    except (IndexError, KeyError, TypeError, ValueError):
        raise CheckpointError(
            f"Spark ended before it had changed {change.path}.", "Type: ebbtide doctor"
        ) from None
