"""``unstuck vacuum`` removes old versions, ``compact`` combines small files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer
from rich import filesize
from rich.progress import Progress

from unstuck.cli.connection import connected, settings_here
from unstuck.cli.options import AsJson, OtherWarehouse
from unstuck.cli.render.terminal import emit, stderr, stdout
from unstuck.coordinator.errors import BadRequest
from unstuck.coordinator.publishing.vacuum import vacuum as remove_old_versions
from unstuck.coordinator.store.staging_index import StagingIndex
from unstuck.tasks.duration import parse_duration
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.settings import Settings
from unstuck.tasks.warehouse.compact import TARGET, compact_dataset
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.views.dataset_views import warehouse_at

KEEP, OLDER_THAN = 10, "30d"


def vacuum(
    keep: Annotated[
        int, typer.Option("--keep", min=1, help="Versions that stay in any case.")
    ] = KEEP,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than",
            metavar="DURATION",
            help="Versions that were the newest since then stay.",
        ),
    ] = OLDER_THAN,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Remove nothing; say what would be removed.")
    ] = False,
    warehouse: OtherWarehouse = None,
    as_json: AsJson = False,
) -> None:
    """Remove published files that only old versions use. Files that jobs may need stay.

    These are open jobs, and jobs that may be retried.
    """
    try:
        since = time.time() - parse_duration(older_than)
    except ValueError as error:
        raise BadRequest(f"--older-than {older_than}: {error}") from None
    settings = settings_here()
    with (
        _opened(settings, warehouse) as (place, index),
        _shown("looking at files", as_json) as progress,
    ):
        if (identity := place.identity()) is None:
            raise BadRequest(f"There is no warehouse at {place.storage.uri('')}; is it mounted?")
        done = remove_old_versions(
            # With its id: if the warehouse goes away meanwhile, nothing is written where it was.
            Warehouse(place.storage.uri(""), identity),
            index.needed(),
            keep=keep,
            before=since,
            reading=partial(index.oldest_read, identity),
            counted=partial(index.count_vacuum, identity),
            dry_run=dry_run,
            progress=progress,
        )
    if as_json:
        emit(asdict(done) | {"dry_run": dry_run})
        return
    word = "would remove" if dry_run else "removed"
    stdout.print(
        f"{word} {done.files:,} files, {filesize.decimal(done.bytes)}; the oldest version is "
        f"{done.oldest}"
    )
    if done.kept_for:
        stdout.print(
            f"more could go, but job {done.kept_for} may read an older version, now or when it is "
            "retried"
        )
    if done.kept:
        stdout.print(
            f"{done.kept:,} files stay for now: a job that is open, or may be retried, may need "
            "them"
        )


def compact(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The dataset.")],
    target: Annotated[
        int, typer.Option("--target", metavar="MB", min=1, help="Size of the new files.")
    ] = TARGET,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write nothing; print what would be done.")
    ] = False,
    warehouse: OtherWarehouse = None,
    as_json: AsJson = False,
) -> None:
    """Combine files below half of the target size, as a new version with the same rows."""
    settings = settings_here()
    with (
        _opened(settings, warehouse) as (place, index),
        _shown(f"rewriting {name}", as_json) as progress,
    ):
        done = compact_dataset(
            place,
            index,
            name,
            target=target,
            retention=settings.retention,
            dry_run=dry_run,
            progress=progress,
        )
    if as_json:
        emit(asdict(done) | {"dataset": name, "dry_run": dry_run})
        return
    if done.version:
        written = filesize.decimal(done.bytes)
        stdout.print(
            f"{name}: {done.before:,} files became {done.after:,} in version {done.version} "
            f"({written} written)"
        )
    elif dry_run and done.after < done.before:
        stdout.print(f"{name}: {done.before:,} files would become about {done.after:,}")
    else:
        stdout.print(f"{name}: nothing to do in {done.before:,} files")
    if done.kept:
        stdout.print(
            f"{done.kept:,} small files stay for now: a job that is open, or may be retried, may "
            "need them"
        )


@contextmanager
def _opened(settings: Settings, warehouse: str | None) -> Iterator[tuple[Warehouse, StagingIndex]]:
    """Return the warehouse, and the staging that Redis knows to be needed by jobs."""
    place = warehouse_at(
        settings.warehouse if warehouse is None else Settings(warehouse=warehouse).warehouse
    )
    with connected(settings) as connection:
        yield place, StagingIndex(connection.redis, Keys(settings.prefix))


@contextmanager
def _shown(what: str, as_json: bool) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on the terminal.

    The block gets a function that reports how many of how many are done.
    """
    with Progress(console=stderr, transient=True, disable=as_json or not stderr.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda number, total: bar.update(task, completed=number, total=total)
