"""Open the filesystem of a path or a URL."""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from ebbtide.credentials import give_credentials, take_credentials
from ebbtide.errors import MissingExtraError, UsageError, first_line, printable
from ebbtide.locations import AZURE, GCS, HDFS, S3, StoreUrl, parse_url
from ebbtide.registry import is_remote
from ebbtide.storage.options import ANSWER_SECONDS, fsspec_options

_VERSION = re.compile(r"\?version_?id=", re.IGNORECASE)
"""What the libraries would cut off, and then write to the name without it."""
_PROTOCOLS = {S3: "s3", GCS: "gs", AZURE: "abfs"}


def locate(location: str) -> tuple[str, Any, str]:
    """The parts of a folder at a path or URL: its URL, its filesystem, its path there."""
    if "\0" in location or printable(location) != location:
        raise UsageError(f"{location!r} is no path and no URL.", "Check its name.")
    location = take_credentials(location)
    if location.startswith("dbfs:/") and "://" not in location:
        raise UsageError(
            f"{location} is a path as only Databricks' own tools read it.",
            f"On a machine of Databricks, write /dbfs/{location.removeprefix('dbfs:/')}.",
        )
    if not is_remote(location):  # not split at '::', as fsspec does
        filesystem = LocalFileSystem()
        # absolute: a saved plan, a barrier's line and Spark may be read from elsewhere
        root = str(filesystem._strip_protocol(location)).rstrip("/")
        return root, filesystem, root
    place = parse_url(location)
    if place is not None and place.kind in (S3, AZURE) and _VERSION.search(location):
        raise UsageError(
            f"{location} names a version of an object, not a folder.", "Leave the ?… out."
        )
    try:
        filesystem, root = _open(place, location)
    except ImportError as error:
        if error.name == "requests_kerberos":
            raise MissingExtraError(
                f"{location} needs Kerberos, by Hadoop's settings.",
                "Type: pip install requests-kerberos",
            ) from None
        if place is not None:
            raise MissingExtraError.for_extra(place.kind, location) from None
        raise _not_opened(location, error) from None
    except (ValueError, OSError) as error:
        raise _not_opened(location, error) from None
    if place is not None and place.kind == AZURE and "@" not in location:
        location = place.address  # Spark must be told the account
    return location.rstrip("/"), filesystem, str(root).rstrip("/")


def _open(place: StoreUrl | None, location: str) -> tuple[Any, str]:
    url, given = give_credentials(location)
    # a cached listing would show files that we have moved away
    if place is None:
        filesystem, root = fsspec.core.url_to_fs(url, use_listings_cache=False, **given)
        return filesystem, root
    options = {**fsspec_options(place), **given, "use_listings_cache": False}
    if place.kind == HDFS:
        from ebbtide.storage.webhdfs import connect

        return connect(place, options), f"/{place.path}"
    if place.kind == GCS:  # its library prints a traceback for each error that it raises
        logging.getLogger("gcsfs").addHandler(logging.NullHandler())
    filesystem = fsspec.filesystem(_PROTOCOLS[place.kind], **options)
    if place.kind == AZURE:
        # after a write, its library takes a first folder such as [1] or a:b for a URL's host
        filesystem._parent = lambda path: path.rpartition("/")[0]
        with suppress(AttributeError):  # it has no option for all requests
            transport = filesystem.service_client._pipeline._transport
            transport.connection_config.read_timeout = ANSWER_SECONDS
    return filesystem, f"{place.container}/{place.path}"


def _not_opened(location: str, error: Exception) -> UsageError:
    return UsageError(
        f"{location} cannot be opened: {first_line(error)}.",
        "Use a path, or a URL such as s3://… See docs/production/storage.md.",
    )
