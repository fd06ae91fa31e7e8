"""Every error that Ebbtide raises on purpose; anything else is a bug and keeps its traceback.

::

    EbbtideError              exit 1   refused or failed: what, where and what to do next
    ├── UsageError            exit 2   a wrong argument, name, schema or setting
    ├── MissingExtraError     exit 1   an optional dependency is not installed
    ├── SetupError            exit 1   Java or the jars are missing or damaged
    ├── BrokerError           exit 1   Kafka does not answer, or the embedded broker does not start
    ├── CheckpointError       exit 1   not a checkpoint, another query's, or in use
    │   └── StorageError      exit 1   a filesystem does not write, copy or remove a file
    ├── ArchiveError          exit 1   an archive is missing, foreign or does not fit
    ├── NotFoundError         exit 1   the web UI has no such checkpoint, batch or task
    ├── BusyError             exit 1   a store has not answered yet; try again
    └── BatchFailedError      exit 1   a batch of a running query failed
"""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_PASSWORD = re.compile(r"(://[^/\s:@]*):[^/\s]*@")


def mask(text: str) -> str:
    """Hide the passwords of the URLs in a text.

    >>> mask("s3://key:secret@bucket/visits is gone"), mask("abfs://container@account/visits")
    ('s3://key:***@bucket/visits is gone', 'abfs://container@account/visits')
    """
    return _PASSWORD.sub(r"\1:***@", text)


def printable(text: str) -> str:
    r"""A text that any terminal and any log takes: names may be no Unicode, or control a terminal.

    >>> printable("visits-\udcff"), printable("visits\x1b[2J")
    ('visits-\\udcff', 'visits\\x1b[2J')
    """
    text = text.encode("utf-8", "backslashreplace").decode()
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def first_line(error: BaseException | str) -> str:
    r"""What an error of another library says, in one line.

    >>> first_line(ValueError("no such table.\nStack trace: …")), first_line(TimeoutError())
    ('no such table', 'TimeoutError')
    """
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".: ") if lines else type(error).__name__


class EbbtideError(Exception):
    """What failed and what to type next. Passwords in URLs are masked.

    >>> str(EbbtideError("No job is named 'visit'.", "Try: ebbtide jobs"))
    "No job is named 'visit'. Try: ebbtide jobs"
    """

    exit_code = 1

    def __init__(self, problem: str, next_step: str = "") -> None:
        self.problem, self.next_step = mask(printable(problem)), mask(printable(next_step))
        super().__init__(f"{self.problem} {self.next_step}".rstrip())


class UsageError(EbbtideError):
    """A wrong argument, name, schema or setting."""

    exit_code = 2


class MissingExtraError(EbbtideError):
    """An optional dependency of Ebbtide is not installed.

    >>> str(MissingExtraError.for_extra("spark", "Running a pipeline"))
    "Running a pipeline needs the extra 'spark'. Type: pip install 'ebbtide[spark]'"
    """

    @classmethod
    def for_extra(cls, extra: str, what: str) -> MissingExtraError:
        """Name the exact pip command that installs the extra."""
        return cls(f"{what} needs the extra '{extra}'.", f"Type: pip install 'ebbtide[{extra}]'")


class SetupError(EbbtideError):
    """Java or the jars are missing or damaged."""


class BrokerError(EbbtideError):
    """Kafka does not answer, or the embedded broker does not start."""

    @classmethod
    def unreachable(cls, address: str, waited_seconds: float) -> BrokerError:
        """No broker answered at the address."""
        return cls(
            f"No Kafka broker answers at {address} (waited {waited_seconds:.0f} s).",
            "Check the address, or leave out --bootstrap-servers to use the embedded broker.",
        )

    @classmethod
    def not_running(cls) -> BrokerError:
        """The embedded broker of this home is stopped."""
        return cls("The embedded broker is not running.", "Type: ebbtide broker start")


class CheckpointError(EbbtideError):
    """Not a checkpoint, another query's, or in use."""


class StorageError(CheckpointError, OSError):
    """A filesystem does not write, copy or remove a file; `strerror` says why.

    It is an `OSError`, whatever the filesystem's own library has raised.
    """

    def __init__(self, problem: str, next_step: str, why: str) -> None:
        super().__init__(problem, next_step)
        self.strerror = why


class ArchiveError(EbbtideError):
    """An archive is missing, was not written by Ebbtide, or does not fit the pipeline."""


class NotFoundError(EbbtideError):
    """The web UI has no such checkpoint, batch or task."""


class BusyError(EbbtideError):
    """A store has not answered yet."""


class BatchFailedError(EbbtideError):
    """A batch of a running query failed."""
