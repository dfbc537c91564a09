"""``unstuck vacuum`` removes the files of old versions from a warehouse."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer
from rich import filesize
from rich.progress import Progress

from unstuck.coordinator.cli.connection import connected, settings_here
from unstuck.coordinator.cli.datasets import warehouse_at
from unstuck.coordinator.cli.options import AsJson
from unstuck.coordinator.cli.render.terminal import emit, stderr, stdout
from unstuck.coordinator.errors import BadRequest
from unstuck.coordinator.publishing.upkeep import Upkeep
from unstuck.tasks.duration import parse_duration
from unstuck.tasks.settings import Settings

KEEP, OLDER_THAN = 10, "30d"


def vacuum(
    keep: Annotated[int, typer.Option("--keep", min=1, help="Versions that stay in any case.")] = KEEP,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="DURATION", help="Versions that were the newest since then stay.")
    ] = OLDER_THAN,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove nothing; say what would be removed.")] = False,
    warehouse: Annotated[
        str | None, typer.Option("--warehouse", metavar="URI", help="Another one than UNSTUCK_WAREHOUSE (./warehouse).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove published files that only old versions have. What jobs need that are open or may be retried stays."""
    try:
        since = time.time() - parse_duration(older_than)
    except ValueError as error:
        raise BadRequest(f"--older-than {older_than}: {error}") from None
    settings = settings_here()
    place = warehouse_at(settings.warehouse if warehouse is None else Settings(warehouse=warehouse).warehouse)
    with (
        connected(settings) as connection,
        Progress(console=stderr, transient=True, disable=as_json or not stderr.is_terminal) as bar,
    ):
        upkeep = Upkeep(place, connection.redis, settings)
        task = bar.add_task("looking at files", total=None)
        done = upkeep.vacuum(
            keep=keep,
            before=since,
            dry_run=dry_run,
            progress=lambda number, total: bar.update(task, completed=number, total=total),
        )
    if as_json:
        emit(asdict(done) | {"dry_run": dry_run})
        return
    word = "would remove" if dry_run else "removed"
    stdout.print(f"{word} {done.files:,} files, {filesize.decimal(done.bytes)}; the oldest version is {done.oldest}")
    if done.held_for:
        stdout.print(f"versions from {done.oldest} on stay for now: job {done.held_for} is open, and may read them")
    if done.held:
        stdout.print(f"{done.held:,} files stay for now: a job that is open, or may be retried, may need them")
