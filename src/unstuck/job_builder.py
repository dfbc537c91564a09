"""Writes a job in Python: ``Job`` compiles functions and statements to the spec of a YAML file.

Each group is checked on the line that adds it, and the whole when the spec is requested. As with
Dagster's assets and Celery's tasks, a decorated function stays a plain function.
"""

from __future__ import annotations

import contextlib
import datetime
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypedDict, TypeVar

from pydantic import BaseModel, ValidationError
from typing_extensions import Unpack

from unstuck.coordinator.spec.defaults import Defaults
from unstuck.coordinator.spec.messages import problems_of
from unstuck.coordinator.spec.model import MODELS_OF_GROUP, JobSpec
from unstuck.coordinator.spec.notify_spec import NotifyRule
from unstuck.coordinator.spec.problems import SpecError, SpecProblem, Written, listed, suggestion
from unstuck.coordinator.spec.schedule_spec import ScheduleSpec
from unstuck.coordinator.spec.step_names import (
    NotImportable,
    Place,
    check_resolves,
    place_of,
    step_name,
)
from unstuck.tasks.errors import BadStepCall
from unstuck.tasks.spec.group import ForkFrom, Step
from unstuck.tasks.spec.group import GroupSpec as Group
from unstuck.tasks.spec.inputs import DatasetInput, StreamInput
from unstuck.tasks.spec.join import JoinRule as Join
from unstuck.tasks.spec.outputs import Expect, Quality
from unstuck.tasks.spec.outputs import OutputSpec as Output
from unstuck.tasks.spec.retry import RetryPolicy as Retry
from unstuck.tasks.spec.step_function import StepSignature
from unstuck.tasks.spec.streams.kafka_input import KafkaInput

if TYPE_CHECKING:
    from unstuck.client.client import Client
    from unstuck.client.job_handle import JobHandle
    from unstuck.in_process.run_job import JobResult

__all__ = ["Expect", "Group", "Job", "Join", "Output", "Quality", "Retry", "Step", "load_job"]

Function = TypeVar("Function", bound=Callable[..., Any])
Need = str | Callable[..., Any]
"""A group that comes before: its function, its name, or the name of one of its outputs."""
Duration = str | float
_Map = Mapping[str, Any]
Values = Sequence[str | int | float | bool] | Sequence[_Map] | range | ForkFrom | _Map


class JobFields(TypedDict, total=False):
    """Fields of a job in a spec."""

    schedule: ScheduleSpec | _Map
    zone: str
    defaults: Defaults | _Map
    max_parallel: int
    priority: Literal["high", "normal", "low"]
    mixed: bool
    timeout: Duration
    on_failure: Literal["cancel_others", "finish_others"]
    publish: Sequence[str]
    outputs: Mapping[str, Output | _Map]
    notify: Sequence[NotifyRule | _Map]


class GroupFields(TypedDict, total=False):
    """Fields of a group in a spec, but for its name, needs and steps."""

    for_each: Mapping[str, Values]
    join: str | Join | _Map
    when: str
    spark: bool
    inputs: Mapping[str, str | DatasetInput | StreamInput | KafkaInput | _Map]
    params: _Map
    conf: Mapping[str, str]
    queue: str
    pool: str
    retry: Retry | _Map
    timeout: Duration
    queue_timeout: Duration
    worker_losses: int
    optional: bool
    fresh: bool
    code_version: str


_TYPES: dict[type, str] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "boolean",
    datetime.date: "date",
    datetime.datetime: "datetime",
    list: "list",
    dict: "map",
}


