"""A whole checkpoint, of which one file is damaged: what `inspect`, `verify` and a plan do."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

from ebbtide.checkpoint import Owner, read_checkpoint, verification
from ebbtide.compatibility.operators import read_operators
from ebbtide.errors import EbbtideError
from ebbtide.history import read_history
from ebbtide.history.store import kept_entries
from ebbtide.report.overview import summarize_batch, summarize_checkpoint, summarize_run
from ebbtide.retention import read_windows
from ebbtide.rewind import RewindRequest, plan_rewind
from ebbtide.rewind.target import ToBatch, ToLatestGood, ToOffsets
from tests.fuzz.target import Target, scratch
from tests.hostile import Case, make_case
from tests.trees import LAYOUTS, Shape


@cache
def _case(layout: str) -> tuple[Case, list[tuple[Path, bytes]]]:
    """A checkpoint with all notes, rewound twice, and its small files."""
    home = scratch() / f"case-{layout}"
    home.mkdir()
    metadata = "v2" if layout == "rocksdb" else "v1"
    case = make_case(home, Shape(layout, batches=4, partitions=1, operator_metadata=metadata))
    found = []
    for place, _, names in os.walk(case.checkpoint):
        found += [Path(place, name) for name in names if not name.endswith((".crc", ".lock"))]
    return case, [(path, path.read_bytes()) for path in sorted(found)]


def _seeds() -> list[bytes]:
    """The first two bytes are the layout and the number of the file, the rest its content."""
    return [
        bytes([which, number % 256]) + content
        for which, layout in enumerate(LAYOUTS)
        for number, (_, content) in enumerate(_case(layout)[1])
        if len(content) < 4096
    ]


def _read(data: bytes) -> None:
    layout = LAYOUTS[(data[0] if data else 0) % len(LAYOUTS)]
    case, files = _case(layout)
    path, before = files[(data[1] if len(data) > 1 else 0) % len(files)]
    path.write_bytes(data[2:])
    try:
        _use(str(case.checkpoint))
    finally:
        path.write_bytes(before)


def _use(location: str) -> None:
    checkpoint = read_checkpoint(location)
    _ = checkpoint.restorable, checkpoint.oldest_restorable
    checkpoint.find_real_time()
    with suppress(EbbtideError):
        entries = kept_entries(checkpoint, read_history(checkpoint.folder))
        owner = Owner.read(checkpoint.folder)
        windows = read_windows(checkpoint, owner, None, entries=entries)
        summarize_checkpoint(checkpoint, entries, windows, running=None, is_idle=True)
        for batch in checkpoint.logs.batches:
            summarize_batch(checkpoint, batch, windows)
            summarize_run(checkpoint, entries.get(batch.id), batch)
    with suppress(EbbtideError):
        read_operators(checkpoint.folder, checkpoint.tree)
    with suppress(EbbtideError):
        verification.verify_checkpoint(location)
    for target in (ToBatch(2), ToLatestGood(), ToOffsets({("visits", 0): 1}, "")):
        with suppress(EbbtideError):
            plan_rewind(RewindRequest(location, target, assume_stopped=True)).to_dict()


TARGETS = (Target("checkpoint", _seeds, _read, share=5, largest=1 << 14, native=True),)
