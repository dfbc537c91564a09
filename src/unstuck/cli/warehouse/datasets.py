"""``unstuck datasets`` shows what is published.

It reads the warehouse log alone, and needs no Redis.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
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
from unstuck.documents.dataset_documents import (
    DatasetDocument,
    DatasetVersionDocument,
    SourceDocument,
    plain_value,
)
from unstuck.tasks.settings import Settings
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import DatasetState
from unstuck.tasks.warehouse.published import head_rows
from unstuck.tasks.warehouse.view_file import view_path, views_sql, write_views
from unstuck.views.dataset_views import bytes_of, check_there, columns_of, versions_of, warehouse_at
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
    """Show what is published: datasets, their version, rows, files, bytes, and the job that made
    them.
    """
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
    _show_states(place, settings.warehouse, states, files, as_json, columns=name is not None)


def _show_states(
    place: Warehouse,
    uri: str,
    states: Mapping[str, DatasetState],
    files: bool,
    as_json: bool,
    *,
    columns: bool,
) -> None:
    if as_json:
        emit(
            [
                DatasetDocument.of_state(place, uri, dataset, state, files)
                for dataset, state in sorted(states.items())
            ]
        )
        return
    if files and not stdout.is_terminal:  # for `xargs`, and for a list in a file
        for _, state in sorted(states.items()):
            _print_files(place, state)
        return
    if not states:
        stderr.print(f"Nothing is published in {uri} (UNSTUCK_WAREHOUSE names another warehouse).")
        return
    _print_listing(states)
    for state in states.values():
        if columns:
            _print_columns(state)
        if files:
            stdout.print()
            _print_files(place, state)


def _print_files(place: Warehouse, state: DatasetState) -> None:
    for file in state.files:
        stdout.print(place.storage.uri(file.path), soft_wrap=True)


def _print_listing(states: Mapping[str, DatasetState]) -> None:
    headings = ("DATASET", "OWNER", "VERSION", "ROWS", "FILES", "SIZE", "PUBLISHED", "JOB")
    listing = table(*headings, right=("VERSION", "ROWS", "FILES"))
    for dataset, state in sorted(states.items()):
        size, job = filesize.decimal(bytes_of(state)), f"{state.job} ({state.job_name})"
        rows, count = f"{state.rows:,}", str(len(state.files))
        owner = "" if state.owner is None else state.owner.job_name
        listing.add_row(dataset, owner, str(state.changed), rows, count, size, clock(state.at), job)
    stdout.print(listing)
    for dataset, state in sorted(states.items()):
        if state.table is not None:
            stdout.print(
                f"{dataset} is the Delta table {state.table}: its rows are counted there.",
                soft_wrap=True,
            )
        if state.many_small:
            stdout.print(small_files_hint(dataset, state.many_small), soft_wrap=True)


def _print_columns(state: DatasetState) -> None:
    if state.owner is not None and state.owner.shared_with:
        shares = listed(state.owner.shared_with)
        stdout.print(f"Job {state.owner.job_name} shares it with {shares}.")
    stdout.print()
    columns = table("COLUMN", "TYPE")
    for column in columns_of(state):
        columns.add_row(column["name"], column["type"])
    stdout.print(columns)


def _show_rows(
    place: Warehouse, name: str | None, version: int | None, count: int, as_json: bool
) -> None:
    """Raises: BadRequest; DatasetNotFound."""
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
        *(column["name"] for column in columns),
        right=[c["name"] for c in columns if c["type"] in _NUMBERS],
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
    """Raises: BadRequest; DatasetNotFound; OSError."""
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
    """Raises: BadRequest; DatasetNotFound."""
    if name is None or version is not None:
        raise BadRequest("--history wants the NAME of one dataset, and no --version")
    newest = place.dataset(
        name
    ).changed  # a name that is misspelled is refused, not answered with an empty list
    changes = [
        (dataset_version.entry, dataset_version.change)
        for dataset_version in versions_of(place, name, newest, limit).versions
    ]
    if as_json:
        emit([DatasetVersionDocument.of_entry(name, entry) for entry, _ in changes])
        return
    first = ("VERSION", "MODE", "ROWS", "FILES", "REPLACED", "PUBLISHED", "JOB")
    right = ("VERSION", "ROWS", "FILES", "REPLACED")
    listing = table(*first, "PARAMETERS", "READ", "CODE", "MADE ON", right=right)
    for entry, change in changes:
        listing.add_row(
            str(entry.n),
            change.mode,
            f"{change.rows:,}",
            str(len(change.added)),
            str(len(change.removed)),
            clock(entry.at),
            f"{entry.job} ({entry.job_name})",
            " ".join(f"{key}={value}" for key, value in entry.params.items()),
            " ".join(f"{read}@{n}" for read, versions in change.inputs.items() for n in versions),
            " ".join(dict.fromkeys(filter(None, map(_short_code, change.steps.values())))),
            "; ".join(entry.made_on.get(name, ())),
        )
    stdout.print(listing)
    for entry, change in changes:
        if change.checkpoint is not None:
            what = change.checkpoint.told or f"its stream is {change.checkpoint.stream}"
            stdout.print(f"version {entry.n}: {what}", soft_wrap=True)
        if change.replaced is not None:
            stdout.print(f"version {entry.n} replaced {change.replaced.text()}", soft_wrap=True)
        if change.taken_from:
            stdout.print(
                f"version {entry.n} took {name} over from job {change.taken_from}", soft_wrap=True
            )


def _show_sources(
    place: Warehouse, name: str | None, version: int | None, limit: int, as_json: bool
) -> None:
    """Raises: BadRequest; DatasetNotFound."""
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
        emit([SourceDocument.model_validate(source_file) for source_file in source_files])
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
    """The short form of the code of a group, with the first characters of each digest."""
    return re.sub(r"(:[0-9a-f]{7})[0-9a-f]{9}\b", r"\1", code.removeprefix("version "))
