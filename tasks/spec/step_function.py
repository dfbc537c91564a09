"""Checks whether a callable can be a step: ``fn(spark, ctx, **params)``.

The same check runs where a job is written in Python, in ``unstuck validate --imports`` and before
each call.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Collection, Generator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from unstuck.tasks.errors import BadStepCall

_FIRST = ("spark", "ctx")
_UNFINISHED = (Awaitable, AsyncIterator, Generator, map, filter)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

# A process calls the same functions again and again.
_signature_of_function = lru_cache(maxsize=256)(inspect.signature)


@dataclass(frozen=True, slots=True)
class StepSignature:
    """The parameters of a step function.

    Attributes:
        first: names of the parameters that get ``spark`` and ``ctx``; none for those of ``*args``.
        taken: names of the others that can be passed by name.
        required: those of ``taken`` without a default.
        takes_any: the function has a ``**`` parameter.
    """

    first: tuple[str, ...]
    taken: frozenset[str]
    required: frozenset[str]
    takes_any: bool

    @classmethod
    def of(cls, name: str, function: Any, params: Collection[str]) -> StepSignature:
        """Read the signature of a step.

        Args:
            name: of the function, for errors.
            params: names of the parameters that the step is given.

        Raises:
            BadStepCall: a call would run no line of the function, or would not pass ``spark`` and
                ``ctx`` to it.
        """
        _check_kind(name, function)
        declared = _parameters(name, function)
        kinds = {parameter.kind for parameter in declared}
        positional = [parameter for parameter in declared if parameter.kind in _POSITIONAL]
        first = [parameter.name for parameter in positional[: len(_FIRST)]]
        if len(first) < len(_FIRST) and inspect.Parameter.VAR_POSITIONAL not in kinds:
            raise BadStepCall(f"{name} must take spark and ctx first: {_form(name)}")
        _check_places(name, first, params)
        _check_passed_by_name(name, positional[len(_FIRST) :])
        defaults = {
            parameter.name: parameter.default
            for parameter in declared
            if parameter.kind in _BY_NAME
        }
        taken = defaults.keys() - {*first}
        required = frozenset(key for key in taken if defaults[key] is inspect.Parameter.empty)
        takes_any = inspect.Parameter.VAR_KEYWORD in kinds
        return cls(tuple(first), frozenset(taken), required, takes_any)


def _parameters(name: str, function: Any) -> list[inspect.Parameter]:
    """Return the parameters of a callable. Raises: BadStepCall: nobody knows them."""
    read = _signature_of_function if inspect.isfunction(function) else inspect.signature
    try:
        return list(read(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise BadStepCall(f"{name} has no signature to call it by: {error}") from error


def check_returned(name: str, value: Any) -> None:
    """Check that a step did not return work that has not run, such as a coroutine.

    Raises: BadStepCall.
    """
    # First what most steps return: a step may have replaced isinstance, which is put back only
    # after this.
    if value is None:
        return
    if isinstance(value, list | tuple):  # such as the coroutines of many calls
        by_type = {type(member): member for member in value}
        value = next((last for last in by_type.values() if isinstance(last, _UNFINISHED)), None)
    if not isinstance(value, _UNFINISHED):
        return
    if inspect.iscoroutine(value):
        value.close()  # Python would warn of it later
    kind = type(value).__name__
    raise BadStepCall(
        f"{name} returned a {kind}, whose code has not run. Run it in the step: asyncio.run(…) for "
        "a coroutine, a loop or list(…) for a generator, a map or a filter"
    )


def _check_kind(name: str, function: Any) -> None:
    """Check that a call of ``function`` runs its code.

    Raises: BadStepCall: a call would only create an object.
    """
    while isinstance(function, partial):
        function = function.func
    if not inspect.isroutine(function) and not inspect.isclass(function):
        function = type(function).__call__
    if inspect.iscoroutinefunction(function):
        raise BadStepCall(
            f"{name} is an async def, and a step is called without await, so none of its lines "
            "would run. Write it with def, and run coroutines in it with asyncio.run(…)"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise BadStepCall(
            f"{name} has a yield, so a call makes a generator and runs none of its lines. Return "
            "one frame, or write each with ctx.output(name).write(frame)"
        )


def _check_places(name: str, first: list[str], params: Collection[str]) -> None:
    """Check the first parameters.

    Raises: BadStepCall: ``spark`` or ``ctx`` would be another one.
    """
    for place, parameter in zip(_FIRST, first, strict=False):
        if parameter != place and (parameter in _FIRST or parameter in params):
            instead = f"and would get {place} as {parameter}"
            raise BadStepCall(f"{name} must take spark and ctx first, {instead}: {_form(name)}")


def _check_passed_by_name(name: str, positional: list[inspect.Parameter]) -> None:
    """Check the others. Raises: BadStepCall: a parameter can only be passed by its position."""
    for parameter in positional:
        if parameter.kind is parameter.POSITIONAL_ONLY and parameter.default is parameter.empty:
            raise BadStepCall(
                f"{name} takes {parameter.name} by position only (/), and parameters are passed by "
                "name"
            )


def _form(name: str) -> str:
    return f"def {name.rpartition(':')[2].rpartition('.')[2]}(spark, ctx, …)"
