"""Promise 4: every wait has an explanation: what for, since when, what happens next and when, and
what would help.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.guarantees.every_wait_ends.test_waits import listening
from tests.guarantees.users_word_is_final.test_commands import STATES, backoff, half_a_fork, running
from tests.support.coordinator import SUCCEEDED, Coordinator, failed, group, join
from tests.support.servers import wait_until
from unstuck import Status
from unstuck.coordinator.commands.job_commands import INTENTS
from unstuck.coordinator.decide.decide import decide
from unstuck.coordinator.explain.explanation import Explanation
from unstuck.coordinator.model.decision import Environment
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.status import Intent
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind


def why(coordinator: Coordinator, job: str) -> dict[str, Explanation]:
    return {one.subject: one for one in coordinator.client.explain(job)}


@pytest.mark.claim("`unstuck why` explains every group and job that is not done.")
def test_a_queue_without_listeners_is_shown_with_the_command_to_run(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(group("a", queue="heavy"))
    coordinator.read()
    found = why(coordinator, job)["a"]
    assert (found.state, found.what) == ("QUEUED", "queue heavy: no worker listens on it")
    assert found.help == ("celery -A unstuck.tasks worker -Q heavy",)
    assert found.next.at == coordinator.show(job).due_at
    listening(coordinator, "heavy", 3)
    assert "3 runners listen" in why(coordinator, job)["a"].what


def test_a_queue_ignored_by_idle_runners_is_shown_with_their_worker(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator(stalled_after=0.3)
    job = coordinator.submit(group("a"))
    coordinator.read()
    coordinator.note_runner("r", heard=-60, idle_since=1.0)
    coordinator.redis.hset(
        coordinator.keys.processes, mapping={"odd": "no line of ours", "odder": "[]"}
    )
    coordinator.redis.lpush(coordinator.keys.queue("light"), "a wake-up, as Celery writes it")
    coordinator.heartbeat.beat(None, 0.0)  # whatever somebody wrote there
    found = wait_until(
        lambda: (now := why(coordinator, job)["a"]) and "idle" in now.what and now,
        10,
        "that to be said",
    )
    assert found.what.startswith(
        "queue light: 1 runner listens, and none has taken it yet; messages wait unread on queue"
    )
    assert "worker host-9:70" in found.what
    assert found.help[0] == "unstuck doctor"


@pytest.mark.claim("`unstuck why` explains every group and job that is not done.")
def test_a_queue_whose_runners_are_all_busy_shows_their_work(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(group("a"))
    coordinator.read()
    now = coordinator.redis.time()[0]

    coordinator.note_runner(
        "one", heard=-60, job="other", group="s[2]", attempt=1, claimed_at=now - 90
    )
    found = why(coordinator, job)["a"]
    assert "1 runner listens, and none has taken it yet; it is at work, for 1m3" in found.what
    assert found.what.endswith("on s[2] of job other")
    assert found.help[0] == "unstuck fleet"
    coordinator.note_runner(
        "two", heard=-60, job="other", group="s[3]", attempt=1, claimed_at=now - 30
    )
    assert "all 2 are at work, the longest for 1m3" in why(coordinator, job)["a"].what
    coordinator.note_runner("three", heard=-60)
    assert "at work" not in why(coordinator, job)["a"].what


def test_a_group_in_backoff_shows_reason_time_and_number_of_attempts(
    coordinator: Coordinator,
) -> None:
    job = backoff(coordinator)
    found = why(coordinator, job)
    assert "tried again" in found[job].what
    record = coordinator.show(job).groups[0].members[0]
    assert found["a"].next.at == record.next_at
    assert "retry 1 of 3" in found["a"].what
    assert "first error: STEP_FAILED: it broke" in found["a"].tried
    assert found["b"].what == "all_succeeded: 1 of 1 not done; waits for a (BACKOFF)"


def test_a_join_with_3_of_5_branches_done_names_the_missing_two(coordinator: Coordinator) -> None:
    job = coordinator.submit(*(group(name) for name in "abcde"), join("j", *"abcde"))
    coordinator.read()
    for offer in coordinator.offers()[:3]:
        coordinator.work(offer)
    coordinator.read()
    assert (
        why(coordinator, job)["j"].what
        == "all_succeeded: 2 of 5 not done; waits for d (QUEUED), e (QUEUED)"
    )


def test_a_fork_says_that_it_is_not_expanded_or_has_no_room(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(
        group("a"),
        group("f", "a", for_each={"n": {"from": "a.n"}}),
        join("end", "f"),
        max_parallel=2,
        name="forks",
    )
    coordinator.read()
    assert "forks not yet expanded" in why(coordinator, job)["end"].what
    coordinator.work(coordinator.offers()[0], replace(SUCCEEDED, forks={"a.n": [1, 2, 3, 4, 5]}))
    coordinator.read()
    found = why(coordinator, job)
    assert found["f"].what == "3 members: it may go; max_parallel: 2 are running"
    assert found["end"].what == "all_succeeded: 5 of 5 not done; waits for f (0 of 5 done)"


def test_a_canceling_job_with_a_lost_worker_shows_its_deadline(
    coordinator: Coordinator,
) -> None:
    job = running(coordinator)
    coordinator.client.cancel(job, by="ada")
    coordinator.read()
    found = why(coordinator, job)
    assert found[job].what == "ada asked for cancel; 1 attempt has not ended yet"
    assert found[job].help == (f"unstuck force-stop {job}",)
    assert "was told to end" in found["a"].what
    assert "1m00s after the cancel" in found["a"].ends.what


def test_a_running_group_shows_its_duration_and_usual_duration(
    coordinator: Coordinator,
) -> None:
    """Of the jobs of the same name that came before; one that failed, was adopted, or has another
    name says nothing.
    """

    def ran(job: str, seconds: float) -> None:
        """It began so many seconds before it ended, or before now."""
        keys = coordinator.keys.of(job)
        record = json.loads(coordinator.redis.hget(keys.groups, "a"))
        if record["state"] == "RUNNING":
            attempt = json.loads(coordinator.redis.hget(keys.attempts, "a"))
            attempt["claimed_at"] = coordinator.show(job).at - seconds
            coordinator.redis.hset(keys.attempts, "a", json.dumps(attempt))
        else:
            record["started_at"] = record["since"] - seconds
            coordinator.redis.hset(keys.groups, "a", json.dumps(record))

    def began(name: str) -> str:
        job = coordinator.submit(group("a"), name=name)
        coordinator.read()
        assert coordinator.claim(coordinator.offers(job)[0]).answer == "CLAIMED"
        coordinator.read()
        return job

    other = coordinator.submit(group("a"), name="weekly")
    coordinator.drive(other)
    ran(other, 1.0)
    job = began("nightly")
    ran(job, 86_400.0)
    assert "usually" not in why(coordinator, job)["a"].what, "it never ran before"

    for seconds in (1.0, 600.0, 900.0):
        earlier = coordinator.submit(group("a"), name="nightly")
        coordinator.drive(earlier)
        ran(earlier, seconds)
    broken = coordinator.submit(group("a", retry={"max": 0}), name="nightly")
    coordinator.read()
    coordinator.work(coordinator.offers(broken)[0], failed())
    coordinator.read()
    ran(broken, 1.0)

    job = began("nightly")
    ran(job, 1.0)
    assert "usually" not in why(coordinator, job)["a"].what, "it has only begun"
    pauses = f"unstuck pause {job} --now"
    for seconds, offered in ((2_350.0, False), (2_500.0, True)):
        ran(job, seconds)
        found = why(coordinator, job)["a"]
        assert re.search(
            r"it has run for (39|41)m\d\ds, and usually takes 10m00s \(3 runs before\)", found.what
        )
        assert (pauses in found.help) is offered, "from four times as long on it may hang"
    assert "attempt 1" in found.what


def test_a_paused_job_names_its_user_and_the_command_to_resume(coordinator: Coordinator) -> None:
    job = half_a_fork(coordinator)
    for offer in coordinator.offers():
        coordinator.work(offer)
    coordinator.client.pause(job, by="ada", reason="the disk is full")
    coordinator.read()
    found = why(coordinator, job)[job]
    assert (found.state, found.what) == ("PAUSED", "ada paused it (the disk is full)")
    assert f"unstuck resume {job}" in found.help
    assert why(coordinator, job)["w"].what.endswith("it may go, but pause was asked for")


def halted(coordinator: Coordinator, job: str) -> None:
    """As a coordinator leaves a job that it cannot decide."""
    coordinator.store.halt(
        job, Reason("UNDECIDABLE", "it could not be decided"), "halted", coordinator.show(job).at
    )


@pytest.mark.parametrize("held", ["paused", "halted"])
def test_a_paused_backoff_shows_no_next_attempt_before_the_resume(
    coordinator: Coordinator, held: str
) -> None:
    job = backoff(coordinator)
    if held == "paused":
        coordinator.client.pause(job, by="ada")
        coordinator.read()
    else:
        halted(coordinator, job)
    view = coordinator.client.show(job, why=True)
    assert view.status is (Status.PAUSED if held == "paused" else Status.HALTED)
    for at in (view.at, view.at + 86_400):
        assert view.why_line("a", at) == "attempt 2 when the job is resumed: STEP_FAILED: it broke"
    found = view.explanations["a"]
    assert (found.next.at, found.next.what) == (0.0, "attempt 2, when the job is resumed")
    assert (found.ends.what, found.ends.at) == ("a person decides", 0.0)
    assert f"unstuck resume {job}" in found.help
    assert f"unstuck resume {job}" in view.explanations["b"].help, "what waits for it"
    stood_since = view.intent_at if held == "paused" else view.paused_at
    assert view.explanations[job].since == stood_since > 0, (
        "who looks at it later sees how long it has stood"
    )
    coordinator.client.resume(job)
    coordinator.read()
    assert coordinator.show(job).groups[0].states == {"QUEUED": 1}, "as was said"


def test_an_offer_of_a_halted_job_is_not_shown_as_next_or_as_lacking_a_worker(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(group("a"))
    coordinator.read()
    halted(coordinator, job)
    found = why(coordinator, job)
    assert found["a"].what == "nobody may take it before a resume: the job is halted"
    assert (found["a"].next.at, found["a"].next.what) == (
        0.0,
        "it may be taken again, when the job is resumed",
    )
    assert found["a"].help == (f"unstuck resume {job}", f"unstuck cancel {job}")
    (offer,) = coordinator.offers()
    assert coordinator.claim(offer).answer == "REFUSED", "as was said"
    coordinator.client.resume(job)
    coordinator.read()
    assert coordinator.claim(offer, "runner2").answer == "CLAIMED", "as was said"


def test_an_untaken_offer_shows_when_it_is_repeated(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator(dispatch_timeout=0.5)
    job = coordinator.submit(group("a", queue="heavy"))
    coordinator.read()
    (lost,) = coordinator.offers()
    view = coordinator.client.show(job, why=True)
    said = view.explanations["a"].next
    assert said.what == "the job is looked at again; each sweep wakes idle runners"
    assert said.at == view.due_at
    since = view.groups[0].members[0].since
    assert since <= said.at - coordinator.settings.dispatch_timeout <= view.at
    over = False
    while not coordinator.sent:
        assert not over, "as was said"
        over = coordinator.show(job).at > said.at
        coordinator.sweep.run()
    assert coordinator.sent == [lost]
    assert coordinator.show(job).at >= said.at, "not before"


def test_a_wait_shows_its_start_and_its_next_check(coordinator: Coordinator) -> None:
    job = coordinator.submit(
        group("a"), group("b", "a"), group("c"), group("d", "a"), max_parallel=1, timeout="1h"
    )
    coordinator.read()
    view = coordinator.client.show(job, why=True)
    assert view.explanations[job].since == view.explanations["b"].since == view.submitted_at > 0
    assert view.explanations["b"].next.at == view.due_at
    assert view.explanations["b"].help == (f"unstuck cancel {job}",)
    coordinator.work(coordinator.offers()[0])
    coordinator.read()
    view = coordinator.client.show(job, why=True)
    ended = view.groups[0].members[0].since
    room = view.explanations["d"]
    assert room.what == "it may go; max_parallel: 1 are running"
    assert room.since == ended, "since then it could have gone"
    assert room.next.at == view.due_at
    assert room.ends.what.endswith("by the job's timeout of 1h00m")
    assert room.ends.at == coordinator.record(job).counted_from + 3600


def test_a_canceling_group_shows_its_latest_end(
    coordinator: Coordinator,
) -> None:
    job = running(coordinator)
    coordinator.client.cancel(job, by="ada")
    coordinator.read()
    view = coordinator.client.show(job, why=True)
    deadline = view.intent_at + coordinator.settings.cancel_deadline
    assert (
        view.explanations[job].ends.at
        == view.explanations["a"].ends.at
        == pytest.approx(deadline, abs=0.01)
    )
    assert view.explanations["a"].help == (f"unstuck logs {job} a -f", f"unstuck force-stop {job}")


def test_an_ended_job_explains_its_end(coordinator: Coordinator) -> None:
    job = coordinator.submit(group("a", retry={"max": 0}))
    coordinator.read()
    coordinator.work(coordinator.offers()[0], failed())
    coordinator.read()
    (found,) = coordinator.client.explain(job)
    assert found.state == "FAILED"
    assert "group a failed: STEP_FAILED: it broke" in found.what
    assert f"unstuck logs {job}" in found.help


def test_a_job_without_a_coordinator_says_so(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator()
    job = coordinator.submit(group("a"))
    coordinator.redis.zadd(coordinator.keys.due, {job: coordinator.show(job).at - 60})
    assert "is a coordinator running?" in why(coordinator, job)[job].what


def test_no_time_is_promised_while_no_coordinator_processes_jobs(
    coordinator: Coordinator,
) -> None:
    """Also right after a command, which makes the job due again."""
    job = coordinator.submit(group("a"), group("b", "a"))
    coordinator.read()
    coordinator.sweep.run()
    coordinator.redis.hincrbyfloat(coordinator.keys.alive, "at", -60)
    coordinator.client.cancel(job, by="ada")
    found = why(coordinator, job)
    assert "no coordinator has looked at any job for 1m0" in found[job].what
    assert found[job].help[0] == "celery -A unstuck.coordinator worker -P threads"
    for one in found.values():
        assert (one.next.at, one.ends.at) == (0.0, 0.0)
        assert one.next.what.startswith("as soon as a coordinator looks: ")
    coordinator.sweep.run()
    assert "no coordinator" not in why(coordinator, job)[job].what


def test_a_fleet_with_rare_sweeps_counts_as_working_between_sweeps(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """The shell that asks need not know how often its fleet sweeps."""
    job = make_coordinator().submit(group("a"))
    seldom, shell = make_coordinator(sweep_every=12.0, lease_ttl=60.0), make_coordinator()
    seldom.read()
    seldom.sweep.run()
    seldom.redis.hincrbyfloat(
        seldom.keys.alive, "at", -25
    )  # without beat they come after two periods
    seldom.redis.zadd(seldom.keys.due, {job: shell.show(job).at - 25})
    found = why(shell, job)
    assert "coordinator" not in found[job].what
    assert found["a"].next.at > 0
    seldom.redis.hincrbyfloat(seldom.keys.alive, "at", -25)
    seldom.redis.zadd(seldom.keys.due, {job: shell.show(job).at + 5})
    assert "no coordinator has looked at any job for 50" in why(shell, job)[job].what


def test_a_requeued_group_shows_its_previous_outcome(
    coordinator: Coordinator,
) -> None:
    job = running(coordinator)
    offer = coordinator.offer_of(job, "a")
    lost = Outcome(
        OutcomeKind.LOST, failure=Failure("WORKER_LOST", "it was killed by signal SIGKILL")
    )
    coordinator.finish(offer.held_by("runner1"), lost)
    coordinator.read()
    if coordinator.show(job).groups[0].members[0].state == "BACKOFF":
        wait_until(
            lambda: (
                coordinator.sweep.run()
                or coordinator.show(job).groups[0].members[0].state == "QUEUED"
            ),
            10,
            "its retry",
        )
    found = why(coordinator, job)["a"]
    assert "this is attempt 2" in found.tried
    assert "WORKER_LOST: it was killed by signal SIGKILL" in found.tried


def test_a_job_that_lost_every_worker_shows_poison_and_the_error_of_the_user(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(group("a", worker_losses=1, retry={"max": 1, "backoff": "0s"}))
    coordinator.read()
    coordinator.work(coordinator.offers()[0], failed())
    coordinator.read()
    wait_until(lambda: coordinator.sweep.run() or bool(coordinator.sent), 10, "its retry")
    lost = Outcome(
        OutcomeKind.LOST, failure=Failure("WORKER_LOST", "it was killed by signal SIGKILL")
    )
    coordinator.work(coordinator.offers()[0], lost)
    coordinator.read()
    said = why(coordinator, job)[job].what
    assert "group a failed: POISON: 1 worker was lost under this group" in said
    assert "its first error: STEP_FAILED: it broke" in said


def test_an_immediate_pause_is_shown_as_immediate(coordinator: Coordinator) -> None:
    job = running(coordinator)
    coordinator.client.pause(job, by="ada", now=True, reason="the disk is full")
    coordinator.read()
    found = why(coordinator, job)
    assert "1 attempt is being interrupted" in found[job].what
    assert "told to hand it back" in found["a"].what
    offer = coordinator.offer_of(job, "a")
    handed_back = Outcome(
        OutcomeKind.RELEASED,
        failure=Failure("RELEASED", "killed, while its worker was told to stop"),
    )
    coordinator.finish(offer.held_by("runner1"), handed_back)
    coordinator.read()
    events = [event for _, event in coordinator.client.events(job)]
    assert [e["text"] for e in events if e["kind"] == "USER_PAUSE"] == [
        "now, interrupting what runs: the disk is full"
    ]
    released = [e["text"] for e in events if e.get("code") == "RELEASED"]
    assert released == ["interrupted by a pause that did not wait, and handed back"]


AGAIN = "all groups are checked again, also for lost workers"
HELD = "all groups are checked again, and nothing is started before a resume"
NEEDS = "what it needs is looked at again"
LOST = "the worker counts as lost if nothing was heard of it by then"
HEARD = r"worker host:runner1 runs attempt 1; last heard of \S+ ago"
# By what the user wants: what a job or a group waits for, what happens next, when it gives up.
SAID = {
    Intent.RUN: {
        r"(2 of 2|697 of 701) groups are not done": (AGAIN, "when its groups do"),
        r"2 of 2 groups are not done; 1 failed or was lost and is tried again": (
            AGAIN,
            "when its groups do",
        ),
        r"it may go, and is queued when the job is looked at next": (
            "it is queued",
            "never by itself: it goes when it has room",
        ),
        r"686 members: it may go; max_parallel: 10 are running": (
            "it is queued as soon as one of them ends or is claimed",
            "never by itself: it goes when it has room",
        ),
        (
            r"all_succeeded: (1 of 1|696 of 700) not done; waits for (a \([A-Z]+\)|w \(4 of 700 "
            r"done\))"
        ): (
            NEEDS,
            "when its join can no longer be satisfied",
        ),
        r"queue light: no worker listens on it": (
            "the job is looked at again; each sweep wakes idle runners",
            "never by itself: a worker may come at any time",
        ),
        HEARD: (LOST, "no timeout is set"),
        r"it broke \(retry 1 of 3 in 5m00s\)": (
            "attempt 2",
            "after 3 retries, or 3 workers lost in a row",
        ),
    },
    Intent.PAUSE: {
        r"ada paused it(; 1 attempt is still running and may end)?": (HELD, "a person decides"),
        r"(696 members: )?it may go, but pause was asked for": (
            "it is queued when the job is resumed",
            "a person decides",
        ),
        (
            r"all_succeeded: (1 of 1|696 of 700) not done; waits for (a \([A-Z]+\)|w \(4 of 700 "
            r"done\))"
        ): (
            NEEDS,
            "a person decides",
        ),
        HEARD: (LOST, "no timeout is set"),
        r"it broke; it is tried again when the job is resumed": (
            "attempt 2, when the job is resumed",
            "a person decides",
        ),
    },
    Intent.STOP: {
        r"ada asked for stop; 1 attempt has not ended yet": (
            AGAIN,
            "when they have ended; they are not interrupted",
        ),
        HEARD: (LOST, "no timeout is set"),
        r"stopped by the user; nothing was published; ada asked for stop": (
            "",
            "it has ended; this is final",
        ),
    },
    Intent.CANCEL: {
        r"ada asked for cancel; 1 attempt has not ended yet": (
            AGAIN,
            "at the deadline, 1m00s after it was asked",
        ),
        rf"{HEARD}, and was told to end": (
            LOST,
            "at the deadline, 1m00s after the cancel was asked for",
        ),
        r"canceled by the user; nothing was published; ada asked for cancel": (
            "",
            "it has ended; this is final",
        ),
    },
    Intent.FORCE_STOP: {
        r"stopped by force; nothing was published; ada asked for force_stop": (
            "",
            "it has ended; this is final",
        ),
    },
}


def came_there(coordinator: Coordinator, job: str, one: Explanation) -> float:
    """By the log of events: since when the job or the group has been where it is."""
    record, events = (
        coordinator.show(job),
        [event for _, event in coordinator.client.events(job)],
    )
    of_job = {event["kind"]: event["at"] for event in events if "group" not in event}
    if one.subject != job:
        of_group = [event["at"] for event in events if event.get("group") == one.subject]
        return float(of_job["SUBMITTED"] if one.state == "WAITING" else of_group[-1])
    if record.status.terminal:
        return float(of_job[record.status])
    if record.intent is not Intent.RUN:
        return float(of_job[f"USER_{record.intent.name}"])
    return float(
        min(
            (event["at"] for event in events if event["kind"] == "RUNNING"),
            default=of_job["SUBMITTED"],
        )
    )


@pytest.mark.claim("`unstuck why` explains every group and job that is not done.")
@pytest.mark.parametrize("given", [None, *INTENTS])
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_every_unfinished_group_is_explained_in_every_state_and_command(
    coordinator: Coordinator, given: str | None, state: Callable[[Coordinator], str]
) -> None:
    job = state(coordinator)
    coordinator.offers()
    if given is not None:
        coordinator.client.command(job, given, by="ada")
        coordinator.read()
    view, found = coordinator.client.show(job, why=True), why(coordinator, job)
    assert job in found
    for one in found.values():
        said = [told for what, told in SAID[view.intent].items() if re.fullmatch(what, one.what)]
        assert said == [(one.next.what, one.ends.what)], one
        assert one.since == pytest.approx(came_there(coordinator, job, one), abs=1e-4), (
            one
        )  # as events are rounded
        assert not one.next.at or one.next.at >= view.at, one
        assert view.intent is Intent.FORCE_STOP or one.help, one
    assert "\n" not in view.why_line(job)
    assert view.why_line(job)
    if view.status.terminal:
        return
    for fork in view.groups:
        subjects = {fork.name, *(member.id for member in fork.members)}
        if any(not _done(s) for s in fork.states):
            assert subjects & set(found), f"{fork.name} of a job in {view.status} is not explained"
            assert view.why_group(fork, view.at), (
                f"{fork.name} of a job in {view.status} has no line"
            )


# When the job gives up, what is said of its running attempt, and what becomes of that.
ORDERED = {
    "stop": (
        "when they have ended; they are not interrupted",
        "",
        LOST,
        "no timeout is set",
        "RUNNING",
    ),
    "cancel": (
        "at the deadline, 1m00s after it was asked",
        ", and is told to end",
        LOST,
        "at the deadline, 1m00s after the cancel was asked for",
        "CANCELING",
    ),
    "force-stop": (
        "when it is looked at next",
        "; force_stop was asked for, and it can change nothing any more",
        "it is ended",
        "when the job is looked at next",
        "CANCELED",
    ),
}


@pytest.mark.claim("`unstuck why` explains every group and job that is not done.")
@pytest.mark.parametrize("given", ORDERED)
def test_a_pending_command_explains_every_group_and_its_latest_end(
    coordinator: Coordinator, given: str
) -> None:
    whole, *attempt, becomes = ORDERED[given]
    retry = {"max": 3, "backoff": "1h", "jitter": 0}
    job = coordinator.submit(
        group("runs"),
        group("fails", retry=retry),
        group("lies", queue="heavy"),
        group("waits", "runs"),
    )
    coordinator.read()
    offers = {offer.group: offer for offer in coordinator.offers()}
    coordinator.claim(offers["runs"])
    coordinator.work(offers["fails"], failed())
    coordinator.read()
    coordinator.client.command(job, given, by="ada")

    view = coordinator.client.show(job, why=True)
    assert view.due_at is not None
    asked = given.replace("-", "_")
    deadline = view.intent_at + coordinator.settings.cancel_deadline
    at = {"stop": 0.0, "cancel": deadline, "force-stop": max(view.due_at, view.at)}[given]
    found = view.explanations[job]
    assert found.what == f"ada asked for {asked}; 2 attempts have not ended yet"
    assert (found.next.what, found.ends.what, found.since) == (AGAIN, whole, view.intent_at)
    assert found.ends.at == pytest.approx(at, abs=0.01)
    found = view.explanations["runs"]
    assert re.fullmatch(HEARD + re.escape(attempt[0]), found.what)
    assert [found.next.what, found.ends.what] == attempt[1:]
    assert found.ends.at == pytest.approx(at, abs=0.01)
    for name in ("fails", "lies", "waits"):
        found = view.explanations[name]
        assert found.what == f"{asked} was asked for; it is canceled when the job is looked at next"
        assert found.next.what == "it is canceled, when the job is looked at next"
        assert found.ends.what == "when the job is looked at next"
        assert found.next.at == found.ends.at == pytest.approx(max(view.due_at, view.at), abs=0.01)
        assert found.since == pytest.approx(came_there(coordinator, job, found), abs=1e-4)

    coordinator.read()
    left = {planned.name: planned.states for planned in coordinator.show(job).groups}
    ended = {name: {"CANCELED": 1} for name in ("fails", "lies", "waits")}
    assert left == {"runs": {becomes: 1}, **ended}, "as was said"


def _done(state: str) -> bool:
    return state in ("SUCCEEDED", "FAILED", "CANCELED", "SKIPPED")


def test_every_wait_has_a_line_and_timed_waits_count_down(coordinator: Coordinator) -> None:
    job = backoff(coordinator)
    view = coordinator.client.show(job, why=True)
    at = view.explanations["a"].next.at
    assert view.why_line("a", at - 12).startswith("attempt 2 in 12s: STEP_FAILED: it broke")
    assert view.why_line("a", at + 1).startswith("attempt 2 now: STEP_FAILED")
    assert view.why_line("b") == "waits for a (BACKOFF)"
    assert view.why_line(job) == "a is tried again (backoff, attempt 1) after: it broke"
    job = coordinator.submit(group("a", queue="heavy"))
    coordinator.read()
    view = coordinator.client.show(job, why=True)
    assert view.why_line("a") == "queue heavy: no worker listens on it"
    assert view.why_line(job) == "waits for a (QUEUED)"


def test_an_untaken_offer_is_the_summary_line_of_its_job(coordinator: Coordinator) -> None:
    job = coordinator.submit(group("a", queue="heavy"))
    coordinator.read()
    record = coordinator.state(job).record("a")
    coordinator.redis.hset(
        coordinator.keys.of(job).groups, "a", replace(record, since=record.since - 60).to_json()
    )
    assert (
        coordinator.client.show(job, why=True).why_line(job)
        == "a: queue heavy: no worker listens on it"
    )


def test_a_problem_member_of_a_wide_fork_is_always_explained(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(
        group("w", for_each={"n": list(range(60))}, retry={"max": 3, "backoff": "60s"})
    )
    coordinator.read()
    offer = next(offer for offer in coordinator.offers() if offer.group == "w[50]")
    coordinator.work(offer, failed())
    coordinator.read()
    view = coordinator.client.show(job, why=True, members=8)
    assert view.why_line("w[50]").startswith("attempt 2 in ")
    assert len(view.explanations) == 9  # eight members, and the job
    assert len(coordinator.client.show(job, why=True).explanations) == 61


def test_running_members_of_a_wide_fork_are_explained_before_queued_ones(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(group("w", for_each={"n": list(range(30))}))
    coordinator.read()
    claimed = {"w[3]", "w[22]", "w[29]"}
    for offer in coordinator.offers():
        if offer.group in claimed:
            coordinator.claim(offer)
    coordinator.read()
    shown = [one for one in coordinator.client.explain(job) if one.subject.startswith("w[")]
    assert [one.subject for one in shown[:3]] == ["w[3]", "w[22]", "w[29]"]
    assert [one.state for one in shown] == ["RUNNING"] * 3 + ["QUEUED"] * 17


def test_explaining_does_not_change_later_decisions(coordinator: Coordinator) -> None:
    job = half_a_fork(coordinator)
    one, two = coordinator.store.load(job), coordinator.store.load(job)
    assert one is not None
    assert two is not None
    from unstuck.coordinator.explain.job import explain

    env = Environment(now=coordinator.show(job).at, nonce="n")
    explain(one, env, None)
    first, second = decide(one, None, env), decide(two, None, env)
    assert (first.groups, first.events, first.due) == (second.groups, second.events, second.due)
    assert coordinator.status(job) is Status.RUNNING