class Job:
    """A job that is written in Python.

    >>> from datetime import date
    >>> job = Job("sales", params={"day": date})
    >>> @job.group(output="sales")
    ... def load_sales(spark, ctx, day):
    ...     return spark.read.parquet(f"/in/{day}")
    >>> job.sql("total", "SELECT count(*) AS n FROM sales", needs=[load_sales], output="total")
    'total'
    >>> [group.name for group in job.spec({"day": date(2026, 1, 2)}).groups]
    ['load_sales', 'total']
    """

    def __init__(
        self,
        name: str,
        *,
        description: str | None = None,
        params: Mapping[str, Any] | None = None,
        **fields: Unpack[JobFields],
    ) -> None:
        """Create a job from the fields of a spec; a missing field has its default.

        Args:
            params: by name a default, a declaration, or the type (``date``, ``int``) of a value
                that each submit gives.
        """
        self.name = name
        self._written: dict[str, Any] = {"name": name, **_plain(dict(fields))}
        if description:
            self._written["description"] = description
        if params:
            self._written["params"] = {param: _param(value) for param, value in params.items()}
        self._groups: dict[str, dict[str, Any]] = {}
        self._functions: dict[Callable[..., Any], list[str]] = {}  # → the groups that run it
        self._outputs: dict[str, str] = {}  # → the group that writes it
        self._places: list[Place] = []  # of the groups, in their order

    def group(
        self,
        name: str | None = None,
        *,
        output: str | None = None,
        needs: Sequence[Need] | Need = (),
        **fields: Unpack[GroupFields],
    ) -> Callable[[Function], Function]:
        """Make a group of one step from ``fn(spark, ctx, **params)``, which stays a function.

        Args:
            name: of the group; by default that of the function. Its docstring is the description of
                the group.
            output: the output that it returns or writes.
            needs: groups before it, each by its function, its name or an output.
            fields: as in a spec.

        Raises:
            SpecError: a wrong field, or a need or parameter that is not there; with file and line.
        """
        caller = _caller()
        if callable(name):
            _refuse(f"write @{self.name}.group() with parentheses", caller)

        def add(function: Function) -> Function:
            place = place_of(function) or caller
            step = {"python": _step_name(function, place), **({"output": output} if output else {})}
            about = (inspect.getdoc(function) or "").partition("\n\n")[0]
            described = {"description": about} if about else {}
            group = {"name": name or function.__name__, **described, **fields, "steps": [step]}
            added = self._add(group, needs, place, function)
            self._functions.setdefault(function, []).append(added)
            return function

        return add

    def sql(
        self,
        name: str,
        statement: str,
        *,
        output: str | None = None,
        needs: Sequence[Need] | Need = (),
        **fields: Unpack[GroupFields],
    ) -> str:
        """Add a group of one SQL statement with parameters ``:name``. Return its name.

        Raises: SpecError: as for `group`.
        """
        step = {"sql": statement, **({"output": output} if output else {})}
        return self._add({"name": name, **fields, "steps": [step]}, needs, _caller())

    def add(self, group: Group | Mapping[str, Any]) -> str:
        """Add a group of several steps, or a join without steps. Return its name.

        Raises: SpecError: as for `group`.
        """
        written = _plain(group)
        return self._add(written, written.pop("needs", ()), _caller())

    def spec(self, params: Mapping[str, Any] | None = None, *, scheduled: bool = False) -> JobSpec:
        """Return the spec, as from a YAML file. Arguments: as for `JobSpec.from_file`.

        Raises: SpecError: with every problem; those of a group with the line that added it.
        """
        return JobSpec.from_written(self.written(), params, scheduled=scheduled)

    def written(self) -> Written:
        """Return the written values of the spec; the place of a group is the line that added it.

        Raises: SpecError: the name of a step leads a worker to another function than the decorated
        one.
        """
        self._check_names()
        folder = Path(self._places[0].source).parent if self._places else None
        return Written(
            {**self._written, "groups": list(self._groups.values())}, self._placed, folder=folder
        )

    def submit(
        self,
        params: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        retry: bool = False,
        take_over: bool = False,
        by: str | None = None,
        client: Client | None = None,
    ) -> JobHandle:
        """Submit the job like `Client.submit`.

        ``client``: by default one with the settings of the environment.
        """
        from unstuck.client.client import Client

        spec = self.spec(params or {})
        return (client or Client()).submit(spec, key=key, retry=retry, take_over=take_over, by=by)

    def run(
        self,
        params: Mapping[str, Any] | None = None,
        *,
        warehouse: str | os.PathLike[str] | None = None,
        only: Collection[str] = (),
        from_: Collection[str] = (),
        until: Collection[str] = (),
        take_over: bool = False,
        keep: bool = False,
    ) -> JobResult:
        """Run the job in this process like ``unstuck run``, without Redis or a fleet.

        Args:
            warehouse: where it publishes; by default that of the settings of the environment.
            only, from_, until: the groups that run, if not all; see `InProcess.run`.
            take_over: as of `submit`.
            keep: leave its staging, with the logs of its attempts.

        Raises:
            KeyboardInterrupt: by Ctrl-C, once the job is canceled; or BdbQuit, by leaving the
                debugger.
            SpecError, BadRequest, HostUnfit, DatasetOwned: as ``unstuck run`` refuses it.
        """
        # Upwards, for this call alone: a convenience for callers that have a job in hand.
        from unstuck.in_process.run_job import InProcess
        from unstuck.tasks.settings import settings

        with InProcess(warehouse or settings().warehouse) as here:
            part: dict[str, Any] = {"only": only, "from_": from_, "until": until}
            return here.run_or_leave(self, params=params, **part, take_over=take_over, keep=keep)

    def _add(
        self,
        written: Mapping[str, Any],
        needs: Sequence[Need] | Need,
        place: Place,
        function: Callable[..., Any] | None = None,
    ) -> str:
        """Check and keep one group. Return its name. Raises: SpecError."""
        before = self._needs(needs, place)
        group: dict[str, Any] = _plain({**written, **({"needs": before} if before else {})})
        try:
            checked = Group.model_validate(group)
        except ValidationError as error:
            problems = problems_of(error, group, MODELS_OF_GROUP)
            raise SpecError(
                [_at(problem, place, len(self._groups)) for problem in problems]
            ) from None
        if checked.name in self._groups:
            _refuse(f"there is a group {checked.name!r} already", place)
        if function is not None:
            arguments = {
                *self._written.get("params", ()),
                *checked.params,
                *(checked.for_each or ()),
            }
            _check_call(function, arguments, place)
        outputs = [step.output for step in checked.steps if step.output]
        for output in outputs:
            if output in self._outputs:
                _refuse(
                    f"the group {self._outputs[output]!r} has the output {output!r} already", place
                )
        self._outputs |= dict.fromkeys(outputs, checked.name)
        self._groups[checked.name] = group
        self._places.append(place)
        return checked.name

    def _check_names(self) -> None:
        """Check the names of steps, which may be bound to other functions since.

        Raises: SpecError.
        """
        problems = []
        names = list(self._groups)
        for function, groups in self._functions.items():
            index = names.index(groups[0])
            try:
                check_resolves(function, self._groups[groups[0]]["steps"][0]["python"])
            except NotImportable as error:
                loc = ("groups", index, "steps", 0, "python")
                problems.append(self._placed(SpecProblem(str(error), loc)))
        if problems:
            raise SpecError(problems)

    def _needs(self, needs: Sequence[Need] | Need, place: Place) -> list[str]:
        return [
            self._need(need, place)
            for need in ([needs] if isinstance(needs, str) or callable(needs) else needs)
        ]

    def _need(self, need: Need, place: Place) -> str:
        """Return the name of a needed group. Raises: SpecError."""
        if callable(need):
            if need not in self._functions:
                name = getattr(need, "__name__", need)
                _refuse(f"needs {name}: this function is no group of job {self.name!r}", place)
            if len(groups := self._functions[need]) > 1:
                _refuse(
                    (
                        f"needs {need.__name__}: it is the function of {listed(groups)}; name one "
                        "of them"
                    ),
                    place,
                )
            return groups[0]
        if need in self._groups:
            return need
        if need not in self._outputs:
            near = suggestion(need, [*self._groups, *self._outputs])
            _refuse(f"needs {need!r}: no group and no output above has this name{near}", place)
        return self._outputs[need]

    def _placed(self, problem: SpecProblem) -> SpecProblem:
        if len(problem.loc) > 1 and problem.loc[0] == "groups" and isinstance(problem.loc[1], int):
            place = self._places[problem.loc[1]]
            return replace(problem, source=place.source, line=place.line)
        return problem


