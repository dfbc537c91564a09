"""``unstuck compact`` writes the small files of a dataset together into larger ones."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich import filesize
from rich.progress import Progress

from unstuck.coordinator.cli.connection import connected, settings_here
from unstuck.coordinator.cli.datasets import warehouse_at
from unstuck.coordinator.cli.options import AsJson
from unstuck.coordinator.cli.render.terminal import emit, stderr, stdout
from unstuck.coordinator.publishing.upkeep import TARGET, Upkeep
from unstuck.tasks.settings import Settings


def compact(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The dataset.")],
    target: Annotated[int, typer.Option("--target", metavar="MB", min=1, help="Size of the new files.")] = TARGET,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing; say what would become of it.")] = False,
    warehouse: Annotated[
        str | None, typer.Option("--warehouse", metavar="URI", help="Another one than UNSTUCK_WAREHOUSE (./warehouse).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write files below half of the target together, as a version of its own; the rows stay the same."""
    settings = settings_here()
    place = warehouse_at(settings.warehouse if warehouse is None else Settings(warehouse=warehouse).warehouse)
    with (
        connected(settings) as connection,
        Progress(console=stderr, transient=True, disable=as_json or not stderr.is_terminal) as bar,
    ):
        upkeep = Upkeep(place, connection.redis, settings)
        task = bar.add_task(f"rewriting {name}", total=None)
        done = upkeep.compact(
            name,
            target=target,
            dry_run=dry_run,
            progress=lambda number, total: bar.update(task, completed=number, total=total),
        )
    if as_json:
        emit(asdict(done) | {"dataset": name, "dry_run": dry_run})
        return
    if done.version:
        written = filesize.decimal(done.bytes)
        stdout.print(
            f"{name}: {done.before:,} files became {done.after:,} in version {done.version} ({written} written)"
        )
    elif dry_run and done.after < done.before:
        stdout.print(f"{name}: {done.before:,} files would become about {done.after:,}")
    else:
        stdout.print(f"{name}: nothing to do in {done.before:,} files")
    if done.held:
        stdout.print(f"{done.held:,} small files stay for now: a job that is open, or may be retried, may need them")
