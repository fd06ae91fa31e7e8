"""Send the workers of a cluster the modules that they cannot import."""

from __future__ import annotations

import site
import sys
import sysconfig
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pyspark
from pyspark.cloudpickle import register_pickle_by_value

import ebbtide


def send_modules(transform: Callable[..., Any] | None = None) -> None:
    """From now on, send what functions use of Ebbtide and of a transform's own modules."""
    for module in (ebbtide, *(find_own_modules(transform) if transform else ())):
        register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def find_own_modules(transform: Callable[..., Any]) -> list[ModuleType]:
    """The module or package of a transform, and those beside it; none if it is installed.

    The workers need an installed package themselves, as they need pandas.
    """
    while isinstance(transform, partial):
        transform = transform.func
    name = getattr(transform, "__module__", None) or ""
    folder = _folder_of(sys.modules.get(name.partition(".")[0]))
    if folder is None or folder in _installed_folders():
        return []
    # a copy: what a module does when it is asked for a name may import others
    loaded = list(sys.modules.items())
    return [each for name, each in loaded if "." not in name and _folder_of(each) == folder]


def _folder_of(module: ModuleType | None) -> Path | None:
    """The folder from which a module or a package was imported; None if that is unknown."""
    names = vars(module) if isinstance(module, ModuleType) else {}
    if package := list(names.get("__path__") or ()):
        return Path(package[0]).resolve().parent
    return Path(names["__file__"]).resolve().parent if names.get("__file__") else None


def _installed_folders() -> set[Path | None]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = [sysconfig.get_path(name) for name in names]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    # under spark-submit, pyspark is in a folder of its own
    return {*(Path(folder).resolve() for folder in folders), _folder_of(pyspark)}
