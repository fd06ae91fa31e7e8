"""Serve the metrics of a running query to Prometheus."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from ebbtide.errors import EbbtideError, MissingExtraError, UsageError
from ebbtide.history import Entry
from ebbtide.history import metrics as history_metrics
from ebbtide.version import __version__

if TYPE_CHECKING:
    from prometheus_client import Metric

HOST = "127.0.0.1"
"""The default address, which other machines cannot reach."""
_REQUEST_SECONDS = 10
"""How long a client may take to send its request."""


class Metrics:
    """The metrics of a query since its start."""

    def __init__(self, pipeline: str, say: Callable[[str], None] = lambda _line: None) -> None:
        self.running = False
        self._pipeline, self._say = pipeline, say
        self._totals, self._warned = history_metrics.BatchTotals(), False
        self._versions = {"version": __version__, "spark": version("pyspark")}

    def observe(self, entry: Entry) -> None:
        """Count a batch; a failure here must not stop the stream."""
        try:
            # replaced at once, so that a reader never sees half of it
            self._totals += history_metrics.count([entry])
        except Exception as error:
            if not self._warned:
                self._warned = True
                self._say(
                    f"Warning: batch {entry.batch} is missing from the metrics: {error}. "
                    "The stream continues; this warning is not repeated."
                )

    def samples(self) -> Iterator[history_metrics.Sample]:
        """All current values."""
        yield history_metrics.Sample(history_metrics.INFO, 1, self._versions)
        yield history_metrics.Sample(history_metrics.RUNNING, int(self.running))
        yield from self._totals.samples()

    def labeled(self) -> Iterator[history_metrics.Sample]:
        """All current values, with the name of the query."""
        for sample in self.samples():
            yield replace(sample, labels={**sample.labels, "pipeline": self._pipeline})


class MetricsServer:
    """Serves the metrics of one query or of several."""

    def __init__(self, host: str | None, port: int) -> None:
        self._queries: dict[str, Metrics] = {}
        self._host = host or HOST
        self._server = _listen(self, self._host, port)

    @property
    def url(self) -> str:
        """Where Prometheus reads them."""
        return f"http://{_join(self._host, self._server.server_port)}/metrics"

    def add(self, key: str, metrics: Metrics) -> None:
        """Serve the metrics of a query, instead of those under the same key."""
        self._queries = {**self._queries, key: metrics}  # another thread may be reading

    def collect(self) -> Iterator[Metric]:
        """The values as prometheus_client expects them: each measure once, for all queries."""
        from prometheus_client import Metric

        samples = [sample for one in self._queries.values() for sample in one.labeled()]
        order = dict.fromkeys(sample.measure for sample in samples)
        for measure in order:
            family = Metric(measure.name.removesuffix("_total"), measure.help, measure.kind)
            for sample in samples:
                if sample.measure == measure:
                    family.add_sample(sample.name, dict(sample.labels), sample.value)
            yield family

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def serve_metrics(
    pipeline: str, port: int | None, host: str | None, say: Callable[[str], None]
) -> Iterator[Metrics]:
    """Serve a query's metrics while it runs; without a port they are only counted."""
    metrics = Metrics(pipeline, say)
    if port is None:
        yield metrics
        return
    server = MetricsServer(host, port)
    server.add(pipeline, metrics)
    say(f"Metrics for Prometheus: {server.url}")
    try:
        yield metrics
    finally:
        server.close()


def _listen(collector: MetricsServer, host: str, port: int) -> WSGIServer:
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise MissingExtraError.for_extra("spark", "--metrics-port") from None
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise UsageError(
                f"This machine has no address {host}.", "Name another with --metrics-host."
            ) from None
        raise EbbtideError(
            f"Metrics cannot be served at {_join(host, port)}: {error.strerror}.",
            "Name another port with --metrics-port, or 0 for any that is free.",
        ) from None
    server.RequestHandlerClass = _Handler
    return server


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_SECONDS

    def handle(self) -> None:
        """Do not report clients that hang up or send nothing."""
        with suppress(OSError):
            super().handle()

    def log_message(self, *_args: Any) -> None:
        """Do not log requests."""
