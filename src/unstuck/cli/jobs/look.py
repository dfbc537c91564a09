"""``unstuck show`` and ``why``: one job, and what it waits for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from textwrap import indent
from typing import Annotated

import typer
from rich.text import Text

from unstuck.cli.connection import connected
from unstuck.cli.options import (
    JOB_IN_PYTHON,
    AsJson,
    Graph,
    LookArgument,
    read_spec,
    write_picture,
)
from unstuck.cli.render.job_tree import job_tree
from unstuck.cli.render.terminal import (
    TextTable,
    clock,
    coloured,
    emit,
    hanging,
    stdout,
    table,
)
from unstuck.cli.warehouse.datasets import small_files_hint
from unstuck.client.find_job import find_job
from unstuck.coordinator.commands.alter import in_words
from unstuck.coordinator.explain.explanation import Explanation
from unstuck.coordinator.explain.stack_words import stack_lines
from unstuck.coordinator.model.status import Status
from unstuck.doctor.host_facts import small_files
from unstuck.read_model.job import JobInfo
from unstuck.tasks.duration import format_duration
from unstuck.tasks.errors import UnstuckError
from unstuck.tasks.process.call_deadlines import call_in_thread
from unstuck.tasks.protocol.failure import CUT
from unstuck.tasks.protocol.step_stack import StepStack
from unstuck.tasks.terminal_text import printable
from unstuck.views.jobs.job_pictures import graph_of_job
from unstuck.views.jobs.job_views import timeout_revisions_after_claim
from unstuck.views.words import count_of, first_line, one_line

STACKS_SHOWN = 5  # groups whose stacks are printed
FAILED_SHOWN = 5  # groups whose errors are printed
WAREHOUSE_WITHIN = 1.0  # seconds to read the warehouse, whose server may be away


def show(
    job: LookArgument,
    diff: Annotated[
        bool,
        typer.Option(
            "--diff", help="The altered values, and the revision that each group ran with."
        ),
    ] = False,
    as_yaml: Annotated[
        bool,
        typer.Option(
            "--yaml", help="Its spec alone, as YAML; JOB may be a job in Python, as module:job."
        ),
    ] = False,
    graph: Graph = None,
    as_json: AsJson = False,
) -> None:
    """Show all details of one job, and the errors of its groups."""
    if as_yaml:
        sys.stdout.write(_spec_text(job))
        return
    with connected() as connection:
        view = connection.client.show(
            find_job(connection.client, job, by_key=True), why=graph is None
        )
    if graph is not None:
        write_picture(graph_of_job(view), graph)
        return
    if as_json:
        emit(view)
        return
    if diff:
        for line in diff_lines(view):
            stdout.print(line, soft_wrap=True)
        return
    stdout.print(job_tree(view, view.at))
    stdout.print()
    stdout.print(_facts(view))
    for text in (*stacks_of(view), *errors_of(view)):
        stdout.print(text)
    for hint in _small_inputs(view):
        stdout.print(hint, soft_wrap=True)


def _small_inputs(view: JobInfo) -> list[str]:
    """Return hints for inputs that are slow to read; none if the warehouse cannot be reached."""
    if not view.reads:
        return []
    future = call_in_thread(partial(small_files, view.warehouse), "small files")
    with suppress(OSError, ValueError, UnstuckError):
        file_counts = future.result(WAREHOUSE_WITHIN)
        return [
            small_files_hint(name, file_counts[name]) for name in view.reads if name in file_counts
        ]
    return []


def diff_lines(job: JobInfo) -> Iterator[Text]:
    """List the altered values, and which groups ran with which revision."""
    if not job.alterations:
        yield Text(f"job {job.id} was never altered")
        return
    for number, alteration in enumerate(job.alterations, 1):
        why = f": {alteration.reason}" if alteration.reason else ""
        yield Text.assemble(
            (f"revision {number}", "bold"),
            f"  {clock(alteration.at)} by {printable(alteration.by + why)}",
        )
        for change in alteration.changes:
            old, new = (
                printable(in_words(change.path, value)) for value in (change.old, change.new)
            )
            yield Text.assemble(f"  {change.path}  ", (old, "red"), " → ", (new, "green"))
    for member in job.claimed:
        revision = member.revision
        with_ = (
            "as it is now"
            if revision == job.revision
            else f"revision {revision}"
            if revision
            else "as submitted"
        )
        if later := timeout_revisions_after_claim(job, member):
            with_ += f", and since then the timeout of revision {later[-1]}"
        yield Text.assemble(
            (member.id, "bold"), " ", coloured(member.state), f"  ran with the spec {with_}"
        )


def _spec_text(job: str) -> str:
    """Return the spec of a job in the store, or of a job in Python, as YAML."""
    import yaml

    if JOB_IN_PYTHON.fullmatch(job):
        written = read_spec(Path(job), None, unfinished=True).dumped()
    else:
        with connected() as connection:
            written = connection.client.written(find_job(connection.client, job, by_key=True))
    return yaml.safe_dump(written, sort_keys=False, allow_unicode=True)


def _facts(job: JobInfo) -> TextTable:
    times = {"submitted": job.submitted_at, "started": job.started_at, "ended": job.ended_at}
    facts = {
        **{what: clock(at) for what, at in times.items()},
        "by": job.submitted_by,
        "key": job.key,
        "params": ", ".join(f"{name}={value}" for name, value in job.params.items()),
        "retry of": job.retry_of,
        "altered": f"{count_of(job.revision, 'time')}: unstuck show {job.id} --diff"
        if job.revision
        else "",
        "intent": str(job.intent),
        "phase": job.phase,
        "reason": _rest_of_reason(job),
        "damage": job.damage,
        "looked at": _due(job),
        "warehouse": job.warehouse,
        "time zone": ", ".join(job.zones),
        "published": ", ".join(
            f"{name} ({count_of(rows, 'row')})" for name, rows in sorted(job.published.items())
        ),
        "version": str(job.version or ""),
        "replaced": "; ".join(
            f"{name}: {replacement.text()}" for name, replacement in sorted(job.replaced.items())
        ),
    }
    listing = table("", "")
    for what, text in facts.items():
        if text:
            listing.add_row(Text(what, "dim"), one_line(text))
    return listing


def _rest_of_reason(view: JobInfo) -> str:
    """Return the whole reason, unless the line above the tree or an error below contains it."""
    text = view.reason.text if view.reason else ""
    if view.status is Status.FINISHED:  # the line above the tree says nothing of it
        return text
    return (
        ""
        if (first_line(text) == one_line(text) and view.terminal) or any(errors_of(view))
        else text
    )


def _due(view: JobInfo) -> str:
    if view.due_at is None or view.terminal:
        return ""
    wait = view.due_at - view.at
    return (
        f"again in {format_duration(wait)} at the latest"
        if wait > 0
        else f"again now (due for {-wait:.1f}s)"
    )


def errors_of(view: JobInfo) -> Iterator[Text]:
    """Return the first and last error of each failed or recovering group, a few of them in full."""
    for member in view.failed[:FAILED_SHOWN]:
        yield Text.assemble(
            "\n", (member.id, "bold"), " ", coloured(member.state), f" in attempt {member.attempt}"
        )
        for what, error in member.errors.items():
            text, trace = printable(error.text.rstrip()), printable(error.traceback.rstrip())
            # Python ends a traceback with the error.
            text = "" if all(part in trace for part in text.split(CUT)) else f" {text}"
            yield Text.assemble((f"  {what}: ", "dim"), (error.code, "red"), text)
            if trace:
                yield Text(indent(trace, "    "), "dim")
    if more := view.failed[FAILED_SHOWN:]:
        yield Text(
            f"\n… and {len(more)} more groups with errors: unstuck show {view.id} --json", "dim"
        )


def why(job: LookArgument, as_json: AsJson = False) -> None:
    """Explain what a job waits for: since when, what was tried, and what happens next.

    Also shows what would help. Neighbouring groups with the same explanation are shown together.
    """
    with connected() as connection:
        explanations = connection.client.explain(find_job(connection.client, job, by_key=True))
    if as_json:
        emit(explanations)
        return
    for (state, lines), alike in groupby(
        explanations, lambda explanation: (explanation.state, _explained(explanation))
    ):
        subjects = ", ".join(explanation.subject for explanation in alike)
        stdout.print(
            Text.assemble((subjects, "bold"), f"  {state}" if state else ""), soft_wrap=True
        )
        for label, text in lines:
            line = Text(f"  {label:<8}{printable(text.strip())}")
            stdout.print(line if label == "try" else hanging(stdout, line, 10), soft_wrap=True)


def stacks_of(view: JobInfo) -> Iterator[Text]:
    """Return the current lines of code of long-running steps, a few of them."""
    stacks = {
        subject: explanation.stack
        for subject, explanation in view.explanations.items()
        if explanation.stack is not None
    }
    for subject, stack in islice(stacks.items(), STACKS_SHOWN):
        yield Text.assemble("\n", (subject, "bold"), f" stands {printable(stands_in_lines(stack))}")


def stands_in_lines(stack: StepStack) -> str:
    """Return the stack of a step, one line for each frame."""
    sampled = f"as seen {clock(stack.at)}"
    since = f"at the same lines since {clock(stack.since)}, {sampled}" if stack.stood else sampled
    return "\n  ".join([since, *stack_lines(stack)])


def _explained(explanation: Explanation) -> list[tuple[str, str]]:
    lines = {
        "why": explanation.what,
        "since": clock(explanation.since),
        "tried": explanation.tried,
        "stands": "" if explanation.stack is None else stands_in_lines(explanation.stack),
        "next": f"{clock(explanation.next.at)}: {explanation.next.what}"
        if explanation.next.at
        else explanation.next.what,
        "ends": f"{explanation.ends.what}, at {clock(explanation.ends.at)}"
        if explanation.ends.what and explanation.ends.at
        else explanation.ends.what,
    }
    return [
        *((label, text) for label, text in lines.items() if text),
        *(("try", command) for command in explanation.help),
    ]
