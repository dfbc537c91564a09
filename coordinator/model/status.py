"""The states of jobs and groups, and every legal move between them. Any other move is a bug.

Only ``derive`` decides the status of a job, from intent, phase and group states.
``docs/internals/how-it-works.md`` shows the moves as diagrams, which ``scripts/diagrams.py`` draws.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum


class Status(StrEnum):
    """The status of a job. Derived, never set by hand."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    RETRYING = "RETRYING"
    PAUSING = "PAUSING"
    PAUSED = "PAUSED"
    HALTED = "HALTED"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    CANCELING = "CANCELING"
    CANCELED = "CANCELED"
    FINISHED = "FINISHED"
    FAILED = "FAILED"

    @property
    def terminal(self) -> bool:
        return self in TERMINAL


TERMINAL = frozenset({Status.STOPPED, Status.CANCELED, Status.FINISHED, Status.FAILED})
# Nothing begins and timeouts are paused until a person acts.
HELD = frozenset({Status.PAUSED, Status.HALTED})


class Intent(StrEnum):
    """The user's intent for a job. Written by user commands only."""

    RUN = "run"
    PAUSE = "pause"
    STOP = "stop"
    CANCEL = "cancel"
    FORCE_STOP = "force_stop"

    @property
    def command(self) -> str:
        """The command that sets this intent."""
        return self.value.replace("_", "-")


class Phase(StrEnum):
    """The phase of publishing a job.

    A job that does not need the warehouse log has no phase.
    """

    NONE = ""
    PUBLISHING = "publishing"
    RETRYING = "publish_retrying"
    ABORTING = "aborting"
    ABORT_RETRYING = "abort_retrying"

    @property
    def aborts(self) -> bool:
        """Whether the user ended the job during publishing, so that the warehouse log decides."""
        return self in (Phase.ABORTING, Phase.ABORT_RETRYING)

    @property
    def under_way(self) -> bool:
        """Whether a coordinator publishes or aborts, by the record."""
        return self in (Phase.PUBLISHING, Phase.ABORTING)


class GroupState(StrEnum):
    """The state of a group. A group without a record is WAITING."""

    WAITING = "WAITING"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    BACKOFF = "BACKOFF"
    CANCELING = "CANCELING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    SKIPPED = "SKIPPED"

    @property
    def terminal(self) -> bool:
        return self in GROUP_TERMINAL


# What lists count as done: a canceled group has ended, but was not done.
DONE = frozenset({"SUCCEEDED", "FAILED", "SKIPPED"})
GROUP_TERMINAL = frozenset(
    {GroupState.SUCCEEDED, GroupState.FAILED, GroupState.CANCELED, GroupState.SKIPPED}
)


def derive(
    *,
    intent: Intent,
    outcome: Status | None,
    halted: bool,
    started: bool,
    active: bool,
    recovering: bool,
) -> Status:
    """Return the status of a job.

    Args:
        intent: the user's intent.
        outcome: final outcome of the job; None until it has ended.
        halted: whether the job cannot continue by itself.
        started: whether an attempt was ever claimed.
        active: whether an attempt is queued, running or being canceled.
        recovering: whether a group failed, will be retried, and has not succeeded since.
    """
    if outcome is not None:
        return outcome
    if halted and intent in (Intent.RUN, Intent.PAUSE):
        # Also if the user had paused the job: PAUSED means that only the user holds it up.
        return Status.HALTED
    if intent is Intent.PAUSE:
        return Status.PAUSING if active else Status.PAUSED
    if intent is Intent.STOP:
        return Status.STOPPING
    if intent in (Intent.CANCEL, Intent.FORCE_STOP):
        return Status.CANCELING
    if recovering:
        return Status.RETRYING
    return Status.RUNNING if started else Status.PENDING


_S = GroupState
_J = Status
_ENDED = (
    "another group failed for good, and `on_failure` is `cancel_others`; or the user stopped or "
    "canceled the job; or the job's `timeout` is over"
)

