"""Make the reference of the Python API from the docstrings of what users import.

``scripts.generated_pages`` writes it. A test runs every example in it.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from textwrap import dedent
from typing import Any

from pydantic import BaseModel

import unstuck
from unstuck.client.schedule_client import ScheduleClient
from unstuck.coordinator.command_table import CommandOutcome
from unstuck.coordinator.explain.explanation import Explanation
from unstuck.coordinator.model.fleet import FleetInfo, PoolInfo, QueueInfo
from unstuck.coordinator.model.notice import Notice
from unstuck.coordinator.model.schedule_record import Backfill, Run
from unstuck.coordinator.notices.outbox import Notices, SentNotice, WaitingNotice
from unstuck.coordinator.problems.problem import Problem
from unstuck.coordinator.schedules.explain import ScheduleExplanation
from unstuck.coordinator.schedules.schedule_result import ScheduleResult
from unstuck.coordinator.store.dead_letter_store import DeadLetters
from unstuck.coordinator.store.pool_store import Pools
from unstuck.coordinator.store.reports import DeadLetter
from unstuck.read_model.command_result import CommandResult
from unstuck.read_model.group import GroupInfo, Member
from unstuck.read_model.job import JobInfo
from unstuck.read_model.schedule import NextTick, ScheduleInfo, TickInfo
from unstuck.tasks.protocol.process_info import CoordinatorInfo, RunnerInfo
from unstuck.tasks.steps.context import OutputSlot

HEAD = """\
# The Python API

