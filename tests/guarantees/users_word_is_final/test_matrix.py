"""Promise 3, generated: every command and every failure in every situation that can be reached, and
the tables' moves.

The situations are found by exploring (``support/jobs/state_space.py``) from the submitted job on,
breadth first, what is new before what has been met. Each failure names the steps that lead to it;
``SmallWorld(spec).play(*steps)`` goes there.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import count

import pytest

from tests.support.jobs.invariants import Seen
from tests.support.jobs.sample_jobs import SPECS, WITHOUT_OUTPUT
from tests.support.jobs.state_space import COMMANDS, HALT, LOOK, WAIT, SmallWorld, Step
from unstuck import Status
from unstuck.coordinator import command_table
from unstuck.coordinator.command_table import Answer, TargetKind
from unstuck.coordinator.model.status import (
    GROUP_MOVES,
    GROUP_MOVES_REQUESTED,
    JOB_MOVES,
    PHASE_MOVES,
    GroupState,
    Intent,
)

pytestmark = pytest.mark.variant

S = GroupState
EXPANDED = 450  # worlds of each spec from which every step is tried
COMMANDS_GIVEN = 3  # in one history
BY_A_USER = {"command", "skip", "rerun", "alter", "halt"}
WANTED = {
    "pause": Status.PAUSED,
    "stop": Status.STOPPED,
    "cancel": Status.CANCELED,
    "force-stop": Status.CANCELED,
}
ENDS = (
    "succeed",
    "obey",
    "fail",
    "gone",
    "hang",
)  # what runners do while a command is brought about
BOUNDED = ("cancel", "force-stop")  # they wait for no runner beyond the deadline
PAUSE, CANCEL = Step("command", "pause"), Step("command", "cancel")
FAILURES = ("failed", "failed for good", "timed out", "lost", "released", "lapse", "never claimed")


def _claim(group: str) -> Step:
    return Step("claim", group)


def _ends(group: str, how: str) -> Step:
    return Step("finish", group, how)


# In the tables, and not to be reached in a job as small as these.
NOT_REACHED = {
    (
        S.CANCELED,
        S.WAITING,
    ): "a job whose members are being canceled ends in the same commit, unless these are over 500",
    (
        Status.PAUSING,
        Status.RETRYING,
    ): "a resume renews all budgets; only in the middle of a rerun of over 500",
}
# Histories too long to be found breadth first, for moves that nothing shorter makes.
LONG = {
    "a member that failed, run again": (
        "optional",
        [
            LOOK,
            _claim("w[0]"),
            _ends("w[0]", "failed for good"),
            LOOK,
            PAUSE,
            LOOK,
            Step("rerun", "w[0]"),
            LOOK,
        ],
    ),
    "a member that succeeded, run again": (
        "fork",
        [
            LOOK,
            _claim("w[0]"),
            _ends("w[0]", "succeeded"),
            LOOK,
            PAUSE,
            LOOK,
            Step("rerun", "w[0]"),
            LOOK,
        ],
    ),
    "resumed with nothing in recovery": (
        "fork",
        [
            LOOK,
            _claim("w[0]"),
            _ends("w[0]", "succeeded"),
            LOOK,
            PAUSE,
            LOOK,
            Step("command", "resume"),
            LOOK,
        ],
    ),
    "a job without outputs that was done while it was paused": (
        "alone",
        [
            LOOK,
            _claim("a"),
            PAUSE,
            LOOK,
            _ends("a", WITHOUT_OUTPUT),
            LOOK,
            Step("command", "resume"),
            LOOK,
        ],
    ),
    "resumed after it was halted": (
        "fork",
        [
            LOOK,
            _claim("w[0]"),
            _ends("w[0]", "succeeded"),
            LOOK,
            HALT,
            Step("command", "resume"),
            LOOK,
        ],
    ),
    "resumed after it was halted, in the middle of a rerun": (
        "others",
        [
            *(LOOK, _claim("a"), _claim("b"), _ends("a", "succeeded"), _ends("b", "failed"), LOOK),
            *(HALT, Step("rerun", "a"), Step("command", "resume"), LOOK),
        ],
    ),
    "a group that nobody takes in time": ("impatient", [LOOK, WAIT, LOOK]),
    "a member that runs, run again": (
        "optional",
        [
            LOOK,
            _claim("w[0]"),
            _ends("w[0]", "failed"),
            _claim("w[1]"),
            LOOK,
            Step("rerun", "w[1]"),
            LOOK,
        ],
    ),
    "resumed in the middle of a rerun while another group is in recovery": (
        "others",
        [
            *(LOOK, _claim("a"), _claim("b"), _ends("a", "succeeded"), _ends("b", "failed"), LOOK),
            *(PAUSE, LOOK, Step("rerun", "a"), Step("command", "resume"), LOOK),
        ],
    ),
    "a job without outputs whose last group had failed": (
        "alone",
        [
            LOOK,
            _claim("a"),
            _ends("a", "failed"),
            LOOK,
            WAIT,
            LOOK,
            _claim("a"),
            _ends("a", WITHOUT_OUTPUT),
            LOOK,
        ],
    ),
}


def fails_unclaimed(world: SmallWorld) -> bool:
    """Whether a group on offer fails when its time in the queue goes by, unless the user says
    something.
    """
    for name in world.timed():
        alone = world.fork()
        alone.seen = Seen()
        return alone.play(Step("unserved", name), LOOK).states()[name] == S.FAILED
    return False


class Explored:
    """One world for each situation, and all moves that were seen on the way."""

    def __init__(self) -> None:
        self.seen = Seen()
        self.worlds: dict[object, SmallWorld] = {}
        # One for each status and set of states in which an attempt runs; and in which one fails if
        # it is not claimed.
        self.at_work: dict[object, SmallWorld] = {}
        self.on_offer: dict[object, SmallWorld] = {}
        for spec in SPECS:
            self._explore(spec)
        for spec, steps in LONG.values():
            world = SmallWorld(spec, self.seen)
            for step in steps:
                self._note(world.play(step).fork())

    def _explore(self, spec: str) -> None:
        start = SmallWorld(spec, self.seen)
        met: Counter[object] = Counter()
        known = {start.novelty()}
        order = count()
        waiting = [(0, 0, next(order), start)]
        for _ in range(EXPANDED):
            if not waiting:
                return
            world = heapq.heappop(waiting)[-1]
            for step in list(world.steps()):
                if step.do in BY_A_USER and world.given >= COMMANDS_GIVEN:
                    continue
                made = self._moves()
                there = world.fork().play(step)
                if (new := there.novelty()) in known:
                    continue
                known.add(new)
                situation = self._note(there)[:4]
                met[situation] += 1
                met[asked := (new[-1], there.job.status)] += 1
                first = (
                    0
                    if self._moves() > made or met[asked] == 1
                    else met[situation] + 2 * there.given
                )
                heapq.heappush(waiting, (first, len(there.history), next(order), there))

    def _note(self, world: SmallWorld) -> tuple[object, ...]:
        """Keep the first world of each situation."""
        situation = world.situation()
        self.worlds.setdefault(situation, world)
        if world.job.intent is Intent.RUN and world.job.halted is None:
            if world.running():
                self.at_work.setdefault((world.job.status, situation[3]), world)
            if (place := (world.job.status, situation[3])) not in self.on_offer and fails_unclaimed(
                world
            ):
                self.on_offer[place] = world
        return situation

    def _moves(self) -> int:
        return (
            len(self.seen.groups)
            + len(self.seen.asked)
            + len(self.seen.jobs)
            + len(self.seen.phases)
        )


@cache
def explored() -> Explored:
    return Explored()


def worlds(status: Status) -> Iterator[SmallWorld]:
    return (world for world in explored().worlds.values() if world.job.status is status)


# ---- the tables
# ------------------------------------------------------------------------------------------------------


@pytest.mark.variant
def test_every_status_and_every_listed_move_is_reached() -> None:
    assert {world.job.status for world in explored().worlds.values()} == set(Status)
    seen = explored().seen
    groups = ((GROUP_MOVES, seen.groups), (GROUP_MOVES_REQUESTED, seen.asked))
    for table, made in (*groups, (JOB_MOVES, seen.jobs), (PHASE_MOVES, seen.phases)):
        missing = [
            f"{old} → {new}"
            for old, new in table
            if (old, new) not in made and (old, new) not in NOT_REACHED
        ]
        assert not missing, f"explore further, add a history to LONG, or mend the table: {missing}"
        assert not [move for move in NOT_REACHED if move in made], "these are reached after all"


# ---- every command in every situation
# --------------------------------------------------------------------------------


@pytest.mark.claim(
    "Every command ends in the state that the user asked for, whatever state the job is in."
)
@pytest.mark.parametrize("step", COMMANDS, ids=lambda step: f"{step.to}{step.how and ' --now'}")
@pytest.mark.parametrize("status", Status)
def test_every_command_in_every_situation_leads_to_the_requested_state(
    status: Status, step: Step
) -> None:
    given, now = step.to, bool(step.how)
    answers = set()
    for number, before in enumerate(worlds(status)):
        world = before.fork()
        result = world.give(given, now=now)
        answers.add(result.answer)
        judge_answer(before, given, result.answer, result.text)
        if result.answer is not Answer.DONE:
            assert world.job == before.job, f"{result.answer}, and the record has changed: {world}"
        if result.answer is not Answer.REFUSED:
            ends = ENDS if given in BOUNDED else ENDS[:-1]
            drive_on(before, world, given, ends[number % len(ends)])
    assert status not in command_table.COMMANDS[TargetKind.JOB][given].legal or answers - {
        Answer.REFUSED
    }, "it is legal, and was refused in every situation"


def judge_answer(before: SmallWorld, given: str, answer: Answer, text: str) -> None:
    job = before.job
    assert job.id in text, text
    if answer is Answer.REFUSED:
        assert str(job.status) in text, text
        assert "`unstuck " in text or "submit it again" in text, f"what can be done instead? {text}"
    if before.fork().play(LOOK).job.status is not job.status:
        # A coordinator has yet to look; what may be done follows from what was asked for or said
        # last.
        return
    if job.status not in command_table.COMMANDS[TargetKind.JOB][given].legal:
        assert answer is not Answer.DONE, f"{before}: {text}"
    elif answer is Answer.REFUSED:
        assert (job.intent, given) == (Intent.FORCE_STOP, "cancel"), f"{before}: {text}"


def canceled(world: SmallWorld) -> set[str]:
    return {name for name, state in world.states().items() if state == S.CANCELED}


def drive_on(before: SmallWorld, world: SmallWorld, given: str, runners: str) -> None:
    """Let everybody go on, and see that the job comes to rest where the user wanted it, and nothing
    starts.
    """
    offers, intent = dict(world.offers), world.job.intent
    world.go_on(runners)
    status = world.job.status
    if given == "resume":
        assert status in (Status.FINISHED, Status.FAILED), f"{world}"
        return
    assert world.job.intent is intent, f"nobody but the user writes the intent: {world}"
    assert world.offers == offers, f"an attempt was started after the {given}: {world}"
    publishing = bool(before.job.phase)
    if given == "pause" and not publishing:
        assert status is Status.PAUSED, f"{world}"
    elif before.slot == "package":
        assert status is Status.FINISHED, f"its package stood already: {world}"
    elif given == "pause":
        assert status is (Status.FAILED if before.slot else Status.FINISHED), (
            f"a pause comes too late: {world}"
        )
    else:
        assert (status, world.slot) in ((WANTED[given], ""), (WANTED[given], "abort")), f"{world}"
    if given == "pause":
        assert canceled(world) == canceled(before), f"a pause cancels nothing: {world}"
    if status is Status.PAUSED:
        for _ in range(3):
            assert {world.claim(offer) for offer in offers} <= {"REFUSED"}, f"{world}"
            world.play(WAIT, LOOK)
            assert (world.job.status, world.offers, world.doing) == (
                Status.PAUSED,
                offers,
                before.doing,
            ), f"{world}"


# ---- every failure, before and after every command
# -------------------------------------------------------------------


@pytest.mark.claim(
    "A command of a user holds against every failure, whichever of the two comes first."
)
@pytest.mark.parametrize("first", ["command", "failure"])
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize(
    "step",
    [step for step in COMMANDS if step.to in WANTED],
    ids=lambda step: f"{step.to}{step.how and ' --now'}",
)
def test_a_user_command_wins_over_every_failure_in_both_orders(
    step: Step, failure: str, first: str
) -> None:
    never_claimed = failure == "never claimed"
    worlds_at_hand = (explored().on_offer if never_claimed else explored().at_work).values()
    assert {world.job.status for world in worlds_at_hand} >= {
        Status.PENDING,
        Status.RUNNING,
        Status.RETRYING,
    }
    for before in worlds_at_hand:
        world = before.fork()
        if never_claimed:
            name = world.timed()[0]
            fails = Step("unserved", name)
        else:
            name = world.running()[0]
            fails = Step("lapse", name) if failure == "lapse" else Step("finish", name, failure)
        # A decision in between is another situation; the test above has it.
        world.play(*((step, LOOK, fails) if first == "command" else (fails, step)))
        offers, intent = dict(world.offers), world.job.intent
        world.go_on("obey")
        assert world.job.status is WANTED[step.to], f"{world}"
        assert world.job.intent is intent, f"{world}"
        assert world.offers == offers, f"an attempt was started after the {step.to}: {world}"
        if world.job.status is Status.PAUSED:
            assert canceled(world) == canceled(before), f"a pause cancels nothing: {world}"
            assert not never_claimed or world.states()[name] == S.WAITING, (
                f"its offer was taken back: {world}"
            )
            world.give("resume")
            assert world.go_on().job.status in (Status.FINISHED, Status.FAILED), f"{world}"
