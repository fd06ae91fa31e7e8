"""The connectors by kind: the built-in ones, loaded on first use, and registered ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any, cast

from ebbtide.connectors.base import Connector
from ebbtide.parsing import parse_json
from ebbtide.pipeline import Sink, Source

_BUILT_IN = ("kafka", "delta", "files", "console", "foreach-batch", "rate", "none")
"""Their kinds; a module of that name has the connector as `CONNECTOR`."""
_REGISTERED: dict[str, Connector] = {}


def register(connector: Connector) -> None:
    """Make a connector known; its values name it by their `kind`."""
    _REGISTERED[connector.kind] = connector


def connector_of(end: str | Source | Sink) -> Connector:
    """The connector of a source, a sink or a kind; for an unknown kind, one with the defaults.

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
            offset = parse_json(offset)
        except ValueError:
            return connector_of("unknown")
    owners = (connector for connector in all_connectors() if connector.source.owns(offset))
    return next(owners, connector_of("unknown"))


@cache
def _load(kind: str) -> Connector:
    if kind not in _BUILT_IN:
        return Connector(kind)
    return cast(Connector, import_module(f"ebbtide.connectors.{kind.replace('-', '_')}").CONNECTOR)


def all_connectors() -> Iterator[Connector]:
    """Every connector, registered ones first."""
    yield from map(connector_of, dict.fromkeys((*_REGISTERED, *_BUILT_IN)))
