"""Pictures of a job: its graph, and its attempts over time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from unstuck.coordinator.decide.receipts import REFUSED
from unstuck.coordinator.model.past_attempts import attempts_of
from unstuck.coordinator.spec.plan import Plan
from unstuck.graph.folding import folded_groups
from unstuck.graph.job_graph import GraphGroup, job_graph, worst_of
from unstuck.graph.svg import Svg
from unstuck.graph.timeline import Refusal, Row, timeline
from unstuck.read_model.group import GroupInfo
from unstuck.read_model.job import JobInfo
from unstuck.tasks.protocol.token import split_member

Href = Callable[[str], str]


def nowhere(name: str) -> str:
    return ""


def graph_of_job(view: JobInfo) -> Svg:
    """Draw all groups of a job."""
    return job_graph([_graph_group(group) for group in view.groups], _graph_label(view))


def folded_graph_of_job(view: JobInfo, href: Href, state_href: Href) -> Svg:
    """Draw the groups of a job; if there are many, a box for each level and state.

    Args:
        href: returns the address of a group, by name.
        state_href: returns the address of all groups in a state.
    """
    groups = [replace(_graph_group(group), href=href(group.name)) for group in view.groups]
    return job_graph(folded_groups(groups, state_href), _graph_label(view))


def _graph_label(view: JobInfo) -> str:
    return f"The graph of job {view.name}, {view.status}: {view.done} of {view.total} done"


def _graph_group(group: GroupInfo) -> GraphGroup:
    return GraphGroup(
        group.name,
        group.needs,
        worst_of(group.states) if group.expanded else "WAITING",
        group.forked,
        group.states if group.expanded else {},
        group.join,
        group.only_joins,
    )


def graph_of_plan(plan: Plan) -> Svg:
    """Draw the graph of a job that was not submitted."""
    groups = []
    for name, planned in plan.groups.items():
        spec = planned.spec
        count = plan.member_count(name, {})
        many = "of as many as it finds" if count is None else f"{count:,} members"
        over = f"{many} over {', '.join(spec.fork_params)}" if spec.for_each is not None else ""
        groups.append(
            GraphGroup(name, spec.needs, "", bool(over), {}, str(spec.join), spec.is_join, over)
        )
    return job_graph(groups, f"The graph of job {plan.name}, which was not submitted")


def timeline_of(view: JobInfo, events: Iterable[Mapping[str, Any]], href: Href = nowhere) -> Svg:
    """Draw the attempts of a job over time, from its event log. A fork is one row."""
    by_group: dict[str, list[Mapping[str, Any]]] = {}
    for event in events:
        if group := event.get("group"):
            by_group.setdefault(group, []).append(event)
    members: dict[str, list[str]] = {}
    for group in by_group:
        members.setdefault(split_member(group)[0], []).append(group)
    names = dict.fromkeys([*(group.name for group in view.groups), *members])
    rows = []
    for name in names:
        refused_events = [
            event
            for member in members.get(name, ())
            for event in by_group[member]
            if event["kind"] == REFUSED
        ]
        refused = [
            Refusal(float(event["at"]), f"{event['group']}: {event.get('text', '')}")
            for event in refused_events
        ]
        attempts = [
            attempt for member in members.get(name, ()) for attempt in attempts_of(by_group[member])
        ]
        rows.append(Row(name, attempts, refused))
    return timeline(
        rows, view.ended_at or view.at, f"The attempts of job {view.name} over time", href
    )
