"""Find Ebbtide's own Java classes, and archives of parsed classes for faster starts."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from ebbtide.runtime.java import JarSet, cache_folder, find_java, jar_folder
from ebbtide.runtime.versions import spark_home, spark_row

SOURCES = (files("ebbtide.connectors.spark") / "JsonRecords.java",)


@lru_cache(maxsize=1)
def jar_path() -> Path:
    """Where the jar is or will be: in the cache, named by what it is made of."""
    digest = hashlib.sha256(spark_row().minor.encode())
    for source in SOURCES:
        digest.update(source.read_bytes())
    return cache_folder() / "jars" / "own" / f"ebbtide-{digest.hexdigest()[:12]}.jar"


WRITE_ARCHIVES = "EBBTIDE_WRITE_ARCHIVES"
"""Set by `ebbtide.local.warmup`: write class archives at exit instead of using them."""


def class_archive(set_: JarSet) -> Path:
    """The file with the parsed classes of a set, for exactly this Java, pyspark and jars."""
    own = f" {jar_path().name}" if set_ == "spark" else ""
    where = f"{find_java()} {spark_home()} {jar_folder(set_).name}{own}"
    key = hashlib.sha256(where.encode()).hexdigest()[:12]
    return cache_folder() / "classes" / f"{set_}-{key}.jsa"


def archive_options(set_: JarSet) -> list[str]:
    """Java's options to start from the class archive, if there is one (docs/adr/005).

    Java ignores an archive that does not fit, and must not warn about it on stdout.
    """
    archive = class_archive(set_)
    if os.environ.get(WRITE_ARCHIVES):
        return [f"-XX:ArchiveClassesAtExit={archive}.new", "-Xlog:disable"]
    if not archive.exists():
        return []
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable", "-Xlog:all=error:stderr"]
