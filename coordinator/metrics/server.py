"""Serves the metrics over HTTP, for Prometheus to scrape."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from unstuck.coordinator.errors import BadRequest
from unstuck.coordinator.metrics.scrape import Exporter

SLOW = 10.0  # seconds after which a caller that sends or reads nothing is let go


class _Handler(WSGIRequestHandler):
    timeout = SLOW

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a scrape comes every few seconds."""


def server_of(exporter: Exporter, address: str) -> WSGIServer:
    """A server that listens at ``address``, each caller with a thread of its own; call ``serve_forever``.

    Args:
        address: ``HOST:PORT``, ``:PORT`` or ``PORT``; without a host all interfaces, and port 0 is one that is free.

    Raises: BadRequest.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        number = int(port)
        family = socket.getaddrinfo(host or "0.0.0.0", number, type=socket.SOCK_STREAM)[0][0]

        class Server(ThreadingWSGIServer):
            address_family = family

        registry = CollectorRegistry()
        registry.register(exporter)
        return make_server(host or "0.0.0.0", number, _app(registry), Server, _Handler)
    except (ValueError, OverflowError, OSError) as error:
        raise BadRequest(f"metrics cannot be served at {address!r}: {error}; expected HOST:PORT or :PORT") from error


def _app(registry: CollectorRegistry) -> Any:
    metrics = make_wsgi_app(registry)

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/metrics":
            # OpenMetrics, for which Prometheus asks first, says the same and takes more than twice the time to write.
            body: Iterable[bytes] = metrics({**environ, "HTTP_ACCEPT": "text/plain"}, start_response)
            return body
        found = environ["PATH_INFO"] == "/"
        start_response("200 OK" if found else "404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"The metrics of Unstuck are at /metrics.\n"]

    return app
