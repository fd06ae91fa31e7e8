"""Connect to HDFS by HTTP: find the active name node, name what fails, and never wait for ever."""

from __future__ import annotations

from typing import Any

import requests
from fsspec.implementations.webhdfs import WebHDFS
from requests.adapters import HTTPAdapter
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from ebbtide.errors import first_line
from ebbtide.hadoop import hadoop_settings
from ebbtide.locations import PORT_VARIABLE, StoreUrl, name_services
from ebbtide.storage.options import ANSWER_SECONDS

_CONNECTIONS = 16
_ERRORS: dict[str, type[OSError]] = {
    "FileNotFoundException": FileNotFoundError,
    "AccessControlException": PermissionError,
    "SecurityException": PermissionError,
    "FileAlreadyExistsException": FileExistsError,
}


class StandbyError(OSError):
    """The name node is not the active one."""


class NotConnectedError(ConnectionError):
    """Nothing was sent."""


class _Connections(HTTPAdapter):
    def send(self, *arguments: Any, **options: Any) -> requests.Response:
        options["timeout"] = options.get("timeout") or ANSWER_SECONDS
        try:
            return super().send(*arguments, **options)
        except requests.exceptions.RequestException as error:
            request = arguments[0] if arguments else options["request"]
            host = "/".join((request.url or "").split("/")[:3])
            reason = getattr(error.args[0] if error.args else None, "reason", None)
            unsent = isinstance(reason, NewConnectionError | ConnectTimeoutError)
            raise (NotConnectedError if unsent else ConnectionError)(
                f"WebHDFS does not answer at {host} ({type(error).__name__}); if it has another "
                f"address, set dfs.namenode.http-address in hdfs-site.xml, or {PORT_VARIABLE}"
            ) from error


class NameNodes(WebHDFS):  # type: ignore[misc]
    """The name nodes of a place, of which one is active; after a failover, another one is asked.

    A node in standby has done nothing, nor has one to which there is no connection. One that does
    not answer may have: only what reads is then asked of the next one.
    """

    url: str

    def __init__(self, *nodes: str, **options: Any) -> None:
        self._urls: dict[str, str] = {}
        host, _, port = nodes[0].rpartition(":")
        super().__init__(host, int(port), **options)
        first = self.url
        for node in nodes:
            self._urls[node] = first.replace(f"//{nodes[0]}/", f"//{node}/", 1)

    def _connect(self) -> None:
        super()._connect()
        self.session.hooks["response"].append(_raise_for_answer)
        for scheme in ("http://", "https://"):
            self.session.mount(scheme, _Connections(pool_maxsize=_CONNECTIONS))

    def _call(self, op: str, method: str = "get", *arguments: Any, **options: Any) -> Any:
        failures = []
        for _ in self._urls:
            asked = self.url
            try:
                return super()._call(op, method, *arguments, **options)
            except (StandbyError, ConnectionError) as error:
                if self.url == asked:  # no other thread has gone on
                    self.url = self._after(asked)
                is_safe = method == "get" or isinstance(error, StandbyError | NotConnectedError)
                if len(self._urls) == 1 or not is_safe:
                    raise
                failures.append(first_line(error))
        raise ConnectionError(f"no name node is active: {'; '.join(failures)}")

    def _after(self, url: str) -> str:
        urls = list(self._urls.values())
        return urls[(urls.index(url) + 1) % len(urls)]


def connect(place: StoreUrl, options: dict[str, Any]) -> Any:
    """The filesystem of a place; of several name nodes, the active one is asked."""
    nodes = name_services(hadoop_settings()).get(place.container, [place.container])
    filesystem = NameNodes(*nodes, **options)
    if len(nodes) > 1:
        try:
            filesystem.info("/")
        except ConnectionError as error:
            raise ValueError(f"{place.container}: {first_line(error)}") from error
    return filesystem


def _raise_for_answer(answer: requests.Response, **_: Any) -> None:
    """Raise what the name node or a data node says; fsspec takes some of it for a file."""
    if answer.status_code < 400 or (answer.status_code == 401 and _negotiates(answer)):
        return
    try:
        remote = answer.json()["RemoteException"]
        name, message = str(remote["exception"]), first_line(str(remote["message"]))
    except (ValueError, KeyError, TypeError):
        answer.raise_for_status()
        return
    if name == "StandbyException":
        raise StandbyError(message)
    raise _ERRORS.get(name, OSError)(f"{name}: {message}" if name not in _ERRORS else message)


def _negotiates(answer: requests.Response) -> bool:
    """Whether Kerberos answers this next."""
    return "negotiate" in answer.headers.get("www-authenticate", "").lower()
