"""``unstuck datasets`` shows published data. It reads only the warehouse log, and needs no Redis.

It reads the warehouse log alone, and needs no Redis.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich import filesize

from unstuck.cli.options import AsJson
from unstuck.cli.render.terminal import clock, emit, stderr, stdout, table
from unstuck.coordinator.errors import BadRequest
from unstuck.coordinator.publishing.streams.sources_read import sources_of
from unstuck.coordinator.spec.problems import listed
from unstuck.documents.json_text import plain_value
from unstuck.read_model.dataset import DatasetInfo, DatasetVersion, columns_of
from unstuck.tasks.settings import Settings
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.published import head_rows
from unstuck.tasks.warehouse.view_file import view_path, views_sql, write_views
from unstuck.views.dataset_views import check_there, shown_dataset, versions_of, warehouse_at
from unstuck.views.words import count_of, one_line


class ExportKind(StrEnum):
    DUCKDB = "duckdb"
    SPARK = "spark"


_NUMBERS = ("byte", "short", "integer", "long", "float", "double")


def small_files_hint(dataset: str, number: int) -> str:
    return (
        f"{dataset} has {number:,} small files, which slows its readers: unstuck compact {dataset}"
    )


def datasets(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Only this one, with its columns.")
    ] = None,
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="As of this version of the warehouse.")
    ] = None,
    files: Annotated[bool, typer.Option("--files", help="Name the Parquet files.")] = False,
    history: Annotated[
        bool, typer.Option("--history", help="List the versions of NAME, newest first.")
    ] = False,
    sources: Annotated[
        bool,
        typer.Option(
            "--sources",
            help="List the files of its stream from which each version of NAME was loaded.",
        ),
    ] = False,
    head: Annotated[
        int | None,
        typer.Option(
            "--head", min=1, max=10_000, metavar="N", help="Show the first N rows of NAME."
        ),
    ] = None,
    export_views: Annotated[
        ExportKind | None,
        typer.Option(
            "--export-views",
            help="Print SQL that makes a view of each dataset, for duckdb or spark.",
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="With --export-views: write the SQL there."),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help="With --export-views: keep the file in the warehouse; each publish rewrites it.",
        ),
    ] = False,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", min=1, help="With --history and --sources: at most so many versions."
        ),
    ] = 20,
    warehouse: Annotated[
        str | None,
        typer.Option(
            "--warehouse", metavar="URI", help="Another one than UNSTUCK_WAREHOUSE (./warehouse)."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the published datasets: version, rows, files, bytes, and the job that made them."""
    settings = Settings() if warehouse is None else Settings(warehouse=warehouse)
    place = warehouse_at(settings.warehouse)
    check_there(place, settings.warehouse)
    if history:
        _show_history(place, name, version, limit, as_json)
        return
    if sources:
        _show_sources(place, name, version, limit, as_json)
        return
    if head is not None:
        _show_rows(place, name, version, head, as_json)
        return
    if export_views is not None or to is not None or keep:
        _export_views(place, name, version, export_views, to, keep)
        return
    states = place.state(version) if name is None else {name: place.dataset(name, version)}
    infos = [
        shown_dataset(place, settings.warehouse, dataset, state, files)
        for dataset, state in sorted(states.items())
    ]
    if as_json:
        emit(infos)
    elif not infos and (stdout.is_terminal or not files):
        stderr.print(
            f"Nothing is published in {settings.warehouse} (UNSTUCK_WAREHOUSE names another "
            "warehouse)."
        )
    else:
        _print_datasets(infos, files, columns=name is not None)


def _print_datasets(datasets: Sequence[DatasetInfo], files: bool, *, columns: bool) -> None:
    if files and not stdout.is_terminal:  # for `xargs`, and for a list in a file
        _print_files(datasets)
        return
    _print_listing(datasets)
    if columns:
        _print_columns(datasets[0])
    if files:
        stdout.print()
        _print_files(datasets)


def _print_files(datasets: Sequence[DatasetInfo]) -> None:
    for dataset in datasets:
        for path in dataset.paths or ():
            stdout.print(path, soft_wrap=True)


def _print_listing(datasets: Sequence[DatasetInfo]) -> None:
    headings = ("DATASET", "OWNER", "VERSION", "ROWS", "FILES", "SIZE", "PUBLISHED", "JOB")
    listing = table(*headings, right=("VERSION", "ROWS", "FILES"))
    for dataset in datasets:
        listing.add_row(
            dataset.dataset,
            dataset.owner or "",
            str(dataset.version),
            f"{dataset.rows:,}",
            str(dataset.files),
            filesize.decimal(dataset.bytes),
            clock(dataset.published_at),
            f"{dataset.job} ({dataset.job_name})",
        )
    stdout.print(listing)
    for dataset in datasets:
        if dataset.table is not None:
            stdout.print(
                f"{dataset.dataset} is the {dataset.table_title}: its rows are counted there.",
                soft_wrap=True,
            )
        if dataset.many_small:
            hint = small_files_hint(dataset.dataset, dataset.many_small)
            stdout.print(hint, soft_wrap=True)


def _print_columns(dataset: DatasetInfo) -> None:
    if dataset.shared_with:
        stdout.print(f"Job {dataset.owner} shares it with {listed(list(dataset.shared_with))}.")
    stdout.print()
    columns = table("COLUMN", "TYPE")
    for column in dataset.columns:
        columns.add_row(column.name, column.type)
    stdout.print(columns)


