"""The screens of datasets: the list, one dataset with its versions, and one version."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from unstuck.read_model.dataset import DatasetInfo
from unstuck.tasks.errors import DatasetNotFound
from unstuck.tasks.protocol.replaced import partition_text
from unstuck.tasks.spec.outputs import REJECTED
from unstuck.tasks.warehouse.log_entry import DatasetState
from unstuck.tasks.warehouse.marker import DataFile
from unstuck.views.dataset_views import WarehouseSnapshot
from unstuck.web.paging import part_of
from unstuck.web.rendering import page
from unstuck.web.warehouse_part import datasets_of, unreadable_as

MOST = 100  # datasets of one page
VERSIONS = 20
SOURCES = 500  # files of one version that are listed
PARTITIONS = 50


@dataclass(frozen=True, slots=True)
class DatasetRow:
    """One line of the list: a dataset, and its rejected rows if it has rules."""

    dataset: DatasetInfo
    rejected: DatasetState | None


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """The rows and files of one partition."""

    name: str
    rows: int
    files: int


def datasets(request: Request) -> Response:
    place = datasets_of(request)
    published, trouble = unreadable_as(WarehouseSnapshot("", 0, {}), place.published)
    names = names_of(published.datasets)
    part = part_of(names, request.query_params, MOST, lambda name: name)
    return page(
        request,
        "datasets.html",
        etag_data=(published.id, published.head, trouble),
        status=trouble.status if trouble else 200,
        part=part.showing(rows_of(part.items, published.datasets, place.uri)),
        head=published.head,
        place=place.uri,
        trouble=trouble,
    )


def names_of(datasets: Collection[str]) -> list[str]:
    """Return the names of the list, sorted. Rejected rows are part of the line of their dataset."""
    return [
        name
        for name in sorted(datasets)
        if not (name.endswith(REJECTED) and name.removesuffix(REJECTED) in datasets)
    ]


def rows_of(
    names: Sequence[str], datasets: Mapping[str, DatasetState], warehouse: str
) -> list[DatasetRow]:
    """Return the lines of these datasets."""
    return [
        DatasetRow(DatasetInfo.of(name, datasets[name], warehouse), datasets.get(name + REJECTED))
        for name in names
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
        dataset=DatasetInfo.of(name, state, place.uri),
        partitions=partitions_of(state.files),
        most_partitions=PARTITIONS,
        rejected=(name + REJECTED, published.datasets.get(name + REJECTED)),
        rejected_of=name.removesuffix(REJECTED) if name.endswith(REJECTED) else "",
        versions=versions,
        newest=newest == state.changed,
        trouble=trouble,
    )


def partitions_of(files: Sequence[DataFile]) -> list[PartitionRow]:
    """Return the partitions of a dataset, the last one first; empty if it has none."""
    rows: dict[str, list[int]] = {}
    for file in files:
        if file.partition:
            totals = rows.setdefault(partition_text(file.partition), [0, 0])
            totals[0] += file.rows
            totals[1] += 1
    return [PartitionRow(name, *rows[name]) for name in sorted(rows, reverse=True)]


def version(request: Request) -> Response:
    """Show one version: the job that made it, and the files or messages that it contains."""
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
        partitions=partitions_of(published_version.added),
        most_partitions=PARTITIONS,
    )


def _number(request: Request, name: str) -> int:
    """Return a number of the query; 0 if it is not a number."""
    text = request.query_params.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else 0


def _dataset(request: Request) -> Response:
    return version(request) if "version" in request.query_params else dataset(request)


# A name may hold a slash.
ROUTES = [Route("/datasets", datasets), Route("/datasets/{name:path}", _dataset)]
