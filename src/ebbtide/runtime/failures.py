"""Turn what Spark raises into errors of one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.errors import PySparkException, StreamingQueryException

from ebbtide.errors import BatchFailedError, UsageError
from ebbtide.pipeline import Pipeline
from ebbtide.storage import Folder


@contextmanager
def plain_errors(pipeline: Pipeline) -> Iterator[None]:
    """Raise one line that says why Spark rejects a query."""
    try:
        yield
    except PySparkException as error:
        raise UsageError(
            f"Pipeline {pipeline.name} does not run as a stream: {first_line(str(error))}",
            "Fix its transform, watermark, output mode or trigger.",
        ) from None


def batch_failed(
    name: str, folder: Folder, error: StreamingQueryException, log: Path
) -> BatchFailedError:
    """The error for a failed batch; the checkpoint has its number."""
    # the planned one, or the one after the last commit
    after_commits = [id_ + 1 for id_ in folder.ids("commits")]
    batch = max([*folder.ids("offsets"), *after_commits], default=0)
    return BatchFailedError(
        f"Batch {batch} of {name} failed: {root_cause(error)}.",
        f"The next start runs it again. Details: {log}",
    )


def root_cause(error: Exception) -> str:
    """The innermost cause in one line."""
    cause = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    message = str(error)
    while cause is not None:
        message = cause.getMessage() or cause.getClass().getSimpleName() or message
        cause = cause.getCause()
    # a Python function failed: after its indented frames comes the exception
    message = message.rpartition("Traceback (most recent call last):")[2]
    lines = [line for line in message.splitlines() if line.strip() and not line.startswith(" ")]
    return lines[0].split(" SQLSTATE: ")[0].strip(" .") if lines else "no cause was given"


def first_line(text: str) -> str:
    """The first line of an error of Spark's."""
    return text.strip().splitlines()[0] if text.strip() else "no reason was given"
