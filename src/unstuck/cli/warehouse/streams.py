"""``unstuck stream skip`` lets a stream pass over one file.

It writes to the warehouse alone, and needs no Redis.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from unstuck.cli.connection import settings_here
from unstuck.cli.options import AsJson, By
from unstuck.cli.render.terminal import emit, stdout
from unstuck.cli.warehouse.housekeeping import OtherWarehouse
from unstuck.coordinator.publishing.streams.skip_file import skip_file
from unstuck.tasks.identity import user_here
from unstuck.tasks.settings import Settings
from unstuck.views.dataset_views import warehouse_at

stream = typer.Typer(help="Streams, from which datasets are loaded.", no_args_is_help=True)


@stream.command(
    "skip", epilog="Example: unstuck stream skip loads 2026-11-27/broken.json --reason 'cut short'"
)
def skip(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="The dataset that is loaded.")],
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="Its path, or its path in the folder of the stream."),
    ],
    reason: Annotated[str, typer.Option("--reason", help="Why, for the history.")] = "",
    by: By = None,
    warehouse: OtherWarehouse = None,
    as_json: AsJson = False,
) -> None:
    """Let the stream of a dataset pass over one file, with the content that it has now."""
    settings = settings_here() if warehouse is None else Settings(warehouse=warehouse)
    done = skip_file(
        warehouse_at(settings.warehouse), dataset, file, by=by or user_here(), reason=reason
    )
    if as_json:
        emit(asdict(done) | {"dataset": dataset})
    elif done.new and not done.version:
        then = f"{dataset} was not loaded yet, and its first load will pass over the file"
        stdout.print(f"{done.path} is skipped: {then}", soft_wrap=True)
    elif done.new:
        stdout.print(
            f"{done.path} is skipped, as version {done.version} of {dataset} says", soft_wrap=True
        )
    else:
        stdout.print(
            f"{done.path} counts as read already, so there is nothing to skip", soft_wrap=True
        )
