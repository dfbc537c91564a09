"""``unstuck up`` runs a local fleet in the foreground, until Ctrl-C."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import redis
import typer

from unstuck.cli.connection import connected, settings_here
from unstuck.cli.ops.web import lacking_page
from unstuck.coordinator.errors import BadRequest, Unreachable
from unstuck.exits import ExitCode
from unstuck.tasks.host import lacking

WITHOUT_JAVA = (
    "Groups with `spark: false` need no Java: a fleet for them alone starts with "
    "`unstuck up --workers 0`."
)


def up(
    workers: Annotated[int, typer.Option("--workers", min=0, help="Spark workers.")] = 1,
    coordinators: Annotated[int, typer.Option("--coordinators", min=1, help="Coordinators.")] = 1,
    light: Annotated[
        int, typer.Option("--light", min=0, help="Workers for groups without Spark.")
    ] = 1,
    home: Annotated[
        Path | None,
        typer.Option("--home", help="Where its logs and Valkey's data are kept: .unstuck."),
    ] = None,
    reload: Annotated[
        bool | None,
        typer.Option(
            "--reload/--no-reload",
            help=(
                "Restart a worker when the code of its steps changes below this folder. On by "
                "default in a folder with Python modules."
            ),
            show_default=False,
        ),
    ] = None,
    web: Annotated[
        bool | None,
        typer.Option(
            "--web/--no-web",
            help="Serve the page of the fleet, too; by default where the extra `web` is installed.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a local fleet in the foreground: an embedded Valkey unless UNSTUCK_REDIS_URL is set.

    Ctrl-C stops all.
    """
    from unstuck.local.local_fleet import LocalFleet
    from unstuck.local.programs import Size
    from unstuck.local.source import holds_source

    queues = [*(["spark"] if workers else []), *(["light"] if light else [])]
    if queues and (lacks := lacking(settings_here(), queues, WITHOUT_JAVA)):
        raise BadRequest(
            "Nothing was started, since this machine cannot run the workers of this "
            f"fleet.\n{lacks}"
        )
    if os.environ.get("UNSTUCK_REDIS_URL"):
        otherwise = (
            "Start it, or unset UNSTUCK_REDIS_URL: `unstuck up` then brings a Valkey of its own."
        )
        try:
            with connected(otherwise=otherwise):
                pass  # asked here, so that a refusal is explained before anything is started
        except Unreachable as error:
            if not isinstance(
                error.__cause__, redis.BusyLoadingError
            ):  # that one the fleet waits for
                raise
    reload = holds_source(Path.cwd()) if reload is None else reload
    fleet = LocalFleet(
        Size(workers, coordinators, light),
        home,
        reload=reload,
        web=not lacking_page() if web is None else web,
    )
    raise typer.Exit(ExitCode.NOT_WELL if fleet.run() else ExitCode.FINE)
