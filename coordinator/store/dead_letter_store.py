"""Dead letters: reports, notices and submits that could not be handled.

A replay returns a report to the report stream and a notice to the queue of its target. A refused
submit is corrected by its sender. The job's event log says who replayed it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, cast

import redis

from unstuck.coordinator.command_table import By, Command, CommandOutcome, TargetKind
from unstuck.coordinator.errors import NoSuchReport
from unstuck.coordinator.store.reports import DEAD_KEPT, DeadLetter, Fields
from unstuck.tasks.errors import Malformed
from unstuck.tasks.identity import user_here
from unstuck.tasks.protocol.failure import shorten
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.lua import Script
from unstuck.tasks.protocol.token import Token

MOST_OF_A_VALUE = 20_000  # characters
READABLE, UNREADABLE = "readable", "unreadable"  # by a coordinator of this release
REMEMBERED = 86400  # seconds for which the answer to a replay or a drop is remembered


class DeadLetterAnswer(StrEnum):
    """How a replay or a drop ended."""

    REPLAYED = "REPLAYED"
    DROPPED = "DROPPED"
    ALREADY = "ALREADY"  # it was replayed or dropped before; nothing changed
    REFUSED = "REFUSED"
    GONE = "GONE"  # there is no such dead letter


class DeadLetters:
    """The dead letters in one Redis. ``client`` must decode responses."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._redis = client
        self._keys = keys
        self._script = Script(client, keys, __package__, "reports/resolve_dead_letter")

    def all(self) -> list[DeadLetter]:
        """Return every dead letter, the oldest first."""
        return [DeadLetter.of(*entry) for entry in self._entries("-", "+")]

    def newest(self, most: int = 100, before: str = "") -> list[DeadLetter]:
        """Return at most ``most`` dead letters, the newest first.

        Args:
            before: an id; only older letters are returned.
        """
        entries = cast(
            list[tuple[str, Fields]],
            self._redis.xrevrange(self._keys.dead, max=f"({before}" if before else "+", count=most),
        )
        return [DeadLetter.of(*entry) for entry in entries]

    def count(self) -> int:
        """Return the number of dead letters."""
        return int(self._redis.xlen(self._keys.dead))

    def add_refused(self, task: str, reason: str, arguments: Mapping[str, str]) -> None:
        """Store the refusal of a Celery task, since nobody awaits its result.

        Args:
            arguments: shown unchanged.
        """
        short = {name: shorten(value, MOST_OF_A_VALUE) for name, value in arguments.items()}
        entry = {
            "reason": shorten(reason, MOST_OF_A_VALUE),
            "task": task,
            "arguments": json.dumps(short),
        }
        self._redis.xadd(self._keys.dead, cast(Any, entry), maxlen=DEAD_KEPT)

    def get(self, report: str) -> DeadLetter:
        """Return a dead letter by its id on the dead stream.

        Raises: NoSuchReport: there is none, or ``report`` is no id.
        """
        letter = self._find(report)
        if letter is None:
            raise NoSuchReport(_gone(report))
        return letter

    @Command("replay", TargetKind.DEAD_LETTER, "unstuck dead replay --all", legal={READABLE})
    def replay(self, report: str, *, by: By = None) -> CommandOutcome:
        """Return a report to the coordinators. Durable and idempotent.

        Refused if the report would be a dead letter again: it is unreadable, or its job is unknown.
        """
        letter = self._find(report)
        if letter is not None and (why := letter.unreadable):
            cannot = "" if letter.task else "it cannot be read: "
            text = f"{_kind(letter)} {report} stays a dead letter: {cannot}{why}"
            return CommandOutcome(report, DeadLetterAnswer.REFUSED, text)
        return self._resolve(report, letter, DeadLetterAnswer.REPLAYED, by or user_here())

    @Command(
        "drop",
        TargetKind.DEAD_LETTER,
        "unstuck dead drop 1388530799000-0 --yes",
        legal={READABLE, UNREADABLE},
        ends=True,
    )
    def drop(self, report: str, *, by: By = None) -> CommandOutcome:
        """Remove a dead letter for good."""
        return self._resolve(
            report, self._find(report), DeadLetterAnswer.DROPPED, by or user_here()
        )

    def _resolve(
        self, report: str, letter: DeadLetter | None, what: DeadLetterAnswer, by: str
    ) -> CommandOutcome:
        if not _is_id(report):
            return CommandOutcome(report, DeadLetterAnswer.GONE, _gone(report))
        job, kind = (_job_of(letter), _kind(letter)) if letter is not None else ("", "report")
        resolved = self._keys.dead_letter(report)
        word, *before = self._script(
            job,
            letter=report,
            what=what.lower(),
            by=by,
            resolved=resolved,
            kept=REMEMBERED,
            waiting=self._keys.notices_for(""),
        )
        if word == "GONE":
            return CommandOutcome(report, DeadLetterAnswer.GONE, _gone(report))
        if word == "ALREADY":
            return CommandOutcome(
                report,
                DeadLetterAnswer.ALREADY,
                f"{kind} {report} was {before[0]}; nothing changed",
            )
        if word == "UNKNOWN_JOB":
            text = (
                f"report {report} stays a dead letter: no job {job} is in the store to apply it "
                f"to. Replay it when the job is back, or drop it: unstuck dead drop {report}"
            )
            return CommandOutcome(report, DeadLetterAnswer.REFUSED, text)
        done = f"is on its way to a coordinator again; `unstuck events {job}` shows it"
        if letter is not None and letter.to:
            done = f"waits for {letter.to} again; `unstuck notify list` shows it"
        if what is DeadLetterAnswer.DROPPED:
            done = "is gone for good"
        return CommandOutcome(report, what, f"{kind} {report} {done}")

    def _find(self, report: str) -> DeadLetter | None:
        if not _is_id(report):
            return None
        entries = self._entries(report, report)
        return DeadLetter.of(*entries[0]) if entries else None

    def _entries(self, low: str, high: str) -> list[tuple[str, Fields]]:
        return cast(list[tuple[str, Fields]], self._redis.xrange(self._keys.dead, low, high))


def _kind(report: DeadLetter) -> str:
    if report.task:
        return "task"
    return "notice" if report.notice else "report"


def _job_of(report: DeadLetter) -> str:
    """Return the job that a dead letter names; empty if it names none."""
    if report.notice:
        return report.fields.get("job", "")
    try:
        return Token.parse(report.fields.get("token", "")).job
    except Malformed:
        return ""


def _gone(report: str) -> str:
    if not _is_id(report):
        return (
            f"{report!r} is no id of a dead letter; expected one like 1388534400000-0, from "
            "`unstuck dead list`"
        )
    return f"there is no dead letter {report}; `unstuck dead list` shows them all"


def _is_id(text: str) -> bool:
    milliseconds, dash, sequence = text.partition("-")
    parts = (milliseconds, sequence)
    return bool(dash) and all(
        part.isascii() and part.isdecimal() and int(part[:21]) < 2**64 for part in parts
    )
