"""The URLs of stores as Spark and as fsspec write them, and the one spelling of each place."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ebbtide.errors import UsageError
from ebbtide.hadoop import hadoop_settings

S3, GCS, AZURE, HDFS = "s3", "gcs", "azure", "hdfs"
"""The kinds of stores, which are also the extras that read them."""
KINDS = {
    **dict.fromkeys(("s3", "s3a", "s3n"), S3),
    **dict.fromkeys(("gs", "gcs"), GCS),
    **dict.fromkeys(("abfs", "abfss", "az", "wasb", "wasbs"), AZURE),
    **dict.fromkeys(("hdfs", "webhdfs", "swebhdfs"), HDFS),
}
"""By the scheme of a URL."""
_AZURE_HOST = "dfs.core.windows.net"
_HTTP_PORT, _HTTPS_PORT = 9870, 9871
PORT_VARIABLE = "EBBTIDE_WEBHDFS_PORT"


@dataclass(frozen=True)
class StoreUrl:
    """A place in a store, whichever way its URL was written."""

    kind: str
    container: str
    """The bucket or the container; of HDFS, the name service or the address for HTTP."""
    path: str
    """The path in it, without a slash at its ends."""
    host: str = ""
    """Of Azure: the account's host."""
    https: bool = False
    """Of HDFS: whether the name node answers by HTTPS only."""

    _ADDRESSES: ClassVar[Mapping[str, str]] = {
        S3: "s3://{}",
        GCS: "gs://{}",
        AZURE: "abfss://{}@{}",
    }

    @property
    def address(self) -> str:
        """The one spelling by which two URLs of the same place are told."""
        if self.kind == HDFS:
            scheme = "webhdfs" if ":" in self.container else "hdfs"
            return f"{scheme}://{self.container}/{self.path}".rstrip("/")
        start = self._ADDRESSES[self.kind].format(self.container, self.host)
        return f"{start}/{self.path}".rstrip("/")

    @property
    def account(self) -> str:
        """Of Azure: the account."""
        return self.host.partition(".")[0]


def with_slashes(location: str) -> str:
    """A URL that Hadoop and Spark have written without an authority, as everybody else writes it.

    >>> with_slashes("hdfs:/user/ann"), with_slashes("file:/mnt/c"), with_slashes("hdfs://nn/c")
    ('hdfs:///user/ann', 'file:///mnt/c', 'hdfs://nn/c')
    """
    return re.sub(r"^((?i:hdfs|webhdfs|viewfs|file)):/(?!/)", r"\1:///", location)


def parse_url(location: str) -> StoreUrl | None:
    """The place that a URL of S3, GCS, Azure or HDFS names; None for any other location.

    Paths are taken as Hadoop takes them: `//` is `/`, and nothing is decoded.

    >>> parse_url("s3a://bucket//visits/").address
    's3://bucket/visits'
    >>> parse_url("wasbs://data@ours.blob.core.windows.net/visits").address
    'abfss://data@ours.dfs.core.windows.net/visits'
    >>> parse_url("webhdfs://nn:9870/visits") == parse_url("hdfs://nn:8020/visits")
    True
    >>> parse_url("/data/visits"), parse_url("memory://visits")
    (None, None)
    """
    scheme, separator, rest = location.partition("://")
    kind = KINDS.get(scheme.lower()) if separator else None
    if kind is None:
        return None
    authority, _, name = rest.partition("/")
    path = posixpath.normpath(f"/{name}").strip("/")
    if kind == AZURE:
        return _parse_azure(location, authority, path)
    if kind == HDFS:
        settings = hadoop_settings()
        node = _find_name_node(scheme.lower(), authority, location, settings)
        https = scheme.lower() == "swebhdfs" or uses_https(settings)
        return StoreUrl(HDFS, node, path, https=https)
    return StoreUrl(kind, authority, path)


def one_spelling(location: str) -> str:
    """The address of a place; a location that is none of a store stays as it is.

    >>> one_spelling("s3a://bucket/visits"), one_spelling("abfs://container/visits")
    ('s3://bucket/visits', 'abfs://container/visits')
    """
    try:
        place = parse_url(location)
    except UsageError:  # it names no account or no name node
        return location
    return place.address if place else location


