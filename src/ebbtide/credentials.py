"""Keep the passwords and signatures of URLs in memory, apart from what is shown and saved.

A URL is opened with its credentials, but printed, saved and compared without them. Whoever takes a
location from a user calls `take_credentials` first; `open_folder` gives them back to fsspec.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from ebbtide.errors import SECRET_NAMES, UsageError, hide
from ebbtide.locations import AZURE, GCS, KINDS, S3, one_spelling, with_slashes

_URL = re.compile(r"([A-Za-z][\w.+-]*)://([^/?#]*)([^?]*)(\?.*)?", re.DOTALL)
_HOST_AND_PORT = re.compile(r"(\[[^\]]*\]|[^:]*)(:\d*)?")
_LOGINS = ("ftp", "sftp", "smb", "ssh")
_GIVEN: dict[str, tuple[str, str]] = {}
"""By the place without them: user and password, and the signed query, as the URL last had them."""


def take_credentials(location: str) -> str:
    """A location without its password and signature, which this process remembers.

    `hdfs:/visits`, as Hadoop prints a URL, becomes `hdfs:///visits`.

    >>> take_credentials("ftp://ann:pass@host/visits"), take_credentials("s3://key:pass@b/c")
    ('ftp://ann@host/visits', 's3://b/c')
    >>> take_credentials("https://host/visits?sv=2024&sig=abc%3D"), take_credentials("/data/a:b@c")
    ('https://host/visits', '/data/a:b@c')
    """
    return "::".join(_take(with_slashes(part)) for part in location.split("::"))


def give_credentials(location: str) -> tuple[str, dict[str, Any]]:
    """The URL and the options with which fsspec opens a location: what was taken, given back.

    >>> give_credentials(take_credentials("ftp://ann:pass@host/visits"))
    ('ftp://ann:pass@host/visits', {})
    >>> give_credentials(take_credentials("s3://key:pass@b/c"))
    ('s3://b/c', {'key': 'key', 'secret': 'pass'})
    """
    opened = [_give(part) for part in location.split("::")]
    if len(opened) == 1:
        return opened[0]
    # of several URLs in one, such as a cache of another, each has its own
    named = {url.partition("://")[0]: options for url, options in opened if options}
    return "::".join(url for url, _ in opened), named


def _take(url: str) -> str:
    match = _URL.fullmatch(url)
    if match is None:
        return url
    scheme, authority, path, query = match[1], match[2], match[3], match[4] or ""
    userinfo, _, host = authority.rpartition("@")
    user, colon, password = userinfo.partition(":")
    # ann:12/secret@host, where a password is usual, may be no port and no path
    has_no_port = scheme.lower() in _LOGINS or _kind(url) in (S3, GCS, AZURE)
    is_login = has_no_port and ":" in authority
    is_plain = userinfo or (_HOST_AND_PORT.fullmatch(authority) and not is_login)
    if "@" in f"{path}{query}" and (colon or not is_plain):
        hide(authority.partition(":")[2], f"{authority}{path}{query}".rpartition("@")[0])
        raise UsageError(
            f"{scheme}://{user or authority.partition(':')[0]}:*** is ambiguous: its password or "
            "its path has a / or an @.",
            f"Leave the password out and set FSSPEC_{scheme.upper()}_PASSWORD to it.",
        )
    pairs = [each.partition("=") for each in query[1:].split("&")]
    secrets = [value for name, _, value in pairs if SECRET_NAMES.fullmatch(unquote(name))]
    if not colon and not secrets:
        return url
    hide(password, *secrets)
    # of S3, the user is a part of the credentials, not of the place
    public = f"{user}@{host}" if user and _kind(url) != S3 else host
    place = _place(f"{scheme}://{public}{path}")
    before = _GIVEN.get(place, ("", ""))
    _GIVEN[place] = (userinfo if colon else before[0], query[1:] if secrets else before[1])
    query = "" if secrets else query
    return f"{scheme}://{public}{path}{query}"


def _give(url: str) -> tuple[str, dict[str, str]]:
    match = _URL.fullmatch(url)
    if match is None or not _GIVEN:
        return url, {}
    place = _place(f"{match[1]}://{match[2]}{match[3]}")
    userinfo, signature = (_find(place, part) for part in (0, 1))
    if _kind(url) == S3:
        key, _, secret = userinfo.partition(":")
        return url, {"key": unquote(key), "secret": unquote(secret)} if key else {}
    if _kind(url) == AZURE:
        return url, {"sas_token": signature} if signature else {}
    host = match[2].rpartition("@")[2]
    authority = f"{userinfo}@{host}" if userinfo else match[2]
    query = match[4] or (signature and f"?{signature}")
    return f"{match[1]}://{authority}{match[3]}{query}", {}


def _find(place: str, part: int) -> str:
    """What was given for the place or the nearest folder above it, else last for its host."""
    given = {of: parts[part] for of, parts in _GIVEN.items() if parts[part]}
    above = [of for of in given if f"{place}/".startswith(f"{of}/")]
    same_host = [of for of in given if of.split("/")[:3] == place.split("/")[:3]]
    return given[max(above, key=len)] if above else given[same_host[-1]] if same_host else ""


def _kind(url: str) -> str | None:
    return KINDS.get(url.partition("://")[0].lower())


def _place(url: str) -> str:
    """One spelling for all URLs of a place in S3 or Azure."""
    return (one_spelling(url) if _kind(url) in (S3, AZURE) else url).rstrip("/")
