"""The routes of jobs: ``list``, ``show``, ``why``, ``events``, ``logs``, submit and validate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Query, Response
from pydantic import BeforeValidator, WithJsonSchema

from unstuck.client.now import Snapshot
from unstuck.client.waits import waits_of
from unstuck.coordinator.explain.explanation import Explanation
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.problems.problem import Problem
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.problems import SpecError
from unstuck.documents.envelopes import NowAnswer, SubmitAnswer
from unstuck.graph.svg import on_paper
from unstuck.read_model.event import EventInfo
from unstuck.read_model.job import JobInfo, json_of_list
from unstuck.read_model.log_line import LogLine
from unstuck.tasks.duration import since_time
from unstuck.validation.validate import Validation, validate_spec
from unstuck.views.jobs.job_logs import MOST_READ, find_logs, tail_of
from unstuck.views.jobs.job_pictures import graph_of_job
from unstuck.web.api.api_request import (
    SPEC_BODY,
    TAKE_OVER,
    ApiRequest,
    ByField,
    CurrentRequest,
    JobId,
    SentSpec,
    StorableText,
    WrittenSpec,
    params_of,
    with_places,
)

jobs = APIRouter(tags=["jobs"])

MOST_LOGS = 200  # attempts whose logs one response has: the newest
MOST_IN_ALL = 16 * 1024 * 1024  # bytes of logs that are read for one response
# With Spark, a JVM parses. Requests that wait for it block no threads of others.
_ONE_PARSER = CapacityLimiter(1)

Since = Annotated[
    float | None,
    BeforeValidator(since_time),
    WithJsonSchema({"type": "string", "examples": ["2h", "2026-01-02"]}),
]
Entry = Annotated[
    str,
    Query(pattern=r"^(-|\d{1,15}-\d{1,15})$", description="The `entry` of the last event seen."),
]


@jobs.get("/jobs", response_model=list[JobInfo])
def list_jobs(
    api: CurrentRequest,
    status: Annotated[Sequence[Status], Query()] = (),
    name: Annotated[
        StorableText | None, Query(description="A glob that the name of the job must match.")
    ] = None,
    since: Annotated[
        Since, Query(description="Only jobs submitted since then, or within so long.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 50,
) -> Response:
    """List jobs, the newest first, with what each waits for, as `unstuck list --json`."""
    listed_jobs = api.client.jobs(status=status, name=name, since=since, limit=limit)
    waits = waits_of(api.client, listed_jobs)
    return api.json_response(
        json_of_list([replace(job, why=waits.get(job.id, "")) for job in listed_jobs])
    )


@jobs.get("/late-jobs", response_model=list[Problem])
def late_jobs(api: CurrentRequest) -> Response:
    """List jobs that no schedule submits and that are late, as `unstuck list --late --json`."""
    return api.json_response(api.client.late_jobs())


@jobs.get("/now", response_model=NowAnswer)
def now(api: CurrentRequest) -> Response:
    """Return problems, running jobs and recently ended jobs, as `unstuck now --json`."""
    snapshot, waits = Snapshot.of(api.client).explained(api.client)
    return api.json_response(NowAnswer.of(snapshot, waits))


@jobs.post("/jobs", response_model=SubmitAnswer, status_code=201, openapi_extra=SPEC_BODY)
def submit(
    api: CurrentRequest,
    spec: WrittenSpec,
    key: Annotated[
        str | None, Query(description="The same spec under the same key is the same job.")
    ] = None,
    param: Annotated[
        Sequence[StorableText], Query(description="NAME=VALUE, once for each parameter.")
    ] = (),
    retry: Annotated[
        bool, Query(description="If the last job of the key did not finish well, retry it.")
    ] = False,
    take_over: Annotated[bool, Query(description=TAKE_OVER)] = False,
    by: Annotated[ByField, Query()] = None,
) -> Response:
    """Submit a job, as `unstuck submit --json`. Answers 200 if a job with the key exists."""

    def act() -> Response:
        job = JobSpec.from_written(spec, params_of(param))
        how: dict[str, Any] = {"key": key, "retry": retry, "take_over": take_over}
        done = api.client.submit(job, **how, by=api.by(by)).submitted
        fresh = done.new or bool(done.retried)
        return api.json_response(SubmitAnswer.of(done, job.name), 201 if fresh else 200)

    return with_places(spec, act)


@jobs.post("/validate", response_model=Validation, openapi_extra=SPEC_BODY)
async def validate(
    api: CurrentRequest,
    sent: SentSpec,
    param: Annotated[
        Sequence[StorableText],
        Query(description="NAME=VALUE; with none, each parameter may lack one."),
    ] = (),
) -> Response:
    """Check a spec and its SQL, and store nothing, as `unstuck validate --json`.

    The code of steps is not imported.
    """
    values = params_of(param) if param else None

    def act() -> Validation:
        try:
            return validate_spec(sent.written(), values, api.client.settings)[1]
        except SpecError as error:
            return Validation.of_error(error)

    return api.json_response(await to_thread.run_sync(act, limiter=_ONE_PARSER))


@jobs.get("/jobs/{job}", response_model=JobInfo)
def show(api: CurrentRequest, job: JobId) -> Response:
    """Return one job with all its facts, as `unstuck show JOB --json`."""
    return api.json_response(api.client.show(job, why=True))


@jobs.get("/jobs/{job}/spec", response_model=dict[str, Any])
def spec_of(api: CurrentRequest, job: JobId) -> Response:
    """Return the stored spec of a job in JSON, as `unstuck show JOB --yaml`."""
    return api.json_response(api.client.written(job))


@jobs.get("/jobs/{job}/why", response_model=list[Explanation])
def why(api: CurrentRequest, job: JobId) -> Response:
    """Explain why a job and its unfinished groups wait, as `unstuck why JOB --json`."""
    return api.json_response(api.client.explain(job))


@jobs.get("/jobs/{job}/events", response_model=list[EventInfo])
def events(
    api: CurrentRequest,
    job: JobId,
    after: Entry = "-",
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> Response:
    """List the events of a job, the oldest first, as `unstuck events JOB --json`.

    The last `entry` is the next `after`.
    """
    api.client.job(job)  # raises if there is no such job
    entries = islice(api.client.events(job, after), limit)
    return api.json_response([EventInfo.of(event, entry) for entry, event in entries])


@jobs.get("/jobs/{job}/logs", response_model=list[LogLine])
def logs(
    api: CurrentRequest,
    job: JobId,
    tail: Annotated[
        int, Query(ge=1, le=10_000, description="The last lines of each attempt.")
    ] = 500,
    every: Annotated[
        bool, Query(alias="all", description="Every attempt, not the newest of each group.")
    ] = False,
) -> Response:
    """Return the last log lines of at most 200 attempts of a job, as `unstuck logs JOB --json`."""
    return _logs(api, job, None, tail, every)


@jobs.get("/jobs/{job}/logs/{group}", response_model=list[LogLine])
def logs_of_group(
    api: CurrentRequest,
    job: JobId,
    group: str,
    tail: Annotated[int, Query(ge=1, le=10_000)] = 500,
    every: Annotated[bool, Query(alias="all")] = False,
) -> Response:
    """Return the last log lines of a group, of a fork, or of one member: `by_month[3]`."""
    return _logs(api, job, group, tail, every)


def _logs(api: ApiRequest, job: str, group: str | None, tail: int, every: bool) -> Response:
    """Read the last lines of logs. Raises: NoSuchJob; NoSuchGroup; WarehouseSilent."""
    view = api.client.show(job)
    if group is not None:
        view.planned(group)

    def read(place: Any) -> list[LogLine]:
        files = place.storage
        log_files = find_logs(files, view, group, every)[-MOST_LOGS:]
        most = min(MOST_READ, MOST_IN_ALL // max(1, len(log_files)))
        return [
            LogLine(group=log.group, attempt=log.epoch, file=files.uri(log.path), line=line)
            for log in log_files
            for line in tail_of(files, log.path, most).lines[-tail:]
        ]

    return api.json_response(
        api.in_warehouse(view.warehouse, f"the logs of job {job} cannot be shown", read)
    )


@jobs.get(
    "/jobs/{job}/graph.svg",
    response_class=Response,
    responses={200: {"content": {"image/svg+xml": {}}}},
)
def graph(api: CurrentRequest, job: JobId) -> Response:
    """Draw the current graph of a job."""
    return api.text_response(on_paper(graph_of_job(api.client.show(job))), "image/svg+xml")
