"""The routes of the fleet, its pools, notices, dead letters and doctor, and of datasets."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from unstuck.coordinator.model.fleet import FleetInfo, PoolInfo
from unstuck.coordinator.publishing.streams.sources_read import SourceRead, sources_of
from unstuck.coordinator.store.reports import DeadLetter
from unstuck.doctor.examine import Doctor
from unstuck.documents.envelopes import Examination, NoticeList
from unstuck.read_model.dataset import DatasetInfo, DatasetVersion
from unstuck.tasks.redis_url import without_password
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.views.dataset_views import shown_dataset, versions_of
from unstuck.web.api.api_request import CurrentRequest

fleet = APIRouter(tags=["fleet"])
datasets = APIRouter(tags=["datasets"])

EXAMINED_FOR = 5.0  # seconds for which findings are cached
Limit = Annotated[int, Query(ge=1, le=1000)]
Version = Annotated[
    int | None, Query(ge=1, lt=2**53, description="As of this version of the warehouse.")
]


@fleet.get("/fleet", response_model=FleetInfo)
def show_fleet(api: CurrentRequest) -> Response:
    """List the processes of the fleet, and the queues between them, as `unstuck fleet --json`."""
    return api.json_response(api.client.fleet())


@fleet.get("/doctor", response_model=Examination)
def examine(api: CurrentRequest) -> Response:
    """Examine the installation from the host of the page, as `unstuck doctor --json`."""
    doctor: Doctor = api.request.app.state.doctor
    place = without_password(api.client.settings.redis_url)
    return api.json_response(Examination.of(place, doctor.examine(EXAMINED_FOR)))


@fleet.get("/pools", response_model=list[PoolInfo])
def pools(api: CurrentRequest) -> Response:
    """List the pools, as `unstuck pool list --json`."""
    return api.json_response(api.client.pools.all())


@fleet.get("/notices", response_model=NoticeList)
def notices(api: CurrentRequest, limit: Limit = 100) -> Response:
    """List the waiting and the sent notices, as `unstuck notify list --json`."""
    outbox = api.client.notices
    return api.json_response(NoticeList(outbox.waiting(limit), outbox.sent(limit)))


@fleet.get("/dead", response_model=list[DeadLetter])
def dead_letters(api: CurrentRequest, limit: Limit = 100) -> Response:
    """List dead letters, the newest first, as `unstuck dead list --json`."""
    return api.json_response(api.client.dead_letters.newest(limit))


@fleet.get("/dead/{letter}", response_model=DeadLetter)
def dead_letter(api: CurrentRequest, letter: str) -> Response:
    """Return one dead letter with all its fields, as `unstuck dead show ID --json`."""
    return api.json_response(api.client.dead_letters.get(letter))


@datasets.get("/datasets", response_model=list[DatasetInfo])
def list_datasets(api: CurrentRequest, version: Version = None, files: bool = False) -> Response:
    """List all published datasets, as `unstuck datasets --json`."""
    uri = api.client.settings.warehouse

    def read(place: Warehouse) -> list[DatasetInfo]:
        return [
            shown_dataset(place, uri, name, state, files)
            for name, state in sorted(place.state(version).items())
        ]

    return api.json_response(
        api.in_warehouse(uri, "nothing can be shown of what is published", read)
    )


@datasets.get("/datasets/{name}", response_model=DatasetInfo)
def dataset(
    api: CurrentRequest, name: str, version: Version = None, files: bool = False
) -> Response:
    """Return one dataset, as the element of `unstuck datasets NAME --json`."""
    uri = api.client.settings.warehouse

    def read(place: Warehouse) -> DatasetInfo:
        return shown_dataset(place, uri, name, place.dataset(name, version), files)

    return api.json_response(api.in_warehouse(uri, f"dataset {name} cannot be shown", read))


@datasets.get("/datasets/{name}/history", response_model=list[DatasetVersion])
def history(api: CurrentRequest, name: str, limit: Limit = 20) -> Response:
    """List the versions of a dataset, the newest first, as `unstuck datasets NAME --history
    --json`.
    """

    def read(place: Warehouse) -> tuple[DatasetVersion, ...]:
        return versions_of(place, name, place.dataset(name).changed, limit).versions

    return api.json_response(
        api.in_warehouse(api.client.settings.warehouse, f"versions of {name} cannot be shown", read)
    )


@datasets.get("/datasets/{name}/sources", response_model=list[SourceRead])
def sources(api: CurrentRequest, name: str, version: Version = None, limit: Limit = 20) -> Response:
    """List the files that the stream of a dataset loaded, as `unstuck datasets NAME --sources
    --json`.
    """

    def read(place: Warehouse) -> list[SourceRead]:
        changed = place.dataset(name, version).changed
        entries = (
            place.history(name, limit, changed)
            if version is None
            else [place.existing_entry(version)]
        )
        return [source for entry in entries for source in sources_of(place, name, entry)]

    return api.json_response(
        api.in_warehouse(api.client.settings.warehouse, f"sources of {name} cannot be shown", read)
    )