def _show_rows(
    place: Warehouse, name: str | None, version: int | None, count: int, as_json: bool
) -> None:
    """Print rows. Raises: BadRequest; DatasetNotFound."""
    if name is None:
        raise BadRequest("--head wants the NAME of one dataset")
    state = place.files_of(name, version)
    try:
        rows = head_rows(place, state, count)
    except ModuleNotFoundError as error:
        raise BadRequest(
            f"--head reads Parquet, and {error.name} is not installed here: pip install pyarrow"
        ) from None
    if as_json:
        emit([{column: plain_value(value) for column, value in row.items()} for row in rows])
        return
    columns = columns_of(state)
    shown = table(
        *(column.name for column in columns),
        right=[column.name for column in columns if column.type in _NUMBERS],
    )
    for row in rows:
        shown.add_row(
            *(
                "null" if value is None else one_line(str(plain_value(value)))
                for value in row.values()
            )
        )
    stdout.print(shown)
    stderr.print(
        f"{len(rows):,} of {count_of(state.rows, 'row')} of {name}, version {state.changed}."
    )


def _export_views(
    place: Warehouse,
    name: str | None,
    version: int | None,
    kind: ExportKind | None,
    to: Path | None,
    keep: bool,
) -> None:
    """Print or write views. Raises: BadRequest; DatasetNotFound; OSError."""
    if kind is None:
        raise BadRequest("--to and --keep belong to --export-views duckdb or --export-views spark")
    if keep:
        if name or version is not None or to:
            raise BadRequest(
                "--keep writes the newest version of all datasets: leave out NAME, --version and "
                "--to"
            )
        at = write_views(place, kind.value)
        path = view_path(kind.value)
        stdout.print(
            f"{place.storage.uri(path)} shows version {at}. Each publish rewrites it; remove it to "
            "end this."
        )
        return
    at = place.head() if version is None else version
    state = place.state(at) if name is None else {name: place.dataset(name, at)}
    text = views_sql(kind.value, place.storage, state, at)
    if to is None:
        stdout.print(text, soft_wrap=True, markup=False, highlight=False, end="")
        return
    draft = to.with_name(f".{to.name}.{os.getpid()}.tmp")
    draft.write_text(text)
    draft.replace(to)
    stderr.print(
        f"{to} shows version {at}; no publish rewrites it (--keep has one in the warehouse that "
        "each does)."
    )


def _show_history(
    place: Warehouse, name: str | None, version: int | None, limit: int, as_json: bool
) -> None:
    """Print the versions. Raises: BadRequest; DatasetNotFound."""
    if name is None or version is not None:
        raise BadRequest("--history wants the NAME of one dataset, and no --version")
    newest = place.dataset(
        name
    ).changed  # a name that is misspelled is refused, not answered with an empty list
    versions = versions_of(place, name, newest, limit).versions
    if as_json:
        emit(versions)
        return
    first = ("VERSION", "MODE", "ROWS", "FILES", "REPLACED", "PUBLISHED", "JOB")
    right = ("VERSION", "ROWS", "FILES", "REPLACED")
    listing = table(*first, "PARAMETERS", "READ", "CODE", "MADE ON", right=right)
    for each in versions:
        listing.add_row(
            str(each.version),
            each.mode,
            f"{each.rows:,}",
            str(each.files),
            str(each.replaced_files),
            clock(each.published_at),
            f"{each.job} ({each.job_name})",
            " ".join(f"{key}={value}" for key, value in each.params.items()),
            " ".join(f"{read}@{n}" for read, n in each.read),
            " ".join(dict.fromkeys(filter(None, map(_short_code, each.code.values())))),
            "; ".join(each.made_on),
        )
    stdout.print(listing)
    for each in versions:
        for line in _remarks_on(name, each):
            stdout.print(f"version {each.version}{line}", soft_wrap=True)


def _remarks_on(name: str, version: DatasetVersion) -> Iterator[str]:
    """Yield remarks on a version of the dataset ``name``."""
    if version.stream is not None:
        yield f": {version.stream.summary or f'its stream is {version.stream.stream}'}"
    if version.replaced_partitions is not None:
        yield f" replaced {version.replaced_partitions.text()}"
    if version.taken_from:
        yield f" took {name} over from job {version.taken_from}"


def _show_sources(
    place: Warehouse, name: str | None, version: int | None, limit: int, as_json: bool
) -> None:
    """Print the sources. Raises: BadRequest; DatasetNotFound."""
    if name is None:
        raise BadRequest("--sources wants the NAME of one dataset")
    changed = place.dataset(name, version).changed  # as for --history
    entries = (
        place.history(name, limit, changed) if version is None else [place.existing_entry(version)]
    )
    source_files = [
        source_file for entry in entries for source_file in sources_of(place, name, entry)
    ]
    if as_json:
        emit(source_files)
        return
    listing = table(
        "VERSION", "SOURCE", "ROWS", "SIZE", "PUT ASIDE", right=("VERSION", "ROWS", "SIZE")
    )
    for source_file in source_files:
        size = "" if source_file.bytes is None else filesize.decimal(source_file.bytes)
        listing.add_row(
            str(source_file.version),
            source_file.source,
            "" if source_file.rows is None else f"{source_file.rows:,}",
            size,
            source_file.put_aside,
        )
    stdout.print(listing)


def _short_code(code: str) -> str:
    """Return the short form of the code of a group: the first characters of each digest."""
    return re.sub(r"(:[0-9a-f]{7})[0-9a-f]{9}\b", r"\1", code.removeprefix("version "))