All names are imported from `unstuck`, and loaded on first use: `from unstuck import Client`. This page is generated
from the docstrings, which `help()` also shows, and a test runs its examples. Times are seconds since the epoch, and
durations seconds, unless a line says otherwise. [Write jobs](write-jobs.md) shows the API at work.
"""
# By section: the classes and functions, each with the name by which users have it.
SECTIONS: dict[str, tuple[tuple[str, Any], ...]] = {
    "Jobs": (
        *(
            ("Job", unstuck.Job),
            ("Group", unstuck.Group),
            ("Step", unstuck.Step),
            ("Output", unstuck.Output),
        ),
        *(
            ("Retry", unstuck.Retry),
            ("Join", unstuck.Join),
            ("Quality", unstuck.Quality),
            ("Expect", unstuck.Expect),
        ),
        ("JobSpec", unstuck.JobSpec),
    ),
    "Client": (
        ("Client", unstuck.Client),
        ("JobHandle", unstuck.JobHandle),
        ("client.schedules", ScheduleClient),
        ("client.pools", Pools),
        ("client.notices", Notices),
        ("client.dead_letters", DeadLetters),
        ("Status", unstuck.Status),
        ("Settings", unstuck.Settings),
    ),
    "Answers of the client": (
        *(("JobInfo", JobInfo), ("GroupInfo", GroupInfo), ("Member", Member)),
        *(("CommandResult", CommandResult), ("CommandOutcome", CommandOutcome)),
        *(("Explanation", Explanation), ("Problem", Problem)),
        *(("ScheduleInfo", ScheduleInfo), ("NextTick", NextTick), ("TickInfo", TickInfo)),
        *(("Run", Run), ("Backfill", Backfill), ("ScheduleResult", ScheduleResult)),
        ("ScheduleExplanation", ScheduleExplanation),
        *(("FleetInfo", FleetInfo), ("QueueInfo", QueueInfo), ("PoolInfo", PoolInfo)),
        *(("RunnerInfo", RunnerInfo), ("CoordinatorInfo", CoordinatorInfo)),
        *(("DeadLetter", DeadLetter), ("Notice", Notice)),
        *(("WaitingNotice", WaitingNotice), ("SentNotice", SentNotice)),
    ),
    "Steps": (("StepContext", unstuck.StepContext), ("ctx.output(name)", OutputSlot)),
    "Warehouse": (("published", unstuck.published), ("published_files", unstuck.published_files)),
}
_PAGES = {
    unstuck.Group: "spec.md#group",
    unstuck.Step: "spec.md#step",
    unstuck.Retry: "spec.md#retry",
    unstuck.Output: "spec.md#outputs",
    unstuck.Settings: "settings.md",
}
# Of JobSpec and Settings: how one is made. The other methods are for the coordinator.
_METHODS = {
    unstuck.JobSpec: ("of", "from_file", "from_text", "from_values", "to_json"),
    unstuck.Settings: (),
    Run: (),
    Backfill: ("status", "progress", "over"),
}
MADE_BY_USERS = ("Job", "Client")  # by a call that is documented here
_ITEMS = ("Args", "Raises", "Attributes", "Returns")


def errors() -> list[type[unstuck.UnstuckError]]:
    """The exported errors, the root first."""
    found = [one for name in unstuck.__all__ if inspect.isclass(one := getattr(unstuck, name))]
    return sorted(
        (one for one in found if issubclass(one, unstuck.UnstuckError)),
        key=lambda one: len(one.__mro__),
    )


def examples() -> Iterator[tuple[str, Any]]:
    """Every object of the page that may have an example, by its name."""
    for members in SECTIONS.values():
        for name, member in members:
            yield name, member
            if inspect.isclass(member):
                yield from ((f"{name}.{one}", getattr(member, one)) for one, _ in _methods(member))


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, members in SECTIONS.items():
        parts.append(f"## {title}")
        parts += [part for name, member in members for part in _member(name, member)]
    parts.append(
        "## Errors\n\nEach is an `UnstuckError`: `code` is for a machine to compare, `str()` for "
        "people."
    )
    rows = [
        (
            f"| `{one.__name__}` | {_code(one)} | "
            f"{_text(' '.join((inspect.getdoc(one) or '').partition(chr(10) * 2)[0].split()))} |"
        )
        for one in errors()
    ]
    parts.append("\n".join(["| error | code | |", "|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _code(error: type[unstuck.UnstuckError]) -> str:
    retry = "; in a step, no retry follows" if issubclass(error, unstuck.Unrecoverable) else ""
    return f"`{error.code}`{retry}"


def _member(name: str, member: Any) -> Iterator[str]:
    yield f"### {name}"
    if not inspect.isclass(member):
        yield _signature(name, member)
        yield _documented(member)
        return
    made = name in MADE_BY_USERS
    if made:
        yield _signature(name, member)
    yield _documented(member)
    if issubclass(member, enum.Enum):
        yield "Its values: " + ", ".join(f"`{one.value}`" for one in member) + "."
    if is_dataclass(member):
        shown = [f"{one.name}: {one.type}" for one in fields(member)]
        yield "```python\n" + "\n".join(shown) + "\n```"
    if member in _PAGES:
        yield f"Its fields: [{'settings' if member is unstuck.Settings else 'the job spec'}]({_PAGES[member]})."
    elif issubclass(member, BaseModel) and member not in _METHODS:
        yield "\n".join(
            f"- `{one}`: {_text(field.description or '')}"
            for one, field in member.model_fields.items()
        )
    if made:
        yield _documented(member.__init__)
    for one, method in _methods(member):
        yield f"#### {name}.{one}"
        if not isinstance(method, property):
            yield _signature(one, method)
        yield _documented(method)


def _methods(member: type) -> Iterator[tuple[str, Any]]:
    if issubclass(member, enum.Enum | BaseModel) and member not in _METHODS:
        return
    for name in _METHODS.get(member, [name for one in member.__mro__ for name in vars(one)]):
        found = inspect.getattr_static(member, name)
        made_inside = name == "of" and is_dataclass(member)
        if (
            not name.startswith("_")
            and not made_inside
            and isinstance(found, property | classmethod | staticmethod | Callable)
        ):  # type: ignore[arg-type]
            yield name, found if isinstance(found, property) else getattr(member, name)


def _signature(name: str, member: Callable[..., Any]) -> str:
    shape = inspect.signature(member)
    # Without what only the tests of Unstuck give.
    given = [one for one in shape.parameters.values() if one.name not in ("self", "breaker")]
    text = str(shape.replace(parameters=given))
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    text = re.sub(r"= '([^'\"]*)'", r'= "\1"', text)
    text = re.sub(r"(: |-> )(\w+\.)+(\w+)", r"\1\3", text)
    line = f"def {name}{text}: ..."
    if len(line) > 100:
        inner, _, answer = text[1:].rpartition(")")
        line = f"def {name}(\n    {_a_line_each(inner)},\n){answer}: ..."
    return f"```python\n{line}\n```"


def _a_line_each(parameters: str) -> str:
    depth, text = 0, ""
    for char in parameters:
        depth += (char in "[{(") - (char in "]})")
        text += "\n    " if text.endswith(",") and char == " " and not depth else char
    return text


def _documented(member: Any) -> str:
    """A docstring in Markdown."""
    lines = (inspect.getdoc(member) or "").splitlines()
    parts: list[str] = []
    while lines:
        line = lines.pop(0)
        if line.rstrip(":") in _ITEMS and line.endswith(":"):
            block = [lines.pop(0) for _ in range(len(list(_indented(lines))))]
            parts.append(f"*{line.rstrip(':')}*\n\n" + _items(dedent("\n".join(block))) + "\n")
        elif line == "::":
            block = [lines.pop(0) for _ in range(len(list(_indented(lines))))]
            parts.append("```python\n" + dedent("\n".join(block)).strip("\n") + "\n```\n")
        elif line.startswith(">>>"):
            block = [line]
            while lines and lines[0]:
                block.append(lines.pop(0))
            parts.append("```pycon\n" + "\n".join(block) + "\n```")
        else:
            parts.append(_text(line))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).strip()


def _indented(lines: list[str]) -> Iterator[str]:
    """The lines before the first that is not indented."""
    for n, line in enumerate(lines):
        if line and not line.startswith(" "):
            return
        if not line and not any(later.startswith(" ") for later in lines[n + 1 : n + 2]):
            return
        yield line


def _items(block: str) -> str:
    """The lines ``name: text`` of a section as a list."""
    items: list[str] = []
    for line in block.splitlines():
        if items and line.startswith(" "):
            items[-1] += f" {line.strip()}"
        elif line:
            items.append(line)
    named = [re.sub(r"^([\w*][\w*, ]*):", lambda found: f"`{found[1]}`:", one) for one in items]
    return "\n".join(f"- {_text(one)}" for one in named)


def _text(line: str) -> str:
    return line.replace("``", "`")
