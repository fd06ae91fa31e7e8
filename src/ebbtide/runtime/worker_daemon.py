"""The program that starts Spark's Python workers on this machine: `pyspark.daemon`, but faster.

Spark puts its own copy of pyspark, a zip file, on the path of the workers. Python keeps no compiled
modules of a zip file, so each start would compile pyspark again. The zip file of a pyspark that pip
has installed holds the same modules as the package around it, which is compiled already.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path


def without_copies(path: Iterable[str]) -> list[str]:
    """A search path without the zip files of pyspark packages that are on it themselves.

    >>> without_copies(["/spark/python/lib/pyspark.zip", "/modules"])
    ['/spark/python/lib/pyspark.zip', '/modules']
    """
    entries = list(path)
    return [entry for entry in entries if not _is_copy(Path(entry), entries)]


def _is_copy(entry: Path, entries: list[str]) -> bool:
    if entry.parts[-3:] != ("python", "lib", "pyspark.zip"):
        return False
    package = entry.parents[2]
    is_package = package.name == "pyspark" and (package / "__init__.py").is_file()
    return is_package and str(package.parent) in entries


if __name__ == "__main__":
    sys.path[:] = without_copies(sys.path)
    from pyspark.daemon import manager

    manager()
