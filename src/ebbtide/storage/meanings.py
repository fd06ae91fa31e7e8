"""What the errors of the stores' libraries mean, as Python's own."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ebbtide.errors import first_line

MISSING = (FileNotFoundError, NotADirectoryError)
_BY_STATUS: dict[int, tuple[type[OSError], int]] = {
    401: (PermissionError, errno.EACCES),
    403: (PermissionError, errno.EACCES),
    404: (FileNotFoundError, errno.ENOENT),
    412: (FileExistsError, errno.EEXIST),
}


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise Python's own errors for those of botocore, azure.core, gcsfs, aiohttp and requests."""
    try:
        yield
    except (*MISSING, PermissionError, FileExistsError):
        raise
    except Exception as error:
        meaning = _BY_STATUS.get(http_status(error) or 0)
        if meaning is None:
            raise
        kind, number = meaning
        raise kind(number, why_not(error)) from error


def http_status(error: BaseException) -> int | None:
    """The status with which a store answered, wherever its library keeps it.

    >>> error = OSError("Forbidden: https://storage.googleapis.com/…")  # as gcsfs raises it
    >>> http_status(error), http_status(OSError("disk full"))
    (403, None)
    """
    for one in (error, error.__cause__):
        response: Any = getattr(one, "response", None)
        if isinstance(response, dict):  # botocore
            return _to_status(response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
        for place in (one, response):  # azure.core, gcsfs, aiohttp; requests
            for name in ("status_code", "status", "code"):
                if status := _to_status(getattr(place, name, None)):
                    return status
    return 403 if isinstance(error, OSError) and str(error).startswith("Forbidden: ") else None


def _to_status(value: Any) -> int | None:
    text = str(value)
    return int(text) if len(text) == 3 and text.isascii() and text.isdigit() else None


def why_not(error: BaseException) -> str:
    """What a filesystem's error says, in one line."""
    if isinstance(error, NotImplementedError):
        return "this kind of filesystem does not support it"
    return first_line(getattr(error, "strerror", None) or error)
