"""Google Cloud Storage by fake-gcs-server, in a process of its own.

It has no gRPC, by which gcsfs asks of which type a bucket is, for a minute: that is turned off.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ebbtide.local.broker import free_port
from tests.servers.downloads import fake_gcs
from tests.servers.store import Store, running, written

NO_GRPC = {"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
os.environ.update(NO_GRPC)  # gcsfs reads it when it is imported


@contextmanager
def serve() -> Iterator[Store]:
    """A storage API for fsspec and Delta's log reader."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [str(fake_gcs()), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    command += [
        "-backend",
        "memory",
        "-external-url",
        endpoint,
        "-public-host",
        f"127.0.0.1:{port}",
    ]
    with running("gcs", lambda _: command, written("server started")):
        yield Store(
            kind="gcs",
            protocol="gs",
            authority="",
            options={"endpoint_url": endpoint, "token": "anon", "project": "tests"},
            environment={"STORAGE_EMULATOR_HOST": endpoint, **NO_GRPC},
            spark={
                "spark.hadoop.fs.gs.storage.root.url": endpoint,
                "spark.hadoop.fs.gs.auth.type": "UNAUTHENTICATED",
            },
            spellings=("gs://{container}/{path}", "gcs://{container}/{path}"),
        )