# By a decision.
GROUP_MOVES: dict[tuple[GroupState, GroupState], str] = {
    (
        _S.WAITING,
        _S.QUEUED,
    ): "its join says go, and there is room: `max_parallel`, the dispatch window of its queue",
    (_S.WAITING, _S.SUCCEEDED): "a join without steps whose rule holds; it visits no worker",
    (
        _S.WAITING,
        _S.FAILED,
    ): "a quorum that can no longer be reached, or a dynamic fork whose source was not made",
    (
        _S.WAITING,
        _S.SKIPPED,
    ): "something it needs failed or was skipped, by its rule; or a fork without values",
    (_S.WAITING, _S.CANCELED): _ENDED,
    (_S.QUEUED, _S.RUNNING): "an attempt was claimed",
    (_S.QUEUED, _S.WAITING): "a pause takes an unclaimed offer back",
    (_S.QUEUED, _S.FAILED): "no runner claimed it within its `queue_timeout`",
    (_S.QUEUED, _S.CANCELED): "as from WAITING",
    (_S.RUNNING, _S.SUCCEEDED): "the outcome says so",
    (
        _S.RUNNING,
        _S.BACKOFF,
    ): "failed with retries left; or the worker was lost; or the attempt was handed back",
    (
        _S.RUNNING,
        _S.FAILED,
    ): "failed for good: not recoverable, retries used up, or too many workers lost in a row",
    (
        _S.RUNNING,
        _S.CANCELING,
    ): "the user cancels; the runner gets the order at once, and again at its next renewal",
    (
        _S.RUNNING,
        _S.CANCELED,
    ): "as from WAITING; the running attempt is stale at once, and its watchdog ends it",
    (_S.BACKOFF, _S.QUEUED): "its time has come",
    (_S.BACKOFF, _S.CANCELED): "as from WAITING",
    (
        _S.CANCELING,
        _S.CANCELED,
    ): "the attempt has ended without success; or no runner confirmed the end until the deadline",
    (_S.CANCELING, _S.SUCCEEDED): "it was done before it heard",
}

# Only because a user asked for it, of a job that is PAUSED, HALTED or RETRYING: `unstuck skip` and
# `unstuck rerun`.
_SKIPPED = "`unstuck skip`; a running attempt is stale at once"
_RERUN = "`unstuck rerun` of it, or of a group before it; a running attempt is stale at once"
GROUP_MOVES_REQUESTED: dict[tuple[GroupState, GroupState], str] = {
    **{(old, _S.SKIPPED): _SKIPPED for old in (_S.WAITING, _S.QUEUED, _S.RUNNING, _S.BACKOFF)},
    **{(old, _S.WAITING): _RERUN for old in GroupState if old not in (_S.WAITING, _S.CANCELING)},
}

_P = Phase
_TROUBLE = "the warehouse brought an error, or gave no sign of life for too long"
_WAITED = "its wait is over"
_USER_ENDED = (
    "the user stopped or canceled the job; the log decides whether its package is published"
)
PHASE_MOVES: dict[tuple[Phase, Phase], str] = {
    (_P.NONE, _P.PUBLISHING): "all groups are done",
    (_P.PUBLISHING, _P.RETRYING): _TROUBLE,
    (
        _P.RETRYING,
        _P.PUBLISHING,
    ): f"{_WAITED}; or a try that counted as hanging gave a sign of life",
    (_P.PUBLISHING, _P.ABORTING): _USER_ENDED,
    (_P.RETRYING, _P.ABORTING): _USER_ENDED,
    (_P.ABORTING, _P.ABORT_RETRYING): _TROUBLE,
    (_P.ABORT_RETRYING, _P.ABORTING): _WAITED,
    **{(old, _P.NONE): "the job has ended" for old in Phase if old is not _P.NONE},
}

