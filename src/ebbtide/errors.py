"""Every error that Ebbtide raises on purpose; anything else is a bug and keeps its traceback.

::

    EbbtideError              exit 1   refused or failed: what, where and what to do next
    ├── UsageError            exit 2   a wrong argument, name, schema or setting
    ├── MissingExtraError     exit 1   an optional dependency is not installed
    ├── SetupError            exit 1   Java or the jars are missing or damaged
    ├── BrokerError           exit 1   Kafka does not answer, or the embedded broker does not start
    ├── CheckpointError       exit 1   not a checkpoint, another query's, or in use
    │   ├── UnreachableError  exit 1   a store cannot be asked, or does not let us read
    │   └── StorageError      exit 1   a filesystem does not write, copy or remove a file
    ├── ArchiveError          exit 1   an archive is missing, foreign or does not fit
    ├── NotFoundError         exit 1   the web UI has no such checkpoint, batch or task
    ├── BusyError             exit 1   a store has not answered yet; try again
    └── BatchFailedError      exit 1   a batch of a running query failed
"""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from shlex import quote
from urllib.parse import unquote, urlsplit

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LOGIN = re.compile(
    r"(?:\b(?i:s3[an]?|gc?s|abfss?|az|wasbs?)://[^/\s:@\"']*"
    r"|://[^/\s:@\"']*(?=:(?!\d{1,5}(?:[/?#\s\"',;)]|$)))):"  # elsewhere, it may be a port
)
_PASSWORDS = (re.compile(r"[^\s\"'<>]*"), re.compile(r"[^/\s]*"))
"""What a password may be, up to the last @; the first that has one decides."""
SECRET_NAMES = re.compile(
    r"(?i)(?:x-(?:amz|goog)-)?(?:sig|signature|security-token|credential)|token|"
    r"[\w.-]*(?:access|sas|auth)[_-]?token|[\w.-]*(?:account|access|api|secret)[._-]?key|"
    r"sharedaccesssignature|[\w.-]*(?:password|passwd|secret)|"
    r"(?:spark\.hadoop\.)?fs\.azure\.[\w.-]*(?:key|secret|token|sas)[\w.-]*"
)
"""Names of parameters whose values are secrets, in URLs and connection strings."""
_PARAMETER = re.compile(
    rf"(?i)(?<![\w.-])({SECRET_NAMES.pattern[4:]})=(?!\"?…)(?:\"[^\"]*\"|'[^']*'|[^&;\s\"'<>]+)"
)
_HIDDEN: set[str] = set()
_SHORTEST = 6
"""A shorter secret is masked where it looks like one, but not in the middle of a sentence."""


def mask(text: str) -> str:
    """Hide the passwords and signatures of the URLs in a text.

    >>> mask("s3://key:se/cr@t@bucket/visits is gone"), mask("abfs://container@account/visits")
    ('s3://key:***@bucket/visits is gone', 'abfs://container@account/visits')
    >>> mask("https://h/c?sv=1&sig=abc%3D is gone"), mask("AccountName=a;AccountKey=abc==;x=y")
    ('https://h/c?sv=1&sig=*** is gone', 'AccountName=a;AccountKey=***;x=y')
    >>> mask("hdfs://name:8020/user/ann@example.com"), mask("S3A://key:9/x@bucket/visits")
    ('hdfs://name:8020/user/ann@example.com', 'S3A://key:***@bucket/visits')
    """
    for secret in sorted(_HIDDEN, key=len, reverse=True):
        text = text.replace(secret, "***")
    return _PARAMETER.sub(r"\1=***", _mask_passwords(text))


def _mask_passwords(text: str) -> str:
    """Mask the passwords of logins, however long; no part of a long text is searched twice."""
    parts, done, searched = [], 0, [0] * len(_PASSWORDS)
    login = _LOGIN.search(text)
    while login:
        start, next_ = login.end(), login.start() + 1
        for number, password in enumerate(_PASSWORDS):
            if start < searched[number]:
                continue
            found = password.match(text, start)
            searched[number] = found.end() if found else start
            if (at := text.rfind("@", start, searched[number])) >= 0:
                parts += [text[done:start], "***"]
                done = next_ = at
                break
        login = _LOGIN.search(text, next_)
    return "".join([*parts, text[done:]])


def hide(*secrets: str) -> None:
    """Mask these values wherever `mask` finds them, also as another library may quote them."""
    spelled = (spelling for secret in secrets for spelling in (secret, unquote(secret)))
    _HIDDEN.update(each for each in spelled if len(each) >= _SHORTEST)


