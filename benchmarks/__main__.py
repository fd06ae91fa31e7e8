"""`python -m benchmarks [NAME …] [--quick]`: ratios measured side by side in one run.

`works` stands for all that `make bench` runs, `peers` for those of them that are compared with
other systems. `report` writes docs/performance.md from the results that were kept.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import (
    archive,
    archiving,
    attach,
    beside,
    checkpoint,
    clean_stream,
    early_writer,
    generator,
    history,
    latency,
    page,
    recovery,
    reprocess,
    small_batch,
    start,
    visit_reports,
    windowed_count,
)
from benchmarks.contest import open_stage
from benchmarks.measure import ContenderError, Progress, Ratio, Result, format_results
from benchmarks.records import Entry, keep_entry
from benchmarks.report import RESULTS, write_report
from ebbtide.errors import EbbtideError

Run = Callable[..., Iterable[str | Result | Ratio]]
ALONE: dict[str, Run] = {
    "checkpoint": checkpoint.run,
    "generator": generator.run,
    "clean-stream": clean_stream.run,
    "history": history.run,
    "attach": attach.run,
    "page": page.run,
    "start": start.run,
    "latency": latency.run,
    "small-batch": small_batch.run,
    "recovery": recovery.run,
    "archive": archive.run,
    "reprocess": reprocess.run,
    "beside": beside.run,
    "early-writer": early_writer.run,
}
"""Ebbtide against plain Spark or against itself."""
PEERS: dict[str, Run] = {
    "windowed-count": windowed_count.run,
    "visit-reports": visit_reports.run,
    "archiving": archiving.run,
}
"""Ebbtide against other systems."""
WORKS = (
    *PEERS,
    *("start", "small-batch", "reprocess", "recovery", "latency", "history", "checkpoint"),
)
"""What `make bench` runs."""
ALL = ALONE | PEERS


def main() -> None:
    """Run the benchmarks that are named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    listed = f"works, peers, report, {', '.join(ALL)}; all if none"
    parser.add_argument("names", nargs="*", metavar="NAME", help=listed)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the results in this file")
    arguments = parser.parse_args()
    names = list(_expand(arguments.names or ALL))
    if unknown := set(names) - {*ALL, "report"}:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(ALL)}")
    # ends the broker and the contenders, as Ctrl-C does
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="ebbtide-bench-"))
        os.environ["XDG_STATE_HOME"] = folder  # the web UI lists no checkpoint of a benchmark
        if set(names) & set(PEERS):
            stack.enter_context(open_stage())  # one broker for all of them
        started = time.monotonic()
        failed = []
        for number, name in enumerate(names, 1):
            if name == "report":
                print(f"\nwritten: {write_report(arguments.json or RESULTS)}")
                continue
            after = format_elapsed(time.monotonic() - started)
            print(f"\n{name} ({number} of {len(names)}, after {after}): {ALL[name].__doc__}")
            try:
                _run(name, arguments.json, quick=arguments.quick)
            except (ContenderError, EbbtideError, TimeoutError) as error:
                print(f"  {name} failed: {error}", flush=True)
                failed.append(name)
        if failed:
            sys.exit(f"failed: {', '.join(failed)}")


def _expand(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        yield from {"peers": tuple(PEERS), "works": WORKS}.get(name, [name])


def _run(name: str, file: Path | None, *, quick: bool) -> None:
    """Print the lines and the results of one, each with the time so far; keep the results."""
    if quick:
        print("  quick: small sizes, which show that it works and not how fast it is")
    started = time.monotonic()
    results: list[Result] = []
    ratios: list[Ratio] = []
    lines: list[str] = []
    for found in ALL[name](quick=quick):
        if isinstance(found, Result):
            results.append(found)
            continue
        if isinstance(found, Ratio):
            ratios.append(found)
        elif not isinstance(found, Progress):
            lines.append(found)
        print(f"  {format_elapsed(time.monotonic() - started)}  {found}", flush=True)
    for _, group in groupby(results, key=lambda result: result.work):
        print(f"\n{format_results(list(group))}")
    seconds = time.monotonic() - started
    print(f"  {format_elapsed(seconds)}  {name} is done", flush=True)
    if file:
        # beside a table, the lines only show that it goes on
        entry = Entry.now(name, seconds, results, () if results else lines, ratios, quick=quick)
        keep_entry(file, entry)


def format_elapsed(seconds: float) -> str:
    """Minutes and seconds.

    >>> format_elapsed(3725.4)
    '62:05'
    """
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes:>2}:{rest:02}"


if __name__ == "__main__":
    main()
