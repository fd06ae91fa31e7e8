"""What targets are given at first: files of checkpoints that Spark wrote, and that we build."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from tests.fuzz.target import scratch
from tests.trees import LAYOUTS, Shape, make, snapshot

_FIXTURES = Path(__file__).parents[1] / "fixtures" / "checkpoints"
_VERSIONS = ("3.5.9", "4.2.0", "4.3.0")
_MOST, _LARGEST = 12, 8192


@cache
def spark_files() -> dict[str, bytes]:
    """The small files of checkpoints that Spark 3.5 to 4.3 wrote, by version, case and path."""
    files: dict[str, bytes] = {}
    for version in _VERSIONS:
        for archive in sorted((_FIXTURES / version).glob("*.tar.gz")):
            with tarfile.open(archive) as tar:
                for member in tar:
                    content = tar.extractfile(member) if member.size <= _LARGEST else None
                    if content is not None:
                        files[f"{version}/{archive.name}/{member.name}"] = content.read()
    return files


@cache
def built_files() -> dict[str, bytes]:
    """Those of small checkpoints of every layout."""
    files: dict[str, bytes] = {}
    for layout in LAYOUTS:
        metadata = "v2" if layout == "changelog" else "v1"
        folder = make(
            scratch() / "built" / layout, Shape(layout, batches=4, operator_metadata=metadata)
        )
        files |= {f"{layout}/{path}": content for path, content in snapshot(folder).items()}
    return files


def choose(wanted: Callable[[str], bool], *more: bytes) -> list[bytes]:
    """A dozen different files by their paths, the shortest ones, and some values besides."""
    both = (*spark_files().items(), *built_files().items())
    contents = {content for path, content in both if content and wanted(path)}
    return [*spread(sorted(contents, key=lambda content: (len(content), content))), *more]


def spread(contents: list[bytes]) -> list[bytes]:
    """At most a dozen, of every length."""
    step = max(1, len(contents) // _MOST)
    return contents[::step][: _MOST + 1]


def parts(path: str) -> list[str]:
    """The parts of a path in a checkpoint, and before them where it is from."""
    return path.split("/")


def to_bytes(texts: Iterable[str]) -> list[bytes]:
    """Texts as files hold them."""
    return [text.encode("utf-8", "surrogatepass") for text in texts]
