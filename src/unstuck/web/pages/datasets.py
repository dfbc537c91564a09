"""The screens of datasets: the list of them, one dataset with its versions, and one version with
its sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from unstuck.tasks.errors import DatasetNotFound
from unstuck.tasks.protocol.replaced import partition_text
from unstuck.tasks.spec.outputs import REJECTED
from unstuck.tasks.warehouse.log_entry import DatasetState
from unstuck.tasks.warehouse.marker import DataFile
from unstuck.views.dataset_views import WarehouseSnapshot, bytes_of, columns_of
from unstuck.web.paging import part_of
from unstuck.web.rendering import page
from unstuck.web.warehouse_part import datasets_of, unreadable_as

MOST = 100  # datasets of one page
VERSIONS = 20
SOURCES = 500  # files of one version that are listed
PARTITIONS = 50


@dataclass(frozen=True, slots=True)
class DatasetRow:
    """One line of the list: a dataset, and its rejected rows, if it has any."""

    name: str
    state: DatasetState
    rejected: DatasetState | None

    @property
    def bytes(self) -> int:
        return bytes_of(self.state)


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """The rows and files of one partition."""

    name: str
    rows: int
    files: int


def datasets(request: Request) -> Response:
    place = datasets_of(request)
    published, trouble = unreadable_as(WarehouseSnapshot("", 0, {}), place.published)
    part = part_of(rows_of(published.datasets), request.query_params, MOST, lambda row: row.name)
    return page(
        request,
        "datasets.html",
        etag_data=(published.id, published.head, trouble),
        status=trouble.status if trouble else 200,
        part=part,
        head=published.head,
        place=place.uri,
        trouble=trouble,
    )


def rows_of(datasets: Mapping[str, DatasetState]) -> list[DatasetRow]:
    """The lines of the list, by name; rejected rows stand in the line of their dataset, if that is
    published.
    """
    return [
        DatasetRow(name, state, datasets.get(name + REJECTED))
        for name, state in sorted(datasets.items())
        if not (name.endswith(REJECTED) and name.removesuffix(REJECTED) in datasets)
    ]


def dataset(request: Request) -> Response:
    name, place = request.path_params["name"], datasets_of(request)
    published, trouble = unreadable_as(WarehouseSnapshot("", 0, {}), place.published)
    if trouble:
        return page(request, "dataset_away.html", status=trouble.status, name=name, trouble=trouble)
    if name not in published.datasets:
        raise DatasetNotFound(
            f"nothing is published under the name {name!r} in the warehouse {place.uri}"
        )
    state = published.datasets[name]
    newest = min(_number(request, "from") or state.changed, state.changed)
    versions, trouble = unreadable_as(None, partial(place.versions, name, newest, VERSIONS))
    return page(
        request,
        "dataset.html",
        etag_data=(published.id, published.head, newest, trouble),
        name=name,
        state=state,
        bytes=bytes_of(state),
        columns=columns_of(state),
        partitions=partitions_of(state.files),
        most_partitions=PARTITIONS,
        rejected=(name + REJECTED, published.datasets.get(name + REJECTED)),
        rejected_of=name.removesuffix(REJECTED) if name.endswith(REJECTED) else "",
        versions=versions,
        newest=newest == state.changed,
        trouble=trouble,
    )


def partitions_of(files: Sequence[DataFile]) -> list[PartitionRow]:
    """The partitions of a dataset, the last of them first; empty where nothing parts its files."""
    rows: dict[str, list[int]] = {}
    for file in files:
        if file.partition:
            totals = rows.setdefault(partition_text(file.partition), [0, 0])
            totals[0] += file.rows
            totals[1] += 1
    return [PartitionRow(name, *rows[name]) for name in sorted(rows, reverse=True)]


def version(request: Request) -> Response:
    """One version: what made it, and the files or messages that it was loaded from."""
    name, place = request.path_params["name"], datasets_of(request)
    number = _number(request, "version")
    answer, trouble = unreadable_as(None, partial(place.version, name, number))
    if answer is None or trouble:
        return page(
            request,
            "dataset_away.html",
            status=trouble.status if trouble else 503,
            name=name,
            trouble=trouble,
        )
    published_version, sources = answer
    return page(
        request,
        "dataset_version.html",
        etag_data=(name, number),
        name=name,
        version=published_version,
        sources=sources[:SOURCES],
        more=max(0, len(sources) - SOURCES),
        partitions=partitions_of(published_version.change.added),
        most_partitions=PARTITIONS,
    )


def _number(request: Request, name: str) -> int:
    """A number of the query; 0 for what is none."""
    text = request.query_params.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else 0


def _dataset(request: Request) -> Response:
    return version(request) if "version" in request.query_params else dataset(request)


# A name may hold a slash.
ROUTES = [Route("/datasets", datasets), Route("/datasets/{name:path}", _dataset)]
