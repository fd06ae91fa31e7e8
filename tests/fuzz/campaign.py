"""The campaign: share the cases out, play each target, keep the failures, print the figures."""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.fuzz import faults
from tests.fuzz.target import Target
from tests.fuzz.targets import all_targets
from tests.fuzz.watch import Watch

_ROOT = Path(__file__).parents[2]
FOLDER = _ROOT / "build" / "fuzz"
_DRAWN = 0.1
"""The part of the cases that Hypothesis draws where there is Atheris, which is much faster."""
_EDGES = re.compile(r"cov: (\d+) ft:")


@dataclass
class Figures:
    """What one target came to."""

    target: str
    cases: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    peak: int = 0
    edges: int = 0
    failures: dict[str, Path] = field(default_factory=dict)

    @property
    def row(self) -> str:
        """A line of the table."""
        failed = f"{len(self.failures)}" if self.failures else ""
        return (
            f"{self.target:<18}{self.cases:>10,}{self.seconds:>9.0f}"
            f"{self.slowest * 1000:>12.0f}{self.peak >> 10:>9}{self.edges or '':>8}{failed:>10}"
        )


_HEAD = (
    f"{'target':<18}{'cases':>10}{'seconds':>9}{'slowest ms':>12}{'peak MB':>9}{'edges':>8}"
    f"{'failures':>10}"
)


def main(words: Sequence[str]) -> int:
    """Run the command line; the exit code."""
    options = _parse(words)
    if options.replay:
        return _replay(options.replay, options.target)
    engines = ["hypothesis"]
    if find_spec("atheris"):
        engines.append("atheris")
    else:
        _say("Atheris is not installed, so Hypothesis draws all cases: see requirements/fuzz.txt.")
    planted = [faults.FAULTS[options.plant].target] if options.plant else list(all_targets())
    targets = [all_targets()[name] for name in options.target or planted]
    _say(f"seed {options.seed}, {options.cases:,} cases, engines: {' and '.join(engines)}")
    found, began = {target.name: Figures(target.name) for target in targets}, time.monotonic()
    shares = _share_out(targets, options.cases)
    for engine in engines:
        part = 1.0 if len(engines) == 1 else _DRAWN if engine == "hypothesis" else 1 - _DRAWN
        counts = {name: max(1, round(cases * part)) for name, cases in shares.items()}
        _play(found, engine, counts, options.seed, options.plant or "")
    total = Figures(
        "all",
        sum(one.cases for one in found.values()),
        time.monotonic() - began,
        max(one.slowest for one in found.values()),
        max(one.peak for one in found.values()),
        sum(one.edges for one in found.values()),
        {
            f"{one.target} {key}": file
            for one in found.values()
            for key, file in one.failures.items()
        },
    )
    table = "\n".join([_HEAD, *(one.row for one in found.values()), total.row])
    print(table)  # noqa: T201
    for key, file in total.failures.items():
        print(f"{key}\n    python -m tests.fuzz --replay {os.path.relpath(file)}")  # noqa: T201
    if options.plant:
        shows = faults.FAULTS[options.plant].shows
        is_found = any(f" {shows} in " in f" {key}" for key in total.failures)
        print(f"The planted fault {options.plant!r} was {'' if is_found else 'not '}found.")  # noqa: T201
        return int(not is_found)
    return int(bool(total.failures))


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", nargs="*", choices=[*all_targets(), []], help="default: all")
    parser.add_argument("--cases", type=int, default=1_000_000, help="of all targets together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plant", choices=faults.FAULTS, help="a fault, which must be found")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run a kept input again")
    return parser.parse_args(words)


def _share_out(targets: list[Target], cases: int) -> dict[str, int]:
    shares = sum(target.share for target in targets)
    return {target.name: -(-cases * target.share // shares) for target in targets}


def _play(
    found: Mapping[str, Figures], engine: str, counts: Mapping[str, int], seed: int, plant: str
) -> None:
    """Play all targets with one engine, in a process of its own."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    shares = [f"{name}={cases}" for name, cases in counts.items()]
    command = [sys.executable, "-m", "tests.fuzz.worker", engine, str(seed), plant, str(FOLDER)]
    with subprocess.Popen(
        [*command, *shares], cwd=_ROOT, stdout=subprocess.PIPE, text=True
    ) as worker:
        for line in worker.stdout or ():
            result = json.loads(line)
            _add(found[result["target"]], engine, result)
    if worker.returncode:
        raise SystemExit(f"The worker of {engine} ended with {worker.returncode}.")


def _add(figures: Figures, engine: str, result: Mapping[str, Any]) -> None:
    """Add what one engine came to."""
    log = Path(result["log"])
    if "died" in result:
        _say(f"{figures.target} ({engine}) died with {result['died']}; see {log}")
        figures.failures[f"died with {engine}"] = log
        return
    figures.cases += result["cases"]
    figures.seconds += result["seconds"]
    figures.slowest = max(figures.slowest, result["slowest"])
    figures.peak = max(figures.peak, result["peak"])
    counted = _EDGES.findall(log.read_text(errors="replace"))
    figures.edges = max(figures.edges, int(counted[-1]) if counted else 0)
    for failure in result["failures"]:
        file = _keep(figures.target, failure)
        figures.failures[failure["key"]] = file
        _say(f"{figures.target} ({engine}): {failure['key']}, {failure['times']} times: {file}")
    _say(f"{engine:<12}{figures.row}")


def _keep(target: str, failure: dict[str, Any]) -> Path:
    """Keep the shortest input of a failure, and its traceback."""
    place = FOLDER / target
    place.mkdir(parents=True, exist_ok=True)
    file = place / hashlib.sha256(failure["key"].encode()).hexdigest()[:12]
    file.write_bytes(base64.b64decode(failure["data"]))
    file.with_suffix(".txt").write_text(f"{failure['key']}\n\n{failure['trace']}")
    return file


def _replay(file: Path, names: Sequence[str]) -> int:
    """Run an input again; its folder has the name of the target, unless one is given."""
    target = all_targets()[names[0] if names else file.parent.name]
    watch = Watch(target)
    with watch.limits():
        watch.run(file.read_bytes())
    for failure in watch.failures.values():
        print(f"{failure.key}\n{failure.trace}")  # noqa: T201
    if not watch.failures:
        print(f"{target.name}: no failure, {watch.slowest * 1000:.0f} ms")  # noqa: T201
    return int(bool(watch.failures))


def _say(line: str) -> None:
    os.write(2, f"{line}\n".encode("utf-8", "replace"))
