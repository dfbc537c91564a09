"""``unstuck web``: the page of the fleet, in a browser."""

from __future__ import annotations

import importlib.util
import signal
import socket
from pathlib import Path
from typing import Annotated

import typer

from unstuck.cli.connection import settings_here
from unstuck.cli.options import host_and_port
from unstuck.cli.render.terminal import stderr
from unstuck.client.client import Client
from unstuck.coordinator.errors import BadRequest
from unstuck.coordinator.unreachable import ANSWER_TIMEOUT
from unstuck.tasks.host import how_to_install
from unstuck.tasks.transport.redis_client import connect

ADDRESS = "127.0.0.1:8620"
PACKAGES = ("starlette", "fastapi", "jinja2", "uvicorn")  # of the extra `web`
END_WITHIN = 3  # seconds for requests that are under way when the page is to end


def web(
    address: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", envvar="UNSTUCK_WEB_ADDRESS", help="Where it listens."),
    ] = ADDRESS,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Offer no action, and refuse each.")
    ] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="UNSTUCK_WEB_TOKEN_FILE",
            help=(
                "Holds the token that each caller must know; needed for any address but a "
                "loopback one."
            ),
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Another name by which browsers may call the page, as behind a proxy.",
        ),
    ] = None,
) -> None:
    """Serve the page of the fleet until stopped: problems, jobs, schedules, datasets."""
    if missing := lacking_page():
        raise BadRequest(f"The page needs {', '.join(missing)}. {how_to_install('web')}")
    import uvicorn

    from unstuck.metrics.scrape import Exporter
    from unstuck.web.app import create_app
    from unstuck.web.safety import Access

    token = "" if token_file is None else _token(token_file)
    host, port = host_and_port(address)
    access = Access.of(host, token, tuple(allow_host or ()))
    settings = settings_here()
    store = connect(settings.redis_url, timeout=ANSWER_TIMEOUT, repeats=0)
    with (
        _listening(host, port, address) as listener,
        Client(settings, redis_client=store) as client,
    ):
        config = uvicorn.Config(
            create_app(client, access, read_only=read_only, exporter=Exporter(store, settings)),
            lifespan="off",
            log_level="warning",
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=END_WITHIN,
        )
        server = uvicorn.Server(config)
        for number in (
            signal.SIGTERM,
            signal.SIGINT,
        ):  # uvicorn takes them while it serves, and gives them back after
            signal.signal(number, lambda *_: setattr(server, "should_exit", True))
        bound = listener.getsockname()
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        stderr.print(f"The page is at http://{shown}:{bound[1]}/", soft_wrap=True)
        server.run(sockets=[listener])


def lacking_page() -> list[str]:
    """Return the packages that the page needs and that are not installed."""
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]


def _token(file: Path) -> str:
    token = file.read_text(encoding="utf-8").strip()
    if not token:
        raise BadRequest(f"{file} is empty; it is to hold the token of the page")
    return token


def _listening(host: str, port: int, address: str) -> socket.socket:
    try:
        family = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise BadRequest(
            f"the page cannot listen at {address}: {error.strerror or error}"
        ) from error
