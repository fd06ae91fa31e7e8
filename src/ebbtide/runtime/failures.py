"""What Spark raised in, one of our errors in one line out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from ebbtide.config import Settings
from ebbtide.errors import BatchFailedError, EbbtideError, UsageError
from ebbtide.pipeline import Pipeline
from ebbtide.runtime.session import open_session
from ebbtide.storage import Folder


@contextmanager
def plain_errors(pipeline: Pipeline) -> Iterator[None]:
    """Say in one line why Spark does not take a query."""
    try:
        yield
    except PySparkException as error:
        raise UsageError(
            f"Pipeline {pipeline.name} does not run as a stream: {_first_line(str(error))}",
            "Mend its transform, watermark, output mode or trigger.",
        ) from None


@contextmanager
def session_of(
    pipeline: Pipeline,
    settings: Settings,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """A pipeline's session; say in one line that its JVM failed or is gone."""
    wanted = pipeline.conf
    with open_session(pipeline.name, settings, master=master, conf=conf, wanted=wanted) as spark:
        try:
            yield spark
        except (Py4JError, ConnectionError) as error:
            java = getattr(error, "java_exception", None)
            cause = f"failed: {_first_line(java.toString())}" if java else "ended without a word"
            log = settings.logs / f"{pipeline.name}.log"
            raise EbbtideError(f"Spark's JVM {cause}.", f"See {log}, then start again.") from None


def batch_failed(
    name: str, folder: Folder, error: StreamingQueryException, log: Path
) -> BatchFailedError:
    """A batch failed; which one, the checkpoint tells."""
    done = folder.ids("commits")
    planned = folder.ids("offsets")
    batch = max(planned, default=-1)
    if done and done[-1] >= batch:
        batch = done[-1] + 1
    return BatchFailedError(
        f"Batch {max(batch, 0)} of {name} failed: {root_cause(error)}.",
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


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no reason was given"
