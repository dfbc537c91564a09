"""Promise 4: every wait has an explanation: what for, since when, what happens next and when, and what would help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from guarantees.test_every_wait_ends import listening
from guarantees.test_the_users_word import STATES, backoff, half_a_fork, running
from head import SUCCEEDED, Head, failed, group, join

from coordinator.commands import Command
from coordinator.decide import decide
from coordinator.decision import World
from coordinator.explain import Explanation
from coordinator.status import Status


def why(head: Head, job: str) -> dict[str, Explanation]:
    return {one.subject: one for one in head.client.explain(job)}


def test_a_queue_that_nobody_listens_to_is_named_with_the_command_that_helps(head: Head) -> None:
    job = head.submit(group("a", queue="heavy"))
    head.read()
    found = why(head, job)["a"]
    assert (found.state, found.what) == ("QUEUED", "queue heavy: no worker listens on it")
    assert found.help == ("celery -A tasks worker -Q heavy",)
    assert found.next_at == head.show(job).groups[0].members[0].record.hinted_at + head.settings.dispatch_timeout
    listening(head, "heavy", 3)
    assert "3 runners listen" in why(head, job)["a"].what


def test_a_group_in_backoff_says_why_when_and_how_often_it_was_tried(head: Head) -> None:
    job = backoff(head)
    found = why(head, job)
    assert "tried again" in found[job].what
    record = head.show(job).groups[0].members[0].record
    assert found["a"].next_at == record.next_at
    assert "retry 1 of 3" in found["a"].what
    assert "first error: STEP_FAILED: it broke" in found["a"].tried
    assert found["b"].what == "all_succeeded: 1 of 1 not done; waits for a (BACKOFF)"


def test_a_join_with_3_of_5_branches_done_names_the_two(head: Head) -> None:
    job = head.submit(*(group(name) for name in "abcde"), join("j", *"abcde"))
    head.read()
    for hint in head.hints()[:3]:
        head.work(hint)
    head.read()
    assert why(head, job)["j"].what == "all_succeeded: 2 of 5 not done; waits for d (QUEUED), e (QUEUED)"


def test_a_fork_that_is_not_expanded_and_one_that_has_no_room_say_so(head: Head) -> None:
    job = head.submit(
        group("a"), group("f", "a", for_each={"n": {"from": "a.n"}}), join("end", "f"), max_parallel=2, name="forks"
    )
    head.read()
    assert "forks not yet expanded" in why(head, job)["end"].what
    head.work(head.hints()[0], replace(SUCCEEDED, forks={"a.n": [1, 2, 3, 4, 5]}))
    head.read()
    found = why(head, job)
    assert found["f"].what == "3 members: it may go; max_parallel: 2 are running"
    assert found["end"].what == "all_succeeded: 5 of 5 not done; waits for f (0 of 5 done)"


def test_a_job_in_canceling_whose_worker_is_gone_says_when_it_ends_without_it(head: Head) -> None:
    job = running(head)
    head.client.cancel(job, by="ada")
    head.read()
    found = why(head, job)
    assert found[job].what == "ada asked for cancel; 1 attempts have not ended yet"
    assert found[job].help == (f"unstuck force-stop {job}",)
    assert "was told to end" in found["a"].what
    assert "1m00s after the cancel" in found["a"].gives_up


def test_a_paused_job_says_who_paused_it_and_how_to_go_on(head: Head) -> None:
    job = half_a_fork(head)
    for hint in head.hints():
        head.work(hint)
    head.client.pause(job, by="ada", reason="the disk is full")
    head.read()
    found = why(head, job)[job]
    assert (found.state, found.what) == ("PAUSED", "ada paused it (the disk is full)")
    assert f"unstuck resume {job}" in found.help
    assert why(head, job)["w"].what.endswith("it may go, but pause was asked for")


def test_an_ended_job_tells_how_it_came_to_end_so(head: Head) -> None:
    job = head.submit(group("a", retry={"max": 0}))
    head.read()
    head.work(head.hints()[0], failed())
    head.read()
    (found,) = head.client.explain(job)
    assert found.state == "FAILED"
    assert "group a failed: STEP_FAILED: it broke" in found.what
    assert f"unstuck logs {job}" in found.help


def test_a_job_that_nobody_looks_at_says_so(make_head: Callable[..., Head]) -> None:
    head = make_head()
    job = head.submit(group("a"))
    head.redis.zadd(head.keys.due, {job: head.show(job).at - 60})
    assert "is a coordinator running?" in why(head, job)[job].what


def test_whatever_is_not_done_is_explained_in_every_state_and_under_every_command(head: Head) -> None:
    for given in (None, *Command):
        for state in STATES:
            job = state(head)
            head.hints()
            if given is not None:
                head.client.command(job, given)
                head.read()
            view, found = head.client.show(job, why=True), why(head, job)
            assert found[job].what
            assert "\n" not in view.why_line(job)
            assert view.why_line(job)
            assert "unknown" not in str(found)
            if view.job.status.terminal:
                continue
            for fork in view.groups:
                subjects = {fork.name, *(member.id for member in fork.members)}
                if any(not _done(s) for s in fork.census):
                    assert subjects & set(found), f"{fork.name} of a job in {view.job.status} is not explained"
                    assert view.why_fork(fork), f"{fork.name} of a job in {view.job.status} has no line"


def _done(state: str) -> bool:
    return state in ("SUCCEEDED", "FAILED", "CANCELED", "SKIPPED")


def test_every_wait_has_a_line_and_a_wait_for_a_time_counts_down(head: Head) -> None:
    job = backoff(head)
    view = head.client.show(job, why=True)
    at = view.why["a"].next_at
    assert view.why_line("a", at - 12).startswith("attempt 2 in 12s: STEP_FAILED: it broke")
    assert view.why_line("a", at + 1).startswith("attempt 2 now: STEP_FAILED")
    assert view.why_line("b") == "waits for a (BACKOFF)"
    assert view.why_line(job) == "a recovers (backoff, attempt 1) after: it broke"
    job = head.submit(group("a", queue="heavy"))
    head.read()
    view = head.client.show(job, why=True)
    assert view.why_line("a") == "queue heavy: no worker listens on it"
    assert view.why_line(job) == "waits for a (QUEUED)"


def test_a_hint_that_nobody_takes_becomes_the_line_of_its_job(head: Head) -> None:
    job = head.submit(group("a", queue="heavy"))
    head.read()
    record = head.show(job).groups[0].members[0].record
    head.redis.hset(head.keys.of(job).groups, "a", replace(record, since=record.since - 60).to_json())
    assert head.client.show(job, why=True).why_line(job) == "a: queue heavy: no worker listens on it"


def test_of_a_wide_fork_the_member_in_trouble_is_explained_though_only_some_are(head: Head) -> None:
    job = head.submit(group("w", for_each={"n": list(range(60))}, retry={"max": 3, "backoff": "60s"}))
    head.read()
    hint = next(hint for hint in head.hints() if hint.group == "w[50]")
    head.work(hint, failed())
    head.read()
    view = head.client.show(job, why=True, members=8)
    assert view.why_line("w[50]").startswith("attempt 2 in ")
    assert len(view.why) == 9  # eight members, and the job
    assert len(head.client.show(job, why=True).why) == 61


def test_explaining_changes_nothing_that_deciding_sees(head: Head) -> None:
    job = half_a_fork(head)
    one, two = head.store.load(job), head.store.load(job)
    assert one is not None
    assert two is not None
    from coordinator.explain import explain

    world = World(now=head.show(job).at, nonce="n")
    explain(one, world, None)
    first, second = decide(one, None, world), decide(two, None, world)
    assert (first.groups, first.events, first.due) == (second.groups, second.events, second.due)
    assert head.status(job) is Status.RUNNING
