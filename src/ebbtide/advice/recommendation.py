"""Both ways and what is wrong in, the one to take out, and why.

In this order: a way that is closed is not taken; an archive that lacks records gives wrong
results; only a rewind mends state; a rewind that is far cheaper is worth a stop; else the stream
runs on.
"""

from __future__ import annotations

from ebbtide.advice.affected import Wrong
from ebbtide.advice.options import Name, Way
from ebbtide.times import in_utc

_FAR_CHEAPER = 10
_WORTH_A_STOP = 1_000_000
"""So many records more; fewer are read in the time that a stop takes."""


def recommend(rewind: Way, reprocess: Way, wrong: Wrong) -> tuple[Name | None, str]:
    """The way to take, and the reason."""
    if not rewind.possible and not reprocess.possible:
        return None, f"Rewind: {rewind.problem} Reprocess: {reprocess.problem}"
    if not reprocess.possible:
        return "rewind", f"The archive is no way back. {reprocess.problem}"
    if not rewind.possible:
        return "reprocess", f"A rewind is no way back. {rewind.problem}"
    if wrong.lacking:
        return "rewind", (
            f"The archive lacks {wrong.lacking:,} of the records: it was begun after the stream."
        )
    if wrong.cut:
        return "rewind", (
            "The archive was begun after the stream and holds nothing from before these records, "
            "so a reprocess would count windows that had begun by then too low."
        )
    if wrong.open:
        since = f" that end after {in_utc(wrong.closed)}" if wrong.closed else ""
        return "rewind", (
            "Only a rewind mends the state. What is wrong is also in the windows"
            f"{since}, which are open: after a reprocess they would still come out wrong."
        )
    read, replayed = reprocess.records or 0, rewind.records or 0
    if read > _FAR_CHEAPER * replayed and read - replayed > _WORTH_A_STOP:
        return "rewind", (
            f"It is far cheaper: {replayed:,} records to replay, up to {read:,} to reprocess."
        )
    kept = "none of what is wrong is in the state" if wrong.closed else "the query keeps no state"
    return "reprocess", f"The stream runs on meanwhile, and {kept}, so nothing wrong is left."


def add_caveats(
    recommended: Name | None, rewind: Way, reprocess: Way, wrong: Wrong
) -> tuple[str, ...]:
    """What would speak for the other way, or must be known before this one is taken."""
    said: list[str] = []
    if recommended == "rewind":
        said += rewind.remarks
        if wrong.records.late and reprocess.possible:
            said.append(
                f"If late records are what is missing, reprocess: up to {wrong.records.late:,} "
                "came behind the watermark, and a rewind drops them again."
            )
    if recommended == "reprocess":
        said += reprocess.remarks
        if wrong.open:
            said.append(
                "The state stays wrong, so windows that are open now will come out wrong: "
                "reprocess them, too, once they are closed (last step)."
            )
    return tuple(said)