_OPEN = tuple(status for status in Status if not status.terminal)
_GOES_ON = (_J.PENDING, _J.RUNNING, _J.RETRYING)
_FAILED = (
    "a group failed for good and no group after it accepts that; or the package "
    "can never be published; or the job's `timeout` is over"
)
# From each of these states, to which, and why. A later row says more about a move of an earlier
# one.
_JOB_MOVES: tuple[tuple[Collection[Status], Collection[Status], str], ...] = (
    ((_J.PENDING,), (_J.RUNNING,), "an attempt was claimed"),
    ((_J.PENDING,), (_J.RETRYING,), "an attempt was claimed and failed, or was lost"),
    ((_J.RUNNING,), (_J.RETRYING,), "a group failed with retries left, or its worker was lost"),
    ((_J.RETRYING,), (_J.RUNNING,), "every group that had failed has succeeded, or was skipped"),
    ((_J.PAUSING,), (_J.PAUSED,), "the last running attempt has ended"),
    (_GOES_ON, (_J.PAUSING,), "the user paused it; running attempts may end"),
    (_GOES_ON, (_J.PAUSED,), "the user paused it, and no attempt is left"),
    (
        (_J.HALTED,),
        (_J.PAUSING, _J.PAUSED),
        "the user resumed it, and paused it before it was looked at",
    ),
    ((_J.PAUSING, _J.PAUSED, _J.HALTED), _GOES_ON, "the user resumed it"),
    (
        {*_OPEN} - {_J.HALTED},
        (_J.HALTED,),
        "no coordinator could decide it, twice for the same error",
    ),
    (
        (*_GOES_ON, _J.PAUSING, _J.PAUSED, _J.HALTED),
        (_J.STOPPING,),
        "the user stopped it; running attempts may end",
    ),
    (
        {*_OPEN} - {_J.CANCELING},
        (_J.CANCELING,),
        "the user canceled it; running attempts get the order to end",
    ),
    ({*_OPEN} - {_J.CANCELING}, (_J.STOPPED,), "the user stopped it, and nothing was running"),
    (_OPEN, (_J.CANCELED,), "the user canceled it and nothing was running; or by force"),
    ({*_OPEN} - {_J.STOPPING, _J.CANCELING}, (_J.FAILED,), _FAILED),
    (_OPEN, (_J.FINISHED,), "its package is published, or there was nothing to publish"),
    ((_J.STOPPING,), (_J.STOPPED,), "the last running attempt has ended"),
    (
        (_J.CANCELING,),
        (_J.CANCELED,),
        "the last running attempt has ended, or the deadline has come",
    ),
    ((_J.STOPPING,), (_J.FINISHED,), "its package stood before the stop"),
    ((_J.CANCELING,), (_J.FINISHED,), "its package stood before the cancel"),
    (
        (_J.PAUSING,),
        (_J.FINISHED,),
        "it was publishing when the pause came, which was too late; or the user "
        "resumed it, and there was nothing to publish",
    ),
)
JOB_MOVES = {
    (old, new): why
    for olds, news, why in _JOB_MOVES
    for old in Status
    if old in olds
    for new in news
}


class IllegalMove(Exception):
    """The move is not in the tables. This is a bug, refused before it reaches the store."""

    def __init__(self, who: str, old: str, new: str) -> None:
        super().__init__(f"{who}: {old} → {new} is not a legal move")


def check_move(group: str, old: GroupState, new: GroupState, *, requested: bool = False) -> None:
    """Check that a move of a group is legal; ``requested``: by the user. Raises: IllegalMove."""
    if (old, new) not in (GROUP_MOVES_REQUESTED if requested else GROUP_MOVES):
        raise IllegalMove(f"group {group}", old, new)


def check_status(old: Status, new: Status) -> None:
    """Check that a move of a job is legal. Raises: IllegalMove."""
    if old is not new and (old, new) not in JOB_MOVES:
        raise IllegalMove("the job", old, new)


def check_phase(old: Phase, new: Phase) -> None:
    """Check that a move of a phase is legal. Raises: IllegalMove."""
    if old is not new and (old, new) not in PHASE_MOVES:
        raise IllegalMove("the publishing of the job", old or "none", new or "none")
