"""Plant a fault in a parser, to see that the campaign finds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from ebbtide.checkpoint import log_files
from ebbtide.compatibility import schemas
from ebbtide.connections import jaas


@dataclass(frozen=True)
class PlantedFault:
    """A function of Ebbtide's that is replaced by one with a fault."""

    target: str
    """The target that must find it."""
    module: Any
    name: str
    function: Callable[..., Any]
    shows: str
    """How its failure begins."""


def _trusting_number(metadata: Mapping[str, Any], name: str, _where: str) -> int:
    """A field that is not there is a KeyError, though each caller expects a CheckpointError."""
    return int(metadata[name])


def _copying_login(text: str) -> jaas.Login:
    """Each option copies all that follow it: a megabyte of options takes hours."""
    tokens = list(jaas._split(text))
    if len(tokens) < 2 or tokens[-1] != jaas._END:
        raise jaas._wrong("does not end with a semicolon")
    options, rest = {}, tokens[2:-1]
    while len(rest) >= 3:
        options[rest[0][1]] = rest[2][1]
        rest = rest[3:]
    return jaas.Login(tokens[0][1], options)


def _trusting_chunks(stream: BytesIO) -> str:
    """Room for as many chunks as the file says that it has, before one of them is read."""
    texts = [""] * schemas._read_number(stream, 4)
    for at in range(len(texts)):
        texts[at] = schemas._read_utf(stream)
    return "".join(texts)


FAULTS: Mapping[str, PlantedFault] = {
    "key": PlantedFault("offsets", log_files, "_number", _trusting_number, "KeyError"),
    "square": PlantedFault("jaas", jaas, "parse_login", _copying_login, "TooSlowError"),
    "length": PlantedFault("schema", schemas, "_read_chunks", _trusting_chunks, "MemoryError"),
}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Ebbtide with a fault; nothing is planted without a name."""
    if not name:
        yield
        return
    fault = FAULTS[name]
    before = getattr(fault.module, fault.name)
    setattr(fault.module, fault.name, fault.function)
    try:
        yield
    finally:
        setattr(fault.module, fault.name, before)
