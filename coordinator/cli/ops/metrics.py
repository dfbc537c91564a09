"""``unstuck metrics``: the metrics of the fleet in the text format of Prometheus, printed once or served."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Annotated

import typer

from unstuck.coordinator.cli.connection import connected, settings_here
from unstuck.coordinator.cli.render.terminal import stderr
from unstuck.coordinator.unreachable import ANSWER_TIMEOUT
from unstuck.tasks.transport.redis_client import connect


def metrics(
    serve: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Serve them at http://ADDRESS/metrics until it is told to stop, e.g. :9464."
        ),
    ] = None,
) -> None:
    """Print the metrics of the fleet in the text format of Prometheus, or serve them."""
    from prometheus_client import generate_latest

    from unstuck.coordinator.metrics.scrape import Exporter
    from unstuck.coordinator.metrics.server import server_of

    if serve is None:
        with connected() as connection:
            sys.stdout.write(generate_latest(Exporter(connection.redis, connection.client.settings)).decode())
        return
    settings = settings_here()
    client = connect(settings.redis_url, timeout=ANSWER_TIMEOUT, repeats=0)
    server = server_of(Exporter(client, settings), serve)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    stderr.print(f"The metrics are served at http://{server.server_name}:{server.server_port}/metrics", soft_wrap=True)
    server.serve_forever()
    server.server_close()
    client.close()
