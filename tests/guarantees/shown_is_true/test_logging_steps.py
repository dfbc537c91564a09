"""A step may configure logging as code does that runs alone: it costs no attempt, and hides nothing
of one.
"""

from __future__ import annotations

from pathlib import Path

import redis

from tests.support import fleet
from tests.support.programs.runner import single_runner
from tests.support.servers import RedisServer
from unstuck.tasks.protocol.report import Outcome, OutcomeKind

SAID = ("said by the step", "said by a library", "printed by the step")


def ran(
    store: redis.Redis, server: RedisServer, folder: Path, *steps: str
) -> list[tuple[Outcome, str]]:
    """Outcome and log of the first attempt of each, one after the other on one runner. ``a b``: two
    steps of one.
    """
    offers = [
        fleet.make_offer(
            *(store, folder / "warehouse", f"job{n}"),
            {
                "name": "g",
                "spark": False,
                "steps": [{"python": f"log_steps:{step}"} for step in one.split()],
            },
            send=False,
        )
        for n, one in enumerate(steps)
    ]
    with single_runner(server.url, folder, *offers) as runner:
        said = runner.said()
    assert len([one for one in said if one.endswith(" APPLIED")]) == len(offers), said
    ended = []
    for offer in offers:
        (log,) = (folder / "warehouse" / "_staging" / offer.job).rglob("*.log")
        ended.append((fleet.outcome(store, offer, 0), log.read_text()))
    return ended


def test_a_step_may_configure_logging_and_its_lines_are_logged_once(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    steps = ["looks", "basic", "to_a_file", "config", "one_more", "looks"]
    (before, _), *configured, (after, _) = ran(client, redis_server, tmp_path, *steps)
    for outcome, text in configured:
        assert outcome.kind is OutcomeKind.SUCCEEDED, outcome.failure
        assert [text.count(line) for line in SAID] == [1, 1, 1], text
    assert after.results == before.results, (
        "what a step does to logging is put back after its attempt"
    )


def test_the_error_of_a_step_that_configured_logging_is_reported_and_logged(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    for outcome, text in ran(client, redis_server, tmp_path, "raises", "silent", "rude"):
        assert outcome.failure is not None
        assert (outcome.failure.code, outcome.failure.text) == (
            "STEP_FAILED",
            "ValueError: the error of the step itself",
        )
        assert "Traceback" in text
        assert text.count("ValueError: the error of the step itself") == 1


def test_a_raising_log_handler_loses_only_the_log_line(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    ((outcome, text),) = ran(client, redis_server, tmp_path, "rude_from_now_on looks")
    assert outcome.kind is OutcomeKind.SUCCEEDED, outcome.failure
    assert text.count("step 2 of 2: ") == 1


def test_a_step_may_use_standard_streams_as_in_a_script(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    ((outcome, text),) = ran(client, redis_server, tmp_path, "streams")
    assert outcome.kind is OutcomeKind.SUCCEEDED, outcome.failure
    assert outcome.results == {
        "facts": [False, True, False, False, "w", "<stdout>"],
        "encoding": "utf-8",
    }
    assert [
        line.partition("INFO step.stdout: ")[2]
        for line in text.splitlines()
        if "step.stdout" in line
    ] == [
        *(
            "grüße, as bytes",
            "caf\N{REPLACEMENT CHARACTER} in another encoding",
            "two parts",
            "lines of text",
        ),
        *("through a wrapper", "printed after that, in a thread too", "said by a thread"),
    ]
