"""The routes of schedules: what ``schedule list``, ``show`` and ``why`` answer, and set."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from unstuck.coordinator.command_table import Answer
from unstuck.coordinator.schedules.schedule_facts import ScheduleResult
from unstuck.coordinator.spec.model import JobSpec
from unstuck.documents.schedule_documents import (
    ScheduleAnswerDocument,
    ScheduleDocument,
    ScheduleExplanationDocument,
    TickDocument,
    WholeScheduleDocument,
)
from unstuck.web.api.asked import (
    SPEC_BODY,
    TAKE_OVER,
    Ask,
    Asked,
    By,
    Reason,
    Spec,
    Text,
    refused,
    with_places,
)

schedules = APIRouter(tags=["schedules"])


@schedules.get("/schedules", response_model=list[ScheduleDocument])
def list_schedules(ask: Ask) -> Response:
    """The schedules: as `unstuck schedule list --json`."""
    return ask.answer([ScheduleDocument.of_view(view) for view in ask.client.schedules.all()])


@schedules.post("/schedules", response_model=ScheduleAnswerDocument, openapi_extra=SPEC_BODY)
def set_schedule(
    ask: Ask,
    spec: Spec,
    take_over: Annotated[bool, Query(description=TAKE_OVER)] = False,
    reason: Annotated[Reason, Query()] = "",
    by: Annotated[By, Query()] = None,
) -> Response:
    """Make a schedule of a job spec, or change the one that there is: as `unstuck schedule set
    --json`.
    """

    def act() -> ScheduleResult:
        job = JobSpec.from_written(spec, None, scheduled=True)
        return ask.client.schedules.set(job, take_over=take_over, reason=reason, by=ask.by(by))

    return _answer(ask, with_places(spec, act))


@schedules.get("/schedules/{name}", response_model=WholeScheduleDocument)
def show(
    ask: Ask,
    name: str,
    count: Annotated[
        int, Query(alias="next", ge=0, le=1000, description="So many of its next ticks.")
    ] = 3,
    most: Annotated[
        int, Query(alias="events", ge=1, le=2000, description="So many of its last events.")
    ] = 10,
) -> Response:
    """One schedule, its next ticks, its last runs and events: as `unstuck schedule show NAME
    --json`.
    """
    client = ask.client.schedules
    view = client.show(name)
    return ask.answer(
        WholeScheduleDocument.of_all(view, count, client.runs(name, 10), client.events(name, most))
    )


@schedules.get("/schedules/{name}/why", response_model=ScheduleExplanationDocument)
def why(ask: Ask, name: str) -> Response:
    """The explanation of where a schedule stands, and of what would help: as `unstuck schedule why
    NAME --json`.
    """
    return ask.answer(ScheduleExplanationDocument.of_explanation(ask.client.schedules.why(name)))


@schedules.get("/schedules/{name}/spec", response_model=dict[str, Any])
def spec_of(ask: Ask, name: str) -> Response:
    """The job spec that it repeats: as `unstuck schedule export NAME`, in JSON."""
    return ask.answer(ask.client.schedules.show(name).spec())


@schedules.get("/schedules/{name}/ticks", response_model=list[TickDocument])
def ticks(
    ask: Ask,
    name: str,
    first: Annotated[Text, Query(alias="from", max_length=50)],
    last: Annotated[Text | None, Query(alias="to", max_length=50)] = None,
    backwards: bool = False,
) -> Response:
    """The ticks that a backfill would run: as `unstuck schedule ticks NAME --json`.

    Changes nothing.
    """
    planned_ticks = ask.client.schedules.backfill_ticks(name, first, last, backwards=backwards)
    return ask.answer([TickDocument.of_tick(tick) for tick in planned_ticks])


def _answer(ask: Asked, done: ScheduleResult) -> Response:
    return (
        refused(done.text)
        if done.answer is Answer.REFUSED
        else ask.answer(ScheduleAnswerDocument.of_result(done))
    )
