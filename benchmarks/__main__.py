"""`python -m benchmarks [NAME …] [--quick]`: ratios measured side by side in one run."""

from __future__ import annotations

import argparse
import os
from tempfile import TemporaryDirectory

from benchmarks import (
    archive,
    attach,
    beside,
    checkpoint,
    clean_stream,
    early_writer,
    generator,
    history,
    page,
    reprocess,
    start,
)

ALL = {
    "checkpoint": checkpoint.run,
    "generator": generator.run,
    "clean-stream": clean_stream.run,
    "history": history.run,
    "attach": attach.run,
    "page": page.run,
    "start": start.run,
    "archive": archive.run,
    "beside": beside.run,
    "early-writer": early_writer.run,
    "reprocess": reprocess.run,
}


def main() -> None:
    """Run the benchmarks that are named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(ALL)}; all if none"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(ALL):
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(ALL)}")
    with TemporaryDirectory(prefix="ebbtide-bench-") as folder:
        os.environ["XDG_STATE_HOME"] = folder  # the web UI lists no checkpoint of a benchmark
        for name in arguments.names or ALL:
            print(f"\n{name}: {ALL[name].__doc__}")
            for line in ALL[name](quick=arguments.quick):
                print(f"  {line}", flush=True)  # some take most of an hour


if __name__ == "__main__":
    main()
