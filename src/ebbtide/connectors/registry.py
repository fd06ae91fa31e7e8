"""Which connectors there are: the built-in ones, loaded on first use, and those that register."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any

from ebbtide.connectors.base import Connector
from ebbtide.pipeline import Sink, Source

_BUILT_IN = {
    "kafka": "ebbtide.connectors.kafka",
    "delta": "ebbtide.connectors.delta",
    "files": "ebbtide.connectors.files",
    "console": "ebbtide.connectors.console",
    "foreach-batch": "ebbtide.connectors.foreach_batch",
    "rate": "ebbtide.connectors.rate",
}
"""By kind, the module that has the connector as `CONNECTOR`."""
_REGISTERED: dict[str, Connector] = {}


def register(connector: Connector) -> None:
    """Make a connector known; its values name it by their `kind`."""
    _REGISTERED[connector.kind] = connector


def connector_of(end: str | Source | Sink) -> Connector:
    """The connector of a source or a sink, or of a kind; one that is not known knows nothing.

    >>> connector_of("delta").label, connector_of("elsewhere").label
    ('Delta', '')
    """
    kind = end if isinstance(end, str) else end.kind
    return _REGISTERED.get(kind) or _load(kind)


def connector_of_offset(offset: Any) -> Connector:
    """The connector of a source's offset, as Spark writes it or parsed from that JSON.

    >>> connector_of_offset('{"visits":{"0":0}}').kind, connector_of_offset({"logOffset": 3}).kind
    ('kafka', 'files')
    >>> connector_of_offset(None).kind, connector_of_offset("?").kind
    ('none', 'unknown')
    """
    if offset is None:
        return connector_of("none")
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return connector_of("unknown")
    owners = (connector for connector in all_connectors() if connector.source.owns(offset))
    return next(owners, connector_of("unknown"))


@cache
def _load(kind: str) -> Connector:
    if kind not in _BUILT_IN:
        return Connector(kind)
    connector: Connector = import_module(_BUILT_IN[kind]).CONNECTOR
    return connector


def all_connectors() -> Iterator[Connector]:
    """Every connector, those that were registered first."""
    yield from map(connector_of, dict.fromkeys((*_REGISTERED, *_BUILT_IN)))
