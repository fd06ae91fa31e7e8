"""Play targets with one engine, each in a forked process, and print what came of each as JSON.

Ebbtide is imported once, for Atheris with every branch counted.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fuzz.watch import Watch

_TELL_SECONDS = 15


def main(words: list[str]) -> None:
    """`ENGINE SEED PLANT FOLDER TARGET=CASES …`: a line for each target."""
    engine, seed, plant, folder, *shares = words
    if engine == "atheris":
        _count_branches()
    from tests.fuzz.target import scratch
    from tests.fuzz.targets import all_targets

    scratch()  # this process removes it
    # what is imported on first use is imported now, but for threads that no fork would have
    for target in (all_targets()[share.partition("=")[0]] for share in shares):
        for data in [] if target.native else target.values()[:20]:
            with suppress(*target.allowed):
                target.play(data)
    for share in shares:
        name, _, cases = share.partition("=")
        log = Path(folder, f"{name}-{engine}.log")
        result = _play_apart(log, name, engine, int(cases), int(seed), plant)
        print(json.dumps({"target": name, "log": str(log), **result}), flush=True)  # noqa: T201


def _count_branches() -> None:
    """From now on, imported modules of Ebbtide tell Atheris which branches a case takes."""
    import atheris

    atheris.instrument_imports(include=["ebbtide"]).__enter__()


def _play_apart(log: Path, *how: Any) -> dict[str, Any]:
    """Play a target in a child: Atheris runs once in a process, and a case may end it."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            terminal = os.dup(2)
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(descriptor, 2)
            os.dup2(descriptor, 1)
            answer = json.dumps(_play(terminal, *how)).encode()
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(answer)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(0)  # nothing of the parent's is cleaned up
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    result: dict[str, Any] = json.loads(said) if said else {"died": status}
    return result


def _play(
    terminal: int, name: str, engine: str, cases: int, seed: int, plant: str
) -> dict[str, Any]:
    from tests.fuzz import engines, faults
    from tests.fuzz.targets import all_targets
    from tests.fuzz.watch import Watch, silence

    silence()
    watch, began = Watch(all_targets()[name]), time.monotonic()
    told = [began]

    def tell(watch: Watch) -> None:
        now = time.monotonic()
        if now - told[0] > _TELL_SECONDS:
            told[0] = now
            found = f", {len(watch.failures)} failures" if watch.failures else ""
            line = f"  {name} ({engine}): {watch.cases:,} cases in {now - began:.0f} s{found}\n"
            os.write(terminal, line.encode())

    with faults.planted(plant), watch.limits():
        engines.ENGINES[engine](watch, cases, seed, tell)
        seconds = time.monotonic() - began
        watch.minimize()
    return {
        "cases": watch.cases,
        "seconds": seconds,
        "slowest": watch.slowest,
        "peak": watch.peak,
        "failures": [
            {**asdict(each), "data": base64.b64encode(each.data).decode()}
            for each in watch.failures.values()
        ],
    }


if __name__ == "__main__":
    main(sys.argv[1:])
