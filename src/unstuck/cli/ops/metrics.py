"""``unstuck metrics``: the metrics of the fleet in the text format of Prometheus."""

from __future__ import annotations

import signal
import sys
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from unstuck.cli.connection import connected, settings_here
from unstuck.cli.options import host_and_port
from unstuck.cli.render.terminal import stderr
from unstuck.coordinator.errors import BadRequest
from unstuck.coordinator.unreachable import ANSWER_TIMEOUT
from unstuck.tasks.transport.redis_client import connect

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from unstuck.metrics.scrape import Exporter


def metrics(
    serve: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Serve them at http://ADDRESS/metrics until stopped, e.g. :9464.",
        ),
    ] = None,
) -> None:
    """Print the metrics of the fleet in the text format of Prometheus, or serve them."""
    from prometheus_client import generate_latest

    from unstuck.metrics.scrape import Exporter

    if serve is None:
        with connected() as connection:
            sys.stdout.write(
                generate_latest(Exporter(connection.redis, connection.client.settings)).decode()
            )
        return
    settings = settings_here()
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(
        signal.SIG_BLOCK, ends
    )  # also for the threads that serve, so that they end this wait alone
    with connect(settings.redis_url, timeout=ANSWER_TIMEOUT, repeats=0) as client:
        server, thread = serve_at(serve, Exporter(client, settings))
        place = f"http://{server.server_name}:{server.server_port}/metrics"
        stderr.print(f"The metrics are served at {place}", soft_wrap=True)
        signal.sigwait(ends)
        server.shutdown()
        thread.join()
        server.server_close()


def serve_at(address: str, exporter: Exporter) -> tuple[WSGIServer, threading.Thread]:
    """Return a server that listens at ``address``, and its thread.

    Args:
        address: as of `host_and_port`; port 0 is one that is free.

    Raises: BadRequest.
    """
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(exporter)
    host, port = host_and_port(address)
    try:
        return start_http_server(port, host or "0.0.0.0", registry)
    except OSError as error:
        raise BadRequest(
            f"the metrics cannot be served at {address}: {error.strerror or error}"
        ) from error
