"""Run one step: find the code, check the call, run it, store what it returns.

Code that cannot be imported, a call that does not fit and SQL that does not resolve are not
retried; what the code itself raises is.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from unstuck.tasks.errors import (
    BadStepCall,
    DatasetNotFound,
    InputMissing,
    OutputInvalid,
    SqlInvalid,
    StepNotFound,
    Unrecoverable,
    WorkerFolderGone,
)
from unstuck.tasks.frames.output import is_any_frame
from unstuck.tasks.frames.spark import sql_error
from unstuck.tasks.process.tree import working_folder
from unstuck.tasks.protocol.failure import describe
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.staging import Staging
from unstuck.tasks.settings import settings, whoami
from unstuck.tasks.spec.group import READ_VALUES, Step
from unstuck.tasks.spec.sql_tokens import ResultMarker, is_query, parameters_in, with_plain_names
from unstuck.tasks.spec.step_function import StepSignature, check_returned
from unstuck.tasks.steps.context import StepContext
from unstuck.tasks.steps.loaded import loaded
from unstuck.tasks.steps.work import Work
from unstuck.tasks.transport.redis_client import connect
from unstuck.tasks.warehouse.compact import TARGET, compact_dataset
from unstuck.tasks.warehouse.log import Warehouse


class StepRaised(Exception):
    """Carries an error of user code through Unstuck's code, which never calls its methods."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


@contextmanager
def users_code() -> Iterator[None]:
    """Mark exceptions of the block as errors of the user's code or spec."""
    try:
        yield
    except BaseException as error:  # noqa: BLE001 - raised again
        raise StepRaised(error) from None


def run_step(
    step: Step, work: Work, ctx: StepContext, allowed: Sequence[str], imported: Callable[[], None]
) -> None:
    """Run one step.

    ``allowed``: see `find`. ``imported`` is called after its module was imported, before its
    function.

    Raises:
        StepNotFound, BadStepCall, SqlInvalid, OutputInvalid: a retry cannot help.
        BaseException: whatever the step raised.
    """
    with ending_forks():
        if step.python == READ_VALUES:
            return
        if step.python is not None:
            _run_python(step, work, ctx, allowed, imported)
        elif step.compact is not None:
            _run_compact(step.compact, ctx, **step.params)
        else:
            _run_sql(step, work, ctx)


# -- Python ----------------------------------------------------------------------------------------


def _run_python(
    step: Step, work: Work, ctx: StepContext, allowed: Sequence[str], imported: Callable[[], None]
) -> None:
    assert step.python is not None
    function = find(step.python, allowed)
    imported()
    arguments = fit(step.python, function, work.params, own=set(step.params))
    value = function(work.session, ctx, **arguments)
    check_returned(step.python, value)
    if step.output is not None:
        if value is not None:
            work.write(step.output, value)
        elif step.output not in work.outputs:
            raise OutputInvalid(
                f"{step.python} names the output {step.output}, but neither returned a frame nor "
                "wrote to "
                f'ctx.output("{step.output}")'
            )
    elif is_any_frame(value) and not work.outputs:
        raise OutputInvalid(
            f"{step.python} returned a frame that goes nowhere: say output: NAME on the step"
        )