def _parse_azure(location: str, authority: str, path: str) -> StoreUrl:
    container, at, host = authority.rpartition("@")
    if not at and "." in authority:  # abfs://account.dfs.core.windows.net/container/path
        container, _, path = path.partition("/")
        host = authority
    elif not at:
        account = azure_account(os.environ)
        if account is None:
            raise UsageError(
                f"{location} names no storage account.",
                f"Write abfss://{authority}@ACCOUNT.{_AZURE_HOST}/{path}, or set "
                "AZURE_STORAGE_ACCOUNT_NAME.",
            )
        container, host = authority, f"{account}.{_AZURE_HOST}"
    host = host.replace(".blob.", ".dfs.", 1).lower()
    return StoreUrl(AZURE, container, path, host if "." in host else f"{host}.{_AZURE_HOST}")


def azure_account(environ: Mapping[str, str]) -> str | None:
    """The storage account that the environment names."""
    parts = connection_string(environ)
    return environ.get("AZURE_STORAGE_ACCOUNT_NAME") or parts.get("AccountName")


def connection_string(environ: Mapping[str, str]) -> dict[str, str]:
    """The parts of Azure's connection string in the environment, if there is one.

    >>> connection_string({"AZURE_STORAGE_CONNECTION_STRING": "AccountName=ours;AccountKey=YQ=="})
    {'AccountName': 'ours', 'AccountKey': 'YQ=='}
    """
    text = environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    pairs = (part.partition("=") for part in text.split(";") if part)
    return {name.strip(): value for name, _, value in pairs}


def _find_name_node(scheme: str, authority: str, location: str, settings: Mapping[str, str]) -> str:
    """The name service of an HDFS URL, else the address for HTTP of its name node."""
    if not authority:
        default = settings.get("fs.defaultFS", "")
        if not default.startswith("hdfs://") or not default.strip("/").partition("://")[2]:
            raise UsageError(
                f"{location} names no name node, and no core-site.xml has fs.defaultFS.",
                "Write hdfs://HOST:PORT/PATH, or set HADOOP_CONF_DIR.",
            )
        authority = default.partition("://")[2].partition("/")[0]
    authority = authority.rpartition("@")[2].lower()
    services = name_services(settings)
    if authority in services:
        return authority
    host, _, port = authority.partition(":")
    if scheme == "hdfs":
        address = _configured_http_address(authority, settings)
        http = address or f"{host}:{os.environ.get(PORT_VARIABLE) or default_http_port(settings)}"
    else:
        http = f"{host}:{port or default_http_port(settings)}"
    return next((name for name, nodes in services.items() if http in nodes), http)


def default_http_port(settings: Mapping[str, str]) -> int:
    """The port of WebHDFS where no other is set."""
    return _HTTPS_PORT if uses_https(settings) else _HTTP_PORT


def uses_https(settings: Mapping[str, str]) -> bool:
    """Whether the name nodes answer by HTTPS only."""
    return settings.get("dfs.http.policy") == "HTTPS_ONLY"


def name_services(settings: Mapping[str, str]) -> dict[str, list[str]]:
    """The addresses for HTTP of each name service with several name nodes.

    >>> of_node = "dfs.namenode.http-address.lake."
    >>> name_services({"dfs.nameservices": "lake", "dfs.ha.namenodes.lake": "a,b",
    ...     f"{of_node}a": "n1:9870", f"{of_node}b": "n2:9870"})
    {'lake': ['n1:9870', 'n2:9870']}
    """
    services = {}
    for service in _split(settings.get("dfs.nameservices", "")):
        nodes = _split(settings.get(f"dfs.ha.namenodes.{service}", ""))
        found = [settings.get(f"{_http_setting(settings)}.{service}.{node}") for node in nodes]
        if addresses := [address.lower() for address in found if address]:
            services[service.lower()] = addresses
    return services


def _configured_http_address(authority: str, settings: Mapping[str, str]) -> str | None:
    """The address for HTTP of the configured name node, if a URL means that one."""
    default = settings.get("fs.defaultFS", "").partition("://")[2].partition("/")[0].lower()
    http = settings.get(_http_setting(settings), "").lower()
    if authority != default or not http:
        return None
    host, _, port = http.rpartition(":")
    return f"{authority.partition(':')[0] if host in ('', '0.0.0.0') else host}:{port}"


def _http_setting(settings: Mapping[str, str]) -> str:
    return f"dfs.namenode.{'https' if uses_https(settings) else 'http'}-address"


def _split(text: str) -> list[str]:
    return [part for part in re.split(r"[,\s]+", text) if part]
