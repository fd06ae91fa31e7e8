"""Load the names of a package's face on first use, so that importing the package stays cheap."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pkgutil import get_data
from typing import Any


def load_on_use(package: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package, which imports on first use what its source lists.

    The package lists such names as imports for the type checker (`if TYPE_CHECKING:`), and only
    there.

    >>> import ebbtide.runtime
    >>> load_on_use("ebbtide.runtime")("parse_conf").__module__
    'ebbtide.runtime.session'
    """

    def load(name: str) -> Any:
        module = _read_imports(package).get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if module == package:  # a module of the package itself
            return import_module(f"{package}.{name}")
        return getattr(import_module(module), name)

    return load


@cache
def _read_imports(package: str) -> dict[str, str | None]:
    """Every name that the source of a package imports from a module, and that module."""
    nodes = ast.walk(ast.parse(get_data(package, "__init__.py") or b""))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module for node in imports for alias in node.names}
