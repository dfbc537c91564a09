"""The routes of the commands, generated from their table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from unstuck.coordinator.command_table import COMMANDS, Answer, Argument, Command, TargetKind
from unstuck.coordinator.spec.model import Spec
from unstuck.documents.command_answers import ANSWERS, CommandAnswer, give
from unstuck.web.api.api_request import (
    ApiRequest,
    ByField,
    CurrentRequest,
    JobId,
    ReasonField,
    refused,
)

PATHS: dict[TargetKind, tuple[str, str]] = {
    TargetKind.JOB: ("jobs", "/jobs/{job}"),
    TargetKind.GROUP: ("jobs", "/jobs/{job}"),
    TargetKind.SCHEDULE: ("schedules", "/schedules/{name}"),
    TargetKind.BACKFILL: ("schedules", "/schedules/{name}"),
    TargetKind.DATASET: ("datasets", "/datasets/{name}"),
    TargetKind.STREAM: ("datasets", "/streams/{name}"),
    TargetKind.POOL: ("fleet", "/pools/{pool}"),
    TargetKind.DEAD_LETTER: ("fleet", "/dead/{letter}"),
    TargetKind.PROBLEM: ("fleet", "/problems/{problem:path}"),
}
# What the API reads in another way than the command line.
_KINDS: dict[Any, Any] = {
    "reason": ReasonField,
    "by": ByField,
    # Never a path: it would be one of this host.
    Spec | None: dict[str, Any] | None,
}


class _Body(BaseModel):
    """The arguments of a command."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _is_text(cls, sent: Any) -> Any:
        """Check that a text can be stored. Raises: ValueError: it has a lone surrogate."""
        if isinstance(sent, dict):
            json.dumps(sent, ensure_ascii=False).encode()
        return sent


def command_routes() -> Iterator[APIRouter]:
    """Return a router for each kind of target."""
    for target, (tag, path) in PATHS.items():
        router = APIRouter(tags=[tag])
        for command in COMMANDS[target].values():
            _add(router, path, command)
        yield router


def _add(router: APIRouter, path: str, command: Command) -> None:
    body = _body_of(command)

    def endpoint(api: CurrentRequest, subject: Any, body: Any) -> Response:
        values = {argument.name: getattr(body, argument.name) for argument in command.arguments}
        if "by" in values:
            values["by"] = api.by(values["by"])
        done = _bounded(api, command, subject, partial(give, api.client, command, subject, values))
        return refused(done.text) if done.answer == Answer.REFUSED else api.json_response(done)

    is_job = command.target in (TargetKind.JOB, TargetKind.GROUP)
    subject = JobId if is_job else Annotated[str, Path(alias=_parameter_of(path))]
    endpoint.__annotations__ |= {"subject": subject, "body": body}
    if not command.single:
        endpoint.__defaults__ = (body(),)
    endpoint.__doc__ = f"{command.help}\n\nAs `{' '.join(command.words)} --json`."
    route = f"{path}/{command.name}"
    router.post(route, response_model=ANSWERS[command.target], name=command.method)(endpoint)


def _parameter_of(path: str) -> str:
    """Return the name of the parameter of a path: ``letter`` of ``/dead/{letter}``."""
    return path.rpartition("{")[2].rstrip("}").partition(":")[0]


def _bounded(
    api: ApiRequest, command: Command, subject: str, act: Callable[[], CommandAnswer]
) -> CommandAnswer:
    """Return the answer of ``act``, within a time if it asks the warehouse, which may hang."""
    if command.target not in (TargetKind.DATASET, TargetKind.STREAM):
        return act()
    what = f"whether the {command.name} of {subject} is done cannot be told"
    return api.in_warehouse(api.client.settings.warehouse, what, lambda _: act())


def _body_of(command: Command) -> type[BaseModel]:
    """Return the model of the arguments, with their limits."""
    words = f"{command.target} {command.name}".replace("-", " ").title().replace(" ", "")
    fields: dict[str, Any] = {arg.name: _field_of(arg) for arg in command.arguments}
    return create_model(f"{words}Body", __base__=_Body, __doc__=command.help, **fields)


def _field_of(argument: Argument) -> tuple[Any, Any]:
    kind = _KINDS.get(argument.name, _KINDS.get(argument.kind, argument.kind))
    for limit in argument.limits:
        kind = Annotated[kind, limit]
    default = ... if argument.required else argument.default
    alias = argument.about.alias or None
    return kind, Field(default, alias=alias, description=argument.about.help)
