"""A real server of a kind of store, in a process of its own, and how users reach it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import fsspec

HERE = Path(__file__).parent
LOG = "server.log"
_REQUESTS = 8
"""At once, where many files are written or read."""


@dataclass(frozen=True)
class Store:
    """A running store. Nothing in it outlives the tests."""

    kind: str
    """`s3`, `azure`, `gcs` or `hdfs`."""
    protocol: str
    """What URLs begin with, as fsspec has it."""
    authority: str
    """What comes before the path in each URL, such as HDFS's host; `` for stores with buckets."""
    options: Mapping[str, Any]
    """fsspec's storage options, for tests that do not go through the environment."""
    environment: Mapping[str, str]
    """What a user would set for `ebbtide`."""
    spark: Mapping[str, str]
    """What a user would set for Spark: `spark.hadoop.…`."""
    spellings: tuple[str, ...]
    """Other ways to write a URL, given its `container` and its `path`; Spark's is the first."""

    def spell(self, url: str) -> tuple[str, ...]:
        """Every way to write a URL; the first is Spark's, the last is fsspec's."""
        rest = url.removeprefix(f"{self.protocol}://{self.authority}")
        container, _, path = rest.partition("/")
        others = [each.format(container=container, path=path) for each in self.spellings]
        return (*others, url)

    def new_root(self) -> str:
        """The URL of a new, empty bucket, container or folder."""
        name = f"t{os.urandom(6).hex()}"
        root = f"{self.protocol}://{self.authority}{name}"
        self.filesystem.mkdir(root, create_parents=True)
        return root

    @cached_property
    def filesystem(self) -> Any:
        """The store as fsspec sees it, for tests to look behind Ebbtide's back."""
        return fsspec.filesystem(
            self.protocol, skip_instance_cache=True, use_listings_cache=False, **self.options
        )

    def upload(self, folder: Path, url: str) -> str:
        """Put a local folder's files at a URL, and return it."""
        files = (path for path in folder.rglob("*") if path.is_file())
        return self.write(
            url, {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
        )

    def write(self, url: str, contents: Mapping[str, bytes]) -> str:
        """Put files at a URL, by their paths there, and return it."""
        filesystem = self.filesystem
        root = filesystem._strip_protocol(url)
        with ThreadPoolExecutor(_REQUESTS) as pool:
            paths = (f"{root}/{path}" for path in contents)
            list(pool.map(filesystem.pipe_file, paths, contents.values()))
        return url

    def download(self, url: str, folder: Path) -> Path:
        """Put the files below a URL into a local folder, and return it."""
        for path, content in self.everything(url).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        return folder

    def contents(self, url: str) -> dict[str, bytes]:
        """Every file below a URL, by its path there, but for Ebbtide's own notes."""
        return {
            path: content
            for path, content in self.everything(url).items()
            if not path.startswith(".ebbtide/")
        }

    def everything(self, url: str) -> dict[str, bytes]:
        """Every file below a URL, by its path there."""
        filesystem = self.filesystem
        root = filesystem._strip_protocol(url).rstrip("/")
        paths = filesystem.find(root)
        with ThreadPoolExecutor(_REQUESTS) as pool:
            contents = pool.map(filesystem.cat_file, paths)
            names = [path[len(root) :].lstrip("/") for path in paths]
            return dict(zip(names, contents, strict=True))


@contextmanager
def running(
    name: str,
    command: Callable[[Path], list[str]],
    is_ready: Callable[[Path], bool],
    **environment: str,
) -> Iterator[None]:
    """Run a server, given a scratch folder, from when it is ready until the end of the block.

    It also ends when this process is killed (`keeper`).
    """
    folder = Path(tempfile.mkdtemp(prefix=f"ebbtide-{name}-"))
    log = folder / LOG
    try:
        with log.open("wb") as output:
            server = subprocess.Popen(
                [sys.executable, str(HERE / "keeper.py"), *command(folder)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                cwd=HERE.parents[1],
                start_new_session=True,  # Ctrl-C is for the tests, which end it then
            )
        try:
            _wait(name, server, log, is_ready)
            yield
        finally:
            assert server.stdin is not None
            server.stdin.close()
            server.wait(30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def written(line: str) -> Callable[[Path], bool]:
    """Whether a server has written a line that says that it is ready."""
    return lambda folder: line in (folder / LOG).read_text("utf-8", errors="replace")


def _wait(
    name: str, server: subprocess.Popen[bytes], log: Path, is_ready: Callable[[Path], bool]
) -> None:
    deadline = time.monotonic() + 180
    while not is_ready(log.parent):
        if server.poll() is not None or time.monotonic() > deadline:
            end = log.read_text("utf-8", errors="replace")[-3000:]
            raise RuntimeError(f"The test server {name} did not start. It wrote:\n{end}")
        time.sleep(0.05)
