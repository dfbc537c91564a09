"""Records read back as they were stored; a damaged field is an error where all is needed, and is
left out elsewhere.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from unstuck.coordinator.errors import NewerJob
from unstuck.coordinator.model.records import (
    Alteration,
    AlteredValue,
    AttemptRecord,
    GroupRecord,
    GroupRequest,
    JobRecord,
    Reason,
)
from unstuck.coordinator.model.status import GroupState, Intent, Phase, Status
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind

JOB = JobRecord(
    "id",
    "name",
    "{}",
    "commit",
    status=Status.RETRYING,
    intent=Intent.FORCE_STOP,
    submitted_at=1.25,
    base=0,
    phase=Phase.ABORTING,
    published={"out": 3},
    reason=Reason("CODE", "half of a pair: \ud800"),
    requests=(GroupRequest("skip", "a[0]"),),
    alterations=(Alteration(2.5, "ada", "", (AlteredValue("params.x", None, [1, {"y": None}]),)),),
    adopts=("other",),
    texts={"digest": "text"},
)


def test_a_stored_group_is_read_back_including_lone_surrogates() -> None:
    error = Failure(
        "STEP_FAILED", "no such file: \udcff", False, "Traceback", ("OSError", "Exception")
    )
    record = GroupRecord(
        GroupState.BACKOFF,
        2,
        "nonce",
        rows={"out": 1},
        results={"x": [1.5, None]},
        last_error=error,
    )
    assert GroupRecord.from_json(record.to_json()) == record
    assert GroupRecord.from_json(GroupRecord().to_json()) == GroupRecord()
    assert "failures" not in record.to_json(), "what is at its default takes no room"
    assert GroupRecord.from_json('{"state":"QUEUED","of a later release":1}') == GroupRecord(
        GroupState.QUEUED
    )


@pytest.mark.parametrize(
    "text", ["{", "[]", "null", '{"state":"GONE"}', '{"epoch":"x"}', '{"rows":[1]}']
)
def test_a_damaged_group_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        GroupRecord.from_json(text)
    assert GroupRecord.readable(text) is None


def test_an_unreadable_outcome_ends_the_attempt_as_failed() -> None:
    stored = {"epoch": 1, "nonce": "n", "outcome": "{", "claimant": "c", "revision": 2}
    attempt = AttemptRecord.from_json(json.dumps(stored))
    assert (attempt.epoch, attempt.claimant, attempt.revision) == (1, "c", 2)
    assert attempt.outcome is not None
    assert attempt.outcome.failure is not None
    assert (attempt.outcome.kind, attempt.outcome.failure.code) == (
        OutcomeKind.FAILED,
        "OUTCOME_UNREADABLE",
    )
    done = Outcome(OutcomeKind.SUCCEEDED, rows={"out": 1})
    assert (
        AttemptRecord.from_json(json.dumps({**stored, "outcome": done.to_json()})).outcome == done
    )


def test_a_stored_job_is_read_back_and_an_update_writes_only_changes() -> None:
    assert JobRecord.from_fields(JOB.to_fields()) == JOB
    assert JOB.changed_fields(JOB) == {}
    bare = JobRecord("id", "name", "{}", "commit")
    assert JobRecord.from_fields(bare.to_fields()) == bare
    assert set(bare.changed_fields(JOB)) >= {"status", "reason", "published", "requests"}
    changed = JobRecord.from_fields({**JOB.to_fields(), **bare.changed_fields(JOB)})
    assert changed == replace(bare, texts=JOB.texts), "a text that is not needed any more stays"


def test_the_readable_rest_of_a_damaged_job_is_recovered() -> None:
    fields = {
        **JOB.to_fields(),
        "submitted_at": "yesterday",
        "reason": "{",
        "requests": '[{"do":"dance","group":"a"}]',
    }
    for name in ("submitted_at", "reason", "requests"):
        with pytest.raises(ValueError):
            JobRecord.from_fields({**JOB.to_fields(), name: fields[name]})
    job = JobRecord.salvaged("id", fields)
    assert (job.status, job.intent, job.published, job.texts) == (
        JOB.status,
        JOB.intent,
        JOB.published,
        JOB.texts,
    )
    assert (job.submitted_at, job.reason, job.requests) == (0.0, None, ())
    assert JobRecord.salvaged("id", {}) == JobRecord("id", "", "", "")


def test_a_job_of_a_newer_release_is_left_to_that_release() -> None:
    for read in (JobRecord.from_fields, lambda fields: JobRecord.salvaged("id", fields)):
        with pytest.raises(NewerJob):
            read({**JOB.to_fields(), "schema": "99"})


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (
            '{"step": 1, "label": "read", "done": 3, "total": 10}',
            {"step": 1, "label": "read", "done": 3, "total": 10},
        ),
        ('{"label": "read", "done": NaN, "total": 5}', {"label": "read"}),
        ('{"done": 3, "total": Infinity}', {"done": 3, "total": None}),
        ('{"done": 3, "total": -2}', {"done": 3, "total": None}),
        ('{"done": 1e999, "rows": "many", "step": [1], "label": 5}', {"label": 5}),
        ('{"done": "50%", "rows": true}', {}),
        ('{"done": 1' + "0" * 400 + "}", {}),
        ("[1]", {}),
        ("half a li", {}),
        ("", {}),
    ],
)
def test_an_invalid_progress_value_in_a_record_is_not_shown(
    text: str, seen: dict[str, Any]
) -> None:
    assert AttemptRecord(1, "n", progress=text).shown_progress == seen
