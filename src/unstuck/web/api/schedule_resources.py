"""The routes of schedules: ``schedule list``, ``show``, ``why``, ``ticks`` and set."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from unstuck.coordinator.command_table import Answer
from unstuck.coordinator.schedules.explain import ScheduleExplanation
from unstuck.coordinator.schedules.schedule_result import ScheduleResult
from unstuck.coordinator.spec.model import JobSpec
from unstuck.read_model.schedule import ScheduleInfo, TickInfo, json_of_schedules
from unstuck.web.api.api_request import (
    SPEC_BODY,
    TAKE_OVER,
    ApiRequest,
    ByField,
    CurrentRequest,
    ReasonField,
    StorableText,
    WrittenSpec,
    refused,
    with_places,
)

schedules = APIRouter(tags=["schedules"])
JOBS_SHOWN = 10  # of the last runs of one schedule


@schedules.get("/schedules", response_model=list[ScheduleInfo])
def list_schedules(api: CurrentRequest) -> Response:
    """List the schedules, as `unstuck schedule list --json`."""
    return api.json_response(json_of_schedules(api.client.schedules.all()))


@schedules.post("/schedules", response_model=ScheduleResult, openapi_extra=SPEC_BODY)
def set_schedule(
    api: CurrentRequest,
    spec: WrittenSpec,
    take_over: Annotated[bool, Query(description=TAKE_OVER)] = False,
    reason: Annotated[ReasonField, Query()] = "",
    by: Annotated[ByField, Query()] = None,
) -> Response:
    """Create or change a schedule from a job spec, as `unstuck schedule set --json`."""

    def act() -> ScheduleResult:
        job = JobSpec.from_written(spec, None, scheduled=True)
        return api.client.schedules.set(job, take_over=take_over, reason=reason, by=api.by(by))

    return _answer(api, with_places(spec, act))


@schedules.get("/schedules/{name}", response_model=ScheduleInfo)
def show(
    api: CurrentRequest,
    name: str,
    count: Annotated[
        int, Query(alias="next", ge=0, le=1000, description="So many of its next ticks.")
    ] = 3,
    most: Annotated[
        int, Query(alias="events", ge=1, le=2000, description="So many of its last events.")
    ] = 10,
) -> Response:
    """Return one schedule, its next ticks, last runs and events, as `unstuck schedule show NAME
    --json`.
    """
    return api.json_response(
        api.client.schedules.show(name, ticks=count, jobs=JOBS_SHOWN, events=most)
    )


@schedules.get("/schedules/{name}/why", response_model=ScheduleExplanation)
def why(api: CurrentRequest, name: str) -> Response:
    """Explain the state of a schedule and what helps, as `unstuck schedule why NAME --json`."""
    return api.json_response(api.client.schedules.why(name))


@schedules.get("/schedules/{name}/spec", response_model=dict[str, Any])
def spec_of(api: CurrentRequest, name: str) -> Response:
    """Return the job spec of a schedule in JSON, as `unstuck schedule export NAME`."""
    return api.json_response(api.client.schedules.written(name))


@schedules.get("/schedules/{name}/ticks", response_model=list[TickInfo])
def ticks(
    api: CurrentRequest,
    name: str,
    first: Annotated[StorableText, Query(alias="from", max_length=50)],
    last: Annotated[StorableText | None, Query(alias="to", max_length=50)] = None,
    backwards: bool = False,
) -> Response:
    """List the ticks that a backfill would run, as `unstuck schedule ticks NAME --json`.

    Changes nothing.
    """
    planned_ticks = api.client.schedules.backfill_ticks(name, first, last, backwards=backwards)
    return api.json_response(planned_ticks)


def _answer(api: ApiRequest, done: ScheduleResult) -> Response:
    return refused(done.text) if done.answer is Answer.REFUSED else api.json_response(done)
