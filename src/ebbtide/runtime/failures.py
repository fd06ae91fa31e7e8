"""Turn what Spark raises into errors of one line, and tolerate what need not stop a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.errors import PySparkException, StreamingQueryException

from ebbtide.errors import BatchFailedError, UsageError, first_line, mask
from ebbtide.pipeline import Pipeline
from ebbtide.runtime import java, versions
from ebbtide.storage import Folder


class Outages:
    """What a running query cannot write at the moment: said once when it begins and once after.

    >>> outages = Outages(lambda line: print(line[:61]))
    >>> for disk in ("full", "full", "free"):
    ...     with outages.tolerate("The history"):
    ...         if disk == "full":
    ...             raise OSError("No space left")
    Warning: The history cannot be written: No space left. The st
    The history is written again.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._now: set[str] = set()

    @contextmanager
    def tolerate(self, what: str) -> Iterator[None]:
        """Report a failure instead of raising it."""
        try:
            yield
        except Exception as error:
            self.report(what, str(error))
        else:
            self.report(what, None)

    def report(self, what: str, problem: str | None) -> None:
        """Say that something cannot be written, or that it can again, if that is news."""
        if problem is not None and what not in self._now:
            self._now.add(what)
            self._say(
                f"Warning: {what} cannot be written: {problem.rstrip('.')}. The stream continues "
                "and tries again; this warning is not repeated."
            )
        elif problem is None and what in self._now:
            self._now.remove(what)
            self._say(f"{what} is written again.")


@contextmanager
def plain_errors(pipeline: Pipeline) -> Iterator[None]:
    """Raise one line that says why Spark rejects a pipeline, or which version it needs."""
    advice = "Fix its transform, watermark, output mode or trigger."
    with start_errors(f"Pipeline {pipeline.name}", advice):
        yield


@contextmanager
def start_errors(query: str, advice: str) -> Iterator[None]:
    """Raise one line that says why Spark rejects a query, or which version it needs."""
    try:
        yield
    except AttributeError as error:
        if error.name in versions.NEEDS:
            versions.require(error.name)
        raise
    except PySparkException as error:
        cause = first_line(error)
        if "data source" in cause and not java.connectors():
            advice = (
                f"There is no Kafka connector and no Delta for Spark {versions.spark_row().minor} "
                f"yet. Type: {versions.INSTALL}"
            )
        raise UsageError(f"{query} does not run as a stream: {cause}.", advice) from None


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
    message = mask(str(error))
    while cause is not None:
        message = mask(cause.getMessage() or "") or cause.getClass().getSimpleName() or message
        cause = cause.getCause()
    # a Python function failed: after its indented frames comes the exception
    message = message.rpartition("Traceback (most recent call last):")[2]
    lines = [line for line in message.splitlines() if line.strip() and not line.startswith(" ")]
    return lines[0].split(" SQLSTATE: ")[0].strip(" .") if lines else "no cause was given"