def printable(text: str) -> str:
    r"""A text that any terminal and any log takes: names may be no Unicode, or control a terminal.

    >>> printable("visits-\udcff"), printable("visits\x1b[2J")
    ('visits-\\udcff', 'visits\\x1b[2J')
    """
    text = text.encode("utf-8", "backslashreplace").decode()
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def first_line(error: BaseException | str) -> str:
    r"""What an error of another library says, in one line, with passwords in URLs masked.

    >>> first_line(ValueError("no such table.\nStack trace: …")), first_line(TimeoutError())
    ('no such table', 'TimeoutError')
    """
    lines = mask(str(error)).strip().splitlines()
    return lines[0].rstrip(".: ") if lines else type(error).__name__


TESTED_SPARK = "4.2"
"""The minor version of Spark that has everything, such as connectors for Kafka and Delta."""
_SPARK_EXTRA = ("pyspark", "py4j", "numpy", "pandas", "pyarrow")
"""The packages of the extra `spark` that are imported with pyspark."""


def pip_line(*extras: str) -> str:
    """The command that installs extras from where Ebbtide came from; one's own Spark stays.

    If there is none, pip would choose the newest, for which connectors may be missing.
    """
    from importlib import metadata

    try:
        origin = metadata.distribution("ebbtide").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        origin = None
    new = "spark" in extras and find_spec("pyspark") is None
    pinned = f" 'pyspark=={TESTED_SPARK}.*'" if new else ""
    return f"pip install {name_package(','.join(extras), origin)}{pinned}"


def name_package(extras: str, origin: str | None) -> str:
    """Name the package for pip: as an index has it, or where pip noted that it came from.

    >>> name_package("s3", None), name_package("s3", '{"url": "file:///ebbtide-1.0.whl"}')
    ("'ebbtide[s3]'", "'ebbtide[s3] @ file:///ebbtide-1.0.whl'")
    >>> name_package("s3", '{"url": "file:///my%20code", "dir_info": {"editable": true}}')
    "--editable '/my code[s3]'"
    """
    if not origin:
        return quote(f"ebbtide[{extras}]")
    noted = json.loads(origin)
    if noted.get("dir_info", {}).get("editable"):
        return f"--editable {quote(unquote(urlsplit(noted['url']).path) + f'[{extras}]')}"
    version = noted.get("vcs_info")
    url = f"{version['vcs']}+{noted['url']}@{version['commit_id']}" if version else noted["url"]
    return quote(f"ebbtide[{extras}] @ {url}")


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

    >>> MissingExtraError.for_extra("spark", "Running a pipeline").problem
    "Running a pipeline needs the extra 'spark'."
    """

    @classmethod
    def for_extra(cls, extra: str, what: str) -> MissingExtraError:
        """Name the exact pip command that installs the extra."""
        return cls(f"{what} needs the extra '{extra}'.", f"Type: {pip_line(extra)}")


class SetupError(EbbtideError):
    """Java or the jars are missing or damaged."""


def explain_import(error: ImportError, what: str) -> EbbtideError:
    """Why pyspark cannot be imported: the extra is not installed, or what pyspark imports is not.

    >>> str(explain_import(ModuleNotFoundError("No module named 'x'", name="x"), "Running"))
    "pyspark cannot be imported: No module named 'x'. Install that, or type: ebbtide doctor"
    """
    if (error.name or "").partition(".")[0] in _SPARK_EXTRA:
        return MissingExtraError.for_extra("spark", what)
    return SetupError(
        f"pyspark cannot be imported: {first_line(error)}.",
        "Install that, or type: ebbtide doctor",
    )


class BrokerError(EbbtideError):
    """Kafka does not answer, or the embedded broker does not start."""

    @classmethod
    def unreachable(cls, address: str, waited_seconds: float, cause: str = "") -> BrokerError:
        """No broker answered at the address."""
        why = f": {cause}" if cause else ""
        return cls(
            f"No Kafka broker answers at {address} (waited {waited_seconds:.0f} s{why}).",
            "Check the address. The embedded broker is used if no Kafka is named and Spark runs on "
            "this machine.",
        )

    @classmethod
    def not_running(cls) -> BrokerError:
        """The embedded broker of this home is stopped."""
        return cls("The embedded broker is not running.", "Type: ebbtide broker start")


class CheckpointError(EbbtideError):
    """Not a checkpoint, another query's, or in use."""


class UnreachableError(CheckpointError):
    """A store cannot be asked, or does not let us read: nothing is known of what it holds."""


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
