"""Which installed Python packages do not fit together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

_WANTED = {"ebbtide": None, "pyspark": ("sql",)}
"""Whose requirements count, with which extras of theirs; None: all of them."""


@dataclass(frozen=True)
class Unfit:
    """A package whose version another one does not accept."""

    name: str
    version: str
    wanted: str
    wanted_by: str


def find_unfit() -> Iterator[Unfit]:
    """The packages that are there in a wrong version; one that is missing is another matter.

    pip checks this only when it installs, and only what it installs.
    """
    for package, extras in _WANTED.items():
        try:
            found = metadata.distribution(package)
        except metadata.PackageNotFoundError:
            continue
        chosen = found.metadata.get_all("Provides-Extra") or [] if extras is None else extras
        for requirement in found.requires or []:
            yield from _examine(requirement, f"{package} {found.version}", ["", *chosen])


def _examine(line: str, wanted_by: str, extras: list[str]) -> Iterator[Unfit]:
    from packaging.requirements import Requirement

    wanted = Requirement(line)
    if wanted.marker and not any(wanted.marker.evaluate({"extra": extra}) for extra in extras):
        return
    try:
        version = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return
    if not wanted.specifier.contains(version, prereleases=True):
        yield Unfit(wanted.name, version, str(wanted.specifier), wanted_by)
