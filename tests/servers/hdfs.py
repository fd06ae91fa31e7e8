"""HDFS with WebHDFS by Hadoop's own mini cluster, in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ebbtide.local.broker import free_port
from ebbtide.runtime.java import find_java
from tests.conftest import SHORT_LIVED
from tests.servers.downloads import mini_hdfs
from tests.servers.store import Store, running

SETTINGS = {
    # WebHDFS has no user unless it is given one
    "dfs.permissions.enabled": "false",
    # a file is closed when its block is reported, for which a client looks again after 400 ms
    "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "2",
    # each twice as long as the one before: a busy machine may need seconds
    "dfs.client.block.write.locateFollowingBlock.retries": "12",
}


@contextmanager
def serve() -> Iterator[Store]:
    """A name node and a data node; whoever asks may write."""
    port, web_port = free_port(), free_port()
    java = [str(find_java().executable), *SHORT_LIVED.split(), "-Xmx512m"]
    java += ["-cp", ":".join(map(str, mini_hdfs())), "org.apache.hadoop.test.MiniDFSClusterManager"]
    java += ["-format", "-nnport", str(port), "-httpport", str(web_port)]

    def command(folder: Path) -> list[str]:
        settings = {**SETTINGS, "hdfs.minidfs.basedir": str(folder / "data")}
        pairs = [part for name, value in settings.items() for part in ("-D", f"{name}={value}")]
        return [*java, *pairs, "-writeDetails", str(folder / "ready.json")]

    with running("hdfs", command, lambda folder: (folder / "ready.json").exists()):
        yield Store(
            kind="hdfs",
            protocol="webhdfs",
            authority=f"127.0.0.1:{web_port}/",
            options={"host": "127.0.0.1", "port": web_port},
            environment={"EBBTIDE_WEBHDFS_PORT": str(web_port)},
            spark={"spark.hadoop.fs.defaultFS": f"hdfs://127.0.0.1:{port}"},
            spellings=(f"hdfs://127.0.0.1:{port}/{{container}}/{{path}}",),
        )
