"""The promises by name, and what is raised when one is broken."""

from __future__ import annotations

FORGOTTEN = "1. Nothing is forgotten"
ONE = "2. One at a time"
WORD = "3. The user's word is final"
WAIT = "4. Every wait has an end and a reason"
SHOWN = "5. A state that was shown is true, and a terminal one is final"
WHOLE = "6. Outputs are whole or absent"

# What each loss and each wait costs at most: the table "What a loss costs" in docs/internals/how-it-works.md,
# line by line.
LOST_OFFER = f"{FORGOTTEN}: an offer that is lost is made again after the dispatch timeout"
LOST_WAKE_UP = f"{FORGOTTEN}: a lost wake-up costs a sweep"
MANY_WAKE_UPS = f"{FORGOTTEN}: no more wake-ups are sent than runners are idle"
LOST_SLOT = f"{FORGOTTEN}: the slot of a lost attempt is free within a sweep"
LOST_REPORT = f"{FORGOTTEN}: a lost report costs a sweep"
LOST_WORKER = f"{FORGOTTEN}: a lost worker costs its lease and a sweep"
LOST_CONSUMER = f"{FORGOTTEN}: the reports of a lost coordinator are taken over after the idle time"
LOST_BEAT = f"{FORGOTTEN}: a lost beat costs three periods"
MISSED_LOCK = f"{FORGOTTEN}: a lock that was met busy costs a sweep"
MISSED_DUE = f"{FORGOTTEN}: a job that is due is decided by the next sweep"
LATE_ANSWER = f"{FORGOTTEN}: what came of publishing is on record as soon as the lock is free"
LATE_COMMAND = f"{WORD}: a command is obeyed within a sweep"
LATE_CANCEL = f"{WAIT}: a cancel ends at its deadline, and a sweep later at the latest"
LATE_START = f"{WAIT}: a group that may start is queued within a sweep"
LATE_RETRY = f"{WAIT}: a retry starts when its backoff is over, and a sweep later at the latest"
LONG_BACKOFF = f"{WAIT}: a backoff is as long as the policy says"
LATE_TIMEOUT = f"{WAIT}: a timeout ends what it is about within a sweep"
LATE_END = f"{WAIT}: a job whose groups are done, or are to be canceled, ends within a sweep"
LATE_PUBLISH = f"{WAIT}: publishing is tried again within a minute"
COSTS = (
    *(
        LOST_OFFER,
        LOST_WAKE_UP,
        MANY_WAKE_UPS,
        LOST_SLOT,
        LOST_REPORT,
        LOST_WORKER,
        LOST_CONSUMER,
        LOST_BEAT,
    ),
    *(MISSED_LOCK, MISSED_DUE, LATE_ANSWER),
    *(
        LATE_COMMAND,
        LATE_CANCEL,
        LATE_START,
        LATE_RETRY,
        LONG_BACKOFF,
        LATE_TIMEOUT,
        LATE_END,
        LATE_PUBLISH,
    ),
)

UNTOLD = f"{FORGOTTEN}: every change that a rule names is told"
TOLD = f"{SHOWN}: a notice tells what was committed, when it has come, and once"
NOTICES = (UNTOLD, TOLD)


class Broken(BaseException):
    """A promise was broken.

    Not an Exception, so that no code under test takes it for a fault of its own.
    """

    def __init__(self, promise: str, text: str) -> None:
        super().__init__(f"{promise}: {text}")
        self.promise = promise
