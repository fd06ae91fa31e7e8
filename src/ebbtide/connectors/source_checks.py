"""A checkpoint and a first batch in, verdicts out: do its sources still hold what is read again?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ebbtide.checkpoint import Checkpoint, log_files
from ebbtide.checks import OK, WARN, Check, CheckKind
from ebbtide.connectors.delta import source as delta
from ebbtide.connectors.files import source as files


def check_sources(
    checkpoint: Checkpoint, batch: int, noted: Mapping[str, Any] | None, *, replan: bool = False
) -> tuple[Check, ...]:
    """Whether sources other than Kafka still hold the range; `noted` is the runner's word.

    The range of each source begins with its offset of the batch before, and ends with the last
    planned batch.
    """
    planned = checkpoint.logs.batches[-1].offsets.sources
    before, first = checkpoint.before(batch), checkpoint.logs.by_id[batch].offsets.sources
    starts = before.offsets.sources if before else ()
    found: list[Check] = []
    for index, end in enumerate(planned):
        if end in planned[:index] and f"sources/{index}" not in checkpoint.tree:
            continue  # a source that the query reads in two places, as a join with itself does
        start, own = (known[index] if index < len(known) else None for known in (starts, first))
        match log_files.source_kind(end):
            case "delta" if replan and batch == 0:
                found.append(
                    Check(CheckKind.DELTA_SOURCE, OK, "the table is read anew, as it is now")
                )
            case "delta":
                found.append(delta.check_table(_path(noted, "delta"), (start, own, end)))
            case "files":
                place = _path(noted, "files")
                found.append(files.check_files(checkpoint, index, start, end, place))
            case "rate":
                found.append(Check(CheckKind.RATE_SOURCE, OK, "can always be read again"))
            case "unknown":
                found.append(
                    Check(
                        CheckKind.OTHER_SOURCE,
                        WARN,
                        f"whether source {index} still holds the range cannot be seen from here",
                        "See that its data is still there.",
                    )
                )
    return tuple(found)


def _path(noted: Mapping[str, Any] | None, kind: str) -> str | None:
    """Where the runner says that the source lies."""
    return noted["path"] if noted and noted.get("kind") == kind else None