class ending_forks:
    """End a forked child at the end of the block, so that only this process continues."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if os.getpid() == self._pid:
            return
        code: object = None if error is None else 1
        try:  # as Python ends for an error that nobody catches
            if isinstance(error, SystemExit):
                code = error.code
            with suppress(Exception):
                if not isinstance(error, SystemExit | None):
                    traceback.print_exception(error)
                elif not isinstance(code, int | None):
                    sys.stderr.write(f"{code}\n")
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code if isinstance(code, int) else int(code is not None))


def search_working_folder() -> str | None:
    """Add the working folder to the import path, and return it; None if it is gone."""
    here = working_folder()
    if here is not None and here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    return here


def find(name: str, allowed: Sequence[str]) -> Callable[..., Any]:
    """Import the function ``module:function``.

    ``allowed``: modules that may contain it; empty: any.

    Raises:
        StepNotFound: it may not be imported here, or cannot be.
        WorkerFolderGone: it cannot be, and the folder that it may have been in is gone; a retry
            elsewhere may help.
    """
    module_name, _, path = name.partition(":")
    if allowed and not any(module_name == a or module_name.startswith(f"{a}.") for a in allowed):
        raise StepNotFound(
            f"{name} is not among the modules that this worker may import ({', '.join(allowed)}; "
            "UNSTUCK_STEP_MODULES)"
        )
    here = search_working_folder()
    try:
        target: Any = importlib.import_module(module_name)
        loaded.look()
        for part in path.split("."):
            target = getattr(target, part)
    except Exception as error:
        if here is None:
            raise WorkerFolderGone(
                f"{name} cannot be imported on {whoami()}, whose working directory is gone "
                f"({describe(error)}). If a deploy removed or replaced it, restart this worker; "
                "another one may run the group"
            ) from error
        raise StepNotFound(f"{name} cannot be imported on {whoami()}: {describe(error)}") from error
    if not callable(target):
        raise StepNotFound(f"{name} is not a function but {type(target).__name__}")
    return target  # type: ignore[no-any-return]


def fit(
    name: str, function: Callable[..., Any], params: Mapping[str, Any], *, own: set[str]
) -> dict[str, Any]:
    """Return the parameters that ``function`` takes after ``spark`` and ``ctx``.

    It must take those of the step's ``own``.

    Raises: BadStepCall: one is missing, or one of the step's own is not taken; or the function
    cannot be a step.
    """
    call = StepSignature.of(name, function, params)
    taken = call.taken | (set(params) - {*call.first} if call.takes_any else set())
    if missing := sorted(name for name in call.required if name not in params):
        raise BadStepCall(
            f"{name} needs {', '.join(missing)}; the step has "
            f"{', '.join(sorted(params)) or 'no params'}"
        )
    if strange := sorted(own - taken):
        raise BadStepCall(f"{name} does not take {', '.join(strange)}, which the step gives it")
    return {name: params[name] for name in sorted(taken) if name in params}


# -- compact ---------------------------------------------------------------------------------------


def _run_compact(dataset: str, ctx: StepContext, target: int = TARGET) -> None:
    """Compact a published dataset as ``unstuck compact`` does, with the same results."""
    config = settings()
    with connect(config.redis_url) as client:
        try:
            done = compact_dataset(
                Warehouse(ctx.warehouse),
                Staging(client, Keys(config.prefix)),
                dataset,
                target=target,
                retention=config.retention,
                progress=ctx.progress,
            )
        except DatasetNotFound as error:
            raise Unrecoverable(str(error)) from error
    for name in ("version", "before", "after", "bytes", "kept"):
        ctx.result(name, getattr(done, name))
    ctx.log.info(
        "%s: %d files are %d now; %d small ones are kept",
        dataset,
        done.before,
        done.after,
        done.kept,
    )


# -- SQL -------------------------------------------------------------------------------------------


def _run_sql(step: Step, work: Work, ctx: StepContext) -> None:
    text = step.sql or ""  # a file is read at submit
    # A parameter of the name ``results`` may hold a struct, whose fields are written in the same
    # way.
    results: dict[str, ResultMarker] = {}
    if "results" not in work.params:
        text, results = with_plain_names(text, parameters_in(text))
    # Only what the text names: a parameter that Spark has no type for must not hurt a query that
    # does not use it.
    named = parameters_in(text)
    arguments = {
        name: _argument(work.session, work.params[name]) for name in named if name in work.params
    }
    arguments |= {name: _result(marker, work) for name, marker in results.items()}
    if step.output is None and is_query(text):
        raise OutputInvalid("the rows of this query go nowhere: say output: NAME on the step")
    try:
        frame = work.session.sql(text, args=arguments)
        if step.output is not None:
            work.write(step.output, frame)
    except Exception as error:
        if (what := sql_error(error)) is not None:
            raise SqlInvalid(what) from error
        raise


def _argument(session: Any, value: Any) -> Any:
    """Convert ``value`` to a Spark parameter.

    A mapping becomes a struct, so that ``:model.depth`` is a field of it.
    """
    from pyspark.sql import Column

    literal = _literal(value)
    if not isinstance(literal, Column) or not session.version.startswith("3."):
        return literal
    # Spark 3.5 takes no expression, and has none for a struct: its optimizer makes a value of it.
    plan = session.range(1).select(literal)._jdf.queryExecution().optimizedPlan()
    return Column(session._jvm.org.apache.spark.sql.Column(plan.expressions().head().child()))


def _literal(value: Any) -> Any:
    if not isinstance(value, dict) or not value:
        return value
    from pyspark.sql.functions import lit, struct

    parts = {name: _literal(part) for name, part in value.items()}
    return struct(*(lit(part).alias(name) for name, part in parts.items()))


def _result(marker: ResultMarker, work: Work) -> Any:
    """The value of a marker; null where its group did not succeed. Raises: SqlInvalid."""
    try:
        recorded = work.results_of(marker.group)
    except InputMissing as error:
        raise SqlInvalid(f"{marker.text}: {error}") from None
    if isinstance(recorded, list):
        raise SqlInvalid(
            f"{marker.text}: {marker.group} is a fork, whose members have results of their own"
        )
    if recorded and marker.key not in recorded:
        raise SqlInvalid(
            f"{marker.text}: {marker.group} recorded no such result; it recorded "
            f"{', '.join(recorded)}"
        )
    value = recorded.get(marker.key)
    if isinstance(value, dict):
        raise SqlInvalid(
            f"{marker.text} is a mapping, which SQL has no value for; record its parts one by one"
        )
    return value