def load_job(name: str) -> Job:
    """Return the job ``module:name``, from the import path or the working folder.

    Raises: SpecError: there is none, or its module cannot be imported.
    """
    module, _, path = name.partition(":")
    target = getattr(_imported(module, name), path, None)
    if isinstance(target, Job):
        return target
    values = vars(sys.modules[module])
    jobs = [job_name for job_name, value in values.items() if isinstance(value, Job)]
    existing = f"; it has: {listed(jobs)}" if jobs else ""
    hint = suggestion(path, jobs) or existing
    raise SpecError([SpecProblem(f"{module} has no Job {path!r}{hint}", source=name)])


def _imported(module: str, name: str) -> Any:
    """Import a module. Raises: SpecError: at the line that failed, or in ``name``."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        # What it prints is no part of the answer of a command.
        with contextlib.redirect_stdout(sys.stderr):
            return import_module(module)
    except SpecError:
        raise
    except (Exception, SystemExit) as error:
        why = f"{module} cannot be imported: {type(error).__name__}: {error}"
        frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is this function
        own = [frame for frame in frames if "importlib" not in frame.filename]
        source, line = (own[-1].filename, own[-1].lineno) if own else (name, None)
        raise SpecError([SpecProblem(why, source=source, line=line)]) from error


def _refuse(message: str, place: Place) -> NoReturn:
    raise SpecError([SpecProblem(message, source=place.source, line=place.line)])


def _at(problem: SpecProblem, place: Place, index: int) -> SpecProblem:
    return replace(
        problem, loc=("groups", index, *problem.loc), source=place.source, line=place.line
    )


def _caller() -> Place:
    """Return the line of the user's code that called a method of `Job`."""
    frame = sys._getframe(2)
    return Place(frame.f_code.co_filename, frame.f_lineno)


