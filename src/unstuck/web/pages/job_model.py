"""The models of the screens of one job, made from its view (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from unstuck.coordinator.explain.explanation import Explanation
from unstuck.coordinator.model.status import GroupState, Status
from unstuck.read_model.group import GroupInfo, Member
from unstuck.read_model.job import JobInfo
from unstuck.tasks.spec.outputs import REJECTED
from unstuck.views.jobs.job_lines import Line, elapsed_of, lines_of, member_line
from unstuck.web.paging import ListPage, filter_of, page_of

T = TypeVar("T")
A_PAGE = 100  # groups, or members of a fork
ERRORS = 5  # groups whose errors are shown
EXPLAINED = 20  # explanations that are shown
_TO_LOOK_AT = (
    GroupState.FAILED,
    GroupState.BACKOFF,
    GroupState.CANCELING,
    GroupState.RUNNING,
    GroupState.QUEUED,
)


@dataclass(frozen=True, slots=True)
class SharedExplanation:
    """One explanation of several groups.

    Attributes:
        subjects: the first groups.
        more: the number of other groups.
    """

    subjects: tuple[str, ...]
    more: int
    explanation: Explanation


@dataclass(frozen=True, slots=True)
class OutputRows:
    """The rows of one output of a job, of all its groups: good, rejected, and rejected by rule."""

    name: str
    rows: int
    rejected: int
    rules: tuple[tuple[str, int], ...]


def job_href(job: str, *below: str) -> str:
    return "/".join(["/jobs", quote(job, safe=""), *(quote(segment, safe="") for segment in below)])


def state_href(state: str) -> str:
    """Return the relative address of the groups of the shown job that are in ``state``."""
    return f"?{urlencode({'state': state})}#groups"


def anchor(group: str) -> str:
    """Return the id of the line of a group."""
    return f"group-{group}"


class GroupOrder(StrEnum):
    """The order of a table of groups. ``ATTENTION``: failed and active groups come first."""

    PLAN = "plan"
    ATTENTION = "attention"
    NAME = "name"
    LONGEST = "longest"


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    """A group with its lines, or a member of a fork, for the filters of a table.

    Attributes:
        names: the texts in which a name is searched; the first one is its own.
        state: of a fork, that of its line.
        states: of a fork, those of its members.
        elapsed: seconds; 0 before it began.
    """

    item: T
    names: Sequence[str]
    state: str
    states: Collection[str]
    elapsed: float


def page_of_groups(view: JobInfo, query: Mapping[str, str]) -> ListPage[Line]:
    """Return the lines of the groups of a job, as `unstuck show` has them.

    The query has ``name``, ``state`` and ``order``; see `GroupOrder`.
    """
    blocks: list[list[Line]] = []
    for line in lines_of(view, view.at):
        if line.member and blocks:
            blocks[-1].append(line)
        else:
            blocks.append([line])
    entries = [
        _Entry(
            block,
            [group.name, *(member.id for member in group.members)],
            block[0].state,
            [state for state, count in group.states.items() if count],
            block[0].elapsed or 0.0,
        )
        for group, block in zip(view.groups, blocks, strict=True)
    ]
    is_long = len(blocks) > A_PAGE
    part = _page(entries, query, GroupOrder.ATTENTION if is_long else GroupOrder.PLAN)
    return part.showing([line for block in part.items for line in block])


def page_of_members(view: JobInfo, fork: GroupInfo, query: Mapping[str, str]) -> ListPage[Line]:
    """Return the lines of the members of a fork that have a record; see `page_of_groups`."""
    entries = [
        _Entry(
            member,
            [member.id, str(member.value)],
            member.state,
            [member.state],
            elapsed_of(member, view.at) or 0.0,
        )
        for member in fork.members
    ]
    part = _page(entries, query, GroupOrder.ATTENTION)
    return part.showing([member_line(view, fork, member, view.at) for member in part.items])


def _page(entries: Sequence[_Entry[T]], query: Mapping[str, str], usual: GroupOrder) -> ListPage[T]:
    """Return the requested page. ``usual``: the order if the query has none."""
    filters = _filters_of(query)
    matches = _matching(entries, filters.get("name", ""), filters.get("state", "").upper())
    order = GroupOrder(filters.get("order", usual))
    if order in _SORT_KEYS:
        matches.sort(key=_SORT_KEYS[order])
    items = [entry.item for entry in matches]
    return page_of(items, len(entries), filters, query, A_PAGE)


def _filters_of(query: Mapping[str, str]) -> dict[str, str]:
    """Return the filters of a table of groups that the query has."""
    filters = {key: filter_of(query, key) for key in ("name", "state", "order")}
    if filters["order"] not in [*GroupOrder]:
        filters["order"] = ""
    return {key: value for key, value in filters.items() if value}


def _matching(entries: Sequence[_Entry[T]], name: str, state: str) -> list[_Entry[T]]:
    part = name.casefold()
    matches = [entry for entry in entries if any(part in text.casefold() for text in entry.names)]
    return [entry for entry in matches if not state or state in entry.states]


_SORT_KEYS: Mapping[GroupOrder, Callable[[_Entry[Any]], Any]] = {
    GroupOrder.ATTENTION: lambda entry: _rank(entry.state),
    GroupOrder.NAME: lambda entry: entry.names[0].casefold(),
    GroupOrder.LONGEST: lambda entry: -entry.elapsed,
}


def _rank(state: str) -> int:
    return next((n for n, notable in enumerate(_TO_LOOK_AT) if notable == state), len(_TO_LOOK_AT))


def explanations_of(view: JobInfo, only: str = "") -> tuple[list[SharedExplanation], int]:
    """Return why the groups of a job wait, as `unstuck why` does, and the number of the rest.

    Neighbors with the same explanation share one.

    Args:
        only: a group, or a fork for all its members; empty for all groups.
    """
    explanations = [
        explanation
        for subject, explanation in view.explanations.items()
        if subject != view.id and only in ("", subject, _fork_of(subject))
    ]
    shared = []
    for _, run in groupby(explanations, _explained):
        alike = list(run)
        shared.append(
            SharedExplanation(
                tuple(explanation.subject for explanation in alike[:8]), len(alike[8:]), alike[0]
            )
        )
    return shared[:EXPLAINED], len(shared[EXPLAINED:])


def _explained(explanation: Explanation) -> tuple[object, ...]:
    return (
        explanation.state,
        explanation.what,
        explanation.since,
        explanation.tried,
        explanation.next,
        explanation.ends,
        explanation.help,
        explanation.stack,
    )


def _fork_of(subject: str) -> str:
    return subject.partition("[")[0]


def errors_of(view: JobInfo, only: str = "") -> tuple[list[Member], int]:
    """Return groups that failed or are recovering, and the number of the rest. See
    `explanations_of`.
    """
    failed = [group for group in view.failed if only in ("", group.id, _fork_of(group.id))]
    return failed[:ERRORS], len(failed[ERRORS:])


def outputs_of(members: Sequence[Member]) -> list[OutputRows]:
    """Return the outputs of these groups with their rows."""
    rows, rejected, rules = Counter[str](), Counter[str](), dict[str, Counter[str]]()
    for member in members:
        rows.update(
            {name: count for name, count in member.rows.items() if not _is_rejects(name, member)}
        )
        for name, quality in member.quality.items():
            rejected[name] += quality.rejected
            rules.setdefault(name, Counter()).update(quality.rules)
    return [
        OutputRows(name, rows[name], rejected[name], tuple(rules.get(name, {}).items()))
        for name in rows
    ]


def _is_rejects(name: str, member: Member) -> bool:
    return name.removesuffix(REJECTED) in member.quality and name.endswith(REJECTED)


def finished_text(job: JobInfo) -> str:
    """Return how a job ended; empty while it runs, or if its reason tells it."""
    if job.status is not Status.FINISHED:
        return ""
    if not job.version:
        return "The job finished. It had nothing to publish."
    return f"The job finished and published version {job.version} of {job.warehouse}."
