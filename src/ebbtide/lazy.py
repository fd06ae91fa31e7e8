"""Load the names of a package's face on first use, so that importing the package stays cheap."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def load_on_use(package: str, **names: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package that imports names on first use, listed by their module.

    A module itself is listed under its own name.

    >>> load_on_use("ebbtide", times="EPOCH parse_time")("EPOCH").year
    1970
    """
    modules = {name: module for module, listed in names.items() for name in listed.split()}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{modules[name]}")
        return module if name == modules[name] else getattr(module, name)

    return load
