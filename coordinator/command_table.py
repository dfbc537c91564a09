"""The table of commands. Each command is declared once, beside the function that carries it out.

The command line, the API, the buttons of the page, the Celery tasks and the reference of the
command line are made from this table. ``Client`` has a typed method for each command.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class TargetKind(StrEnum):
    """The kind of thing that a command acts on."""

    JOB = "job"
    GROUP = "group"
    SCHEDULE = "schedule"
    BACKFILL = "backfill"
    DATASET = "dataset"
    STREAM = "stream"
    POOL = "pool"
    DEAD_LETTER = "dead letter"
    PROBLEM = "problem"


class Answer(StrEnum):
    """The result of a command."""

    DONE = "DONE"  # the intent is written; a coordinator acts on it
    ALREADY = "ALREADY"  # it was so before; nothing changed
    REFUSED = "REFUSED"  # not legal in this state


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """The answer of a command for one target.

    Attributes:
        target: id or name of the target.
        answer: DONE, ALREADY or REFUSED; of a dead letter also REPLAYED or DROPPED. On the command
            line also the code of an error.
        text: a sentence for people.
    """

    target: str
    answer: str
    text: str


@dataclass(frozen=True, slots=True)
class Arg:
    """The description of an argument, in the annotation of its parameter.

    Attributes:
        help: a sentence.
        alias: name for users if it is a keyword of Python, such as ``from``.
        option: option on the command line; empty for ``--NAME``. A required argument without an
            option is positional.
        metavar: placeholder of the value in ``--help``.
        wire: the type that the command line and the API parse, if it is narrower than the
            annotation.
    """

    help: str
    alias: str = ""
    option: str = ""
    metavar: str = ""
    wire: Any = None


Reason = Annotated[str, Arg("Why, for the event log.")]
By = Annotated[
    str | None, Arg("Who asks, for the event log; by default user@host.", metavar="NAME")
]

Params = Annotated[
    Mapping[str, Any] | None,
    Arg("Set a parameter of the spec.", option="--param -p", metavar="NAME=VALUE"),
]


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a command.

    Attributes:
        name: name of the Python parameter.
        kind: the type that the command line and the API parse.
        limits: constraints of the value, as annotations of pydantic.
        default: `inspect.Parameter.empty` if it is required.
    """

    name: str
    kind: Any
    limits: tuple[Any, ...]
    default: Any
    about: Arg

    @property
    def alias(self) -> str:
        return self.about.alias or self.name

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Order:
    """Who gives a command, why, and when (seconds since the epoch).

    ``word``: a fresh random word.
    """

    by: str = ""
    reason: str = ""
    at: float = 0.0
    word: str = ""


@dataclass
class Command:
    """A command, and the decorator of the function that carries it out.

    The documented parameters of the function are the arguments. A function with a parameter
    ``order`` decides from the record of its target; the arguments ``reason`` and ``by`` are added
    to its command.

    Attributes:
        example: a command line.
        legal: statuses of the target in which the command is legal.
        legal_groups: states of a group in which the command is legal, if its job is ``legal``.
        ends: whether the command ends or removes its target for good.
        settles: whether a refusal waits until the status reflects an earlier command.
        damaged_too: whether the command needs only the record, and so works on a damaged target.
    """

    name: str
    target: TargetKind
    example: str
    legal: AbstractSet[str] = frozenset()
    legal_groups: AbstractSet[str] = frozenset()
    ends: bool = False
    settles: bool = False
    damaged_too: bool = False
    handler: Callable[..., Any] = field(init=False)

    def __call__(self, handler: F) -> F:
        self.handler = handler
        COMMANDS[self.target][self.name] = self
        return handler

    @property
    def words(self) -> list[str]:
        """The words of the command line before the targets."""
        return ["unstuck", *_ROOMS.get(self.target, ()), self.name]

    @property
    def method(self) -> str:
        """Name of the client's method."""
        return self.handler.__name__

    @cached_property
    def help(self) -> str:
        """The docstring of the function, without the sections after it."""
        text = inspect.getdoc(self.handler) or ""
        sentences = text.partition("\n\nArgs:")[0].partition("\n\nRaises:")[0]
        sentences = sentences.partition("\n\nReturns:")[0]
        return "\n\n".join(" ".join(part.split()) for part in sentences.split("\n\n"))

    @property
    def doc(self) -> str:
        """The docstring for the method of the client that gives this command."""
        lines = [f"    {argument.name}: {argument.about.help}" for argument in self.arguments]
        raises = (inspect.getdoc(self.handler) or "").partition("\n\nRaises:")
        return "\n".join([self.help, "", "Args:", *lines, *raises[1:]])

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """The arguments, the required ones first."""
        hints = get_type_hints(self.handler, include_extras=True)
        parameters = inspect.signature(self.handler).parameters
        defaults = {name: parameter.default for name, parameter in parameters.items()}
        if "order" in parameters:
            hints = {"reason": Reason, "by": By} | hints
            defaults |= {"reason": "", "by": None}
        arguments = (
            Argument(name, about.wire or kind, tuple(limits), defaults[name], about)
            for name, hint in hints.items()
            if hasattr(hint, "__metadata__")
            for kind, about, *limits in (get_args(hint),)
            if isinstance(about, Arg)
        )
        return tuple(sorted(arguments, key=lambda argument: not argument.required))

    @property
    def single(self) -> bool:
        """Whether the command takes exactly one target, to which its arguments apply."""
        return any(argument.required for argument in self.arguments)


# The first word of the command line, where a command is not at the top.
_ROOMS = {
    TargetKind.SCHEDULE: ("schedule",),
    TargetKind.BACKFILL: ("schedule",),
    TargetKind.STREAM: ("stream",),
    TargetKind.POOL: ("pool",),
    TargetKind.DEAD_LETTER: ("dead",),
}
COMMANDS: dict[TargetKind, dict[str, Command]] = {target: {} for target in TargetKind}


def documented(*commands: Command) -> Callable[[type[T]], type[T]]:
    """Copy the help of ``commands`` to their methods in a class that have no docstring."""

    def document(holder: type[T]) -> type[T]:
        for command in commands:
            method = getattr(holder, command.method)
            method.__doc__ = method.__doc__ or command.doc
        return holder

    return document