def _plain(value: Any) -> Any:
    """Return ``value`` as a spec writes it: parts as written, dates as text, ranges as lists."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple | range):
        return [_plain(element) for element in value]
    return value.isoformat() if isinstance(value, datetime.date) else value


def _param(value: Any) -> Any:
    """Return a default unchanged, or the declaration of a required parameter.

    Raises: SpecError.
    """
    if isinstance(value, type):
        if value not in _TYPES:
            allowed = ", ".join(type_.__name__ for type_ in _TYPES)
            raise SpecError(
                [
                    SpecProblem(
                        f"a parameter is one of the types {allowed}, not {value.__name__}",
                        ("params",),
                    )
                ]
            )
        return {"type": _TYPES[value], "required": True}
    if isinstance(value, datetime.date):
        return {"type": _TYPES[type(value)], "default": value.isoformat()}
    return _plain(value)


def _step_name(function: Callable[..., Any], place: Place) -> str:
    """Return ``module:function``. Raises: SpecError: no worker could import it."""
    try:
        return step_name(function)
    except NotImportable as error:
        _refuse(str(error), place)


def _check_call(function: Callable[..., Any], params: Collection[str], place: Place) -> None:
    """Check that ``function`` can be a step with these parameters. Raises: SpecError."""
    try:
        required = StepSignature.of(function.__name__, function, params).required
    except BadStepCall as error:
        _refuse(str(error), place)
    for name in sorted(required.difference(params)):
        hint = suggestion(name, params) or f"; there are: {listed(sorted(params)) or 'none'}"
        _refuse(f"no parameter {name!r} of the job or the group{hint}", place)
