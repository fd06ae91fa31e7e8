"""S3 by moto, in a process of its own.

moto checks `If-None-Match: *` first and writes then, so two requests at once could both pass. S3
lets one win. Here the requests are therefore handled one after the other.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ebbtide.local.broker import free_port
from tests.servers.store import Store, running, written

KEY, SECRET, REGION = "ebbtide-tests", "not-a-secret", "us-east-1"


@contextmanager
def serve() -> Iterator[Store]:
    """An S3 API for fsspec, Delta's log reader and S3A."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "tests.servers.s3", str(port)]
    with running("s3", lambda _: command, written("is ready")):
        yield Store(
            kind="s3",
            protocol="s3",
            authority="",
            options={"key": KEY, "secret": SECRET, "endpoint_url": endpoint},
            environment={
                "AWS_ACCESS_KEY_ID": KEY,
                "AWS_SECRET_ACCESS_KEY": SECRET,
                "AWS_REGION": REGION,
                "AWS_ENDPOINT_URL": endpoint,
                "AWS_ALLOW_HTTP": "true",  # Delta's log reader asks for leave
            },
            spark={
                "spark.hadoop.fs.s3a.endpoint": endpoint,
                "spark.hadoop.fs.s3a.endpoint.region": REGION,
                "spark.hadoop.fs.s3a.access.key": KEY,
                "spark.hadoop.fs.s3a.secret.key": SECRET,
                "spark.hadoop.fs.s3a.path.style.access": "true",
                "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
            },
            spellings=("s3a://{container}/{path}",),
        )


def main(port: str) -> None:
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    moto, one_at_a_time = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def handle(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with one_at_a_time:
            return list(moto(environ, start_response))

    class Handler(MotoRequestHandler):
        def handle_expect_100(self) -> bool:
            """Leave it to werkzeug: S3A's uploads take a second `100 Continue` for the answer."""
            return True

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", int(port), handle, True, request_handler=Handler)
    print("S3 is ready", flush=True)  # noqa: T201
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
