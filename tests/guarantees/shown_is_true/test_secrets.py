"""A secret reaches the step that the spec gave it to, and nothing else; what is data is never
resolved.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from tests.support import fleet
from tests.support.programs.runner import single_runner
from tests.support.servers import RedisServer
from unstuck.tasks.protocol.report import Outcome, OutcomeKind
from unstuck.tasks.spec.work_order import Collect

KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj\n-----END KEY-----\n"
PASSWORD = "hunter2/'2"
ENVIRON = {"KEY": KEY, "PW": PASSWORD, "NAME": "hunter2_2", "SHORT": "id_key"}
PARAMS = {"password": "${secret:PW}"}


class Ran:
    """What became of one attempt each: the outcome, its log, and what the runner wrote to its own
    streams.
    """

    def __init__(self, outcomes: list[Outcome], logs: list[str], own: str, warehouse: Path) -> None:
        self.outcomes = outcomes
        self.logs = logs
        self.own = own
        self._warehouse = warehouse

    @property
    def failure(self) -> str:
        failure = self.outcomes[0].failure
        assert failure is not None
        return f"{failure.code} {failure.recoverable} {failure.text} {failure.traceback}"

    def everything(self) -> str:
        """All that left the runner: its streams, the records, and every byte of the warehouse."""
        files = [
            path.read_bytes().decode("latin-1")
            for path in self._warehouse.rglob("*")
            if path.is_file()
        ]
        names = [str(path) for path in self._warehouse.rglob("*")]
        return "\n".join(
            [self.own, *(outcome.to_json() for outcome in self.outcomes), *names, *files]
        )


@pytest.fixture
def run(client: redis.Redis, redis_server: RedisServer, tmp_path: Path) -> Any:
    def run(
        *steps: dict[str, Any],
        group: dict[str, Any] | None = None,
        prepared: str = "",
        **offered: Any,
    ) -> Ran:
        offers = [
            fleet.make_offer(
                *(client, tmp_path / "w", f"job{n}"),
                {
                    "name": "g",
                    "spark": False,
                    **(group or {}),
                    "steps": [{**step, "python": f"secret_steps:{step['python']}"}],
                },
                send=False,
                **offered,
            )
            for n, step in enumerate(steps)
        ]
        with single_runner(
            redis_server.url, tmp_path, *offers, prepared=prepared, environ=ENVIRON
        ) as runner:
            runner.said()
            own = (
                tmp_path / runner.log.with_suffix(".out").name
            ).read_text() + runner.log.read_text()
        logs = [
            next((tmp_path / "w" / "_staging" / offer.job).rglob("*.log")).read_text()
            for offer in offers
        ]
        return Ran([fleet.outcome(client, offer, 0) for offer in offers], logs, own, tmp_path / "w")

    return run


@pytest.mark.claim("A secret reaches its step, and no log, result or error.")
def test_secrets_that_a_step_logs_or_raises_appear_in_no_log_and_no_reason(
    run: Any,
) -> None:
    ran = run({"python": "told", "params": {**PARAMS, "key": "${secret:KEY}"}})
    assert ran.failure.startswith("STEP_FAILED True RuntimeError: xxx")
    (log,) = ran.logs
    assert log.count("one line: ${secret:KEY}") == 4
    assert log.count("in another form: ") == 4
    assert "INFO step.stdout: ${secret:PW}\n" in log, "it was written in two parts"
    assert "WARNING ${secret:PW}: a logger of this name" in log
    for part in ("hunt", "%27", "MIIE", "BKcw", "-----"):
        assert part not in ran.everything().replace("warehouse-", "")


@pytest.mark.claim("A secret reaches its step, and no log, result or error.")
def test_output_of_children_and_libraries_contains_no_secret(
    run: Any,
) -> None:
    ran = run({"python": "past_python", "params": PARAMS}, {"python": "plain"})
    assert [outcome.kind for outcome in ran.outcomes] == [OutcomeKind.SUCCEEDED] * 2
    for said in ("written: ", "child: ", "grandchild: ", "library: "):
        assert re.search(rf"^{said}\${{secret:PW\}}$", ran.own, re.MULTILINE), said
    assert "${secret:PW} written in two\n" in ran.own
    assert "x" * 300_000 + "\n" in ran.own
    assert "y" * 300_000 + "\n" in ran.own
    assert "printed after that" in ran.own
    own = "plain: hunter2/'2\n"
    assert own in ran.own, "after the attempt the descriptors are the worker's own again"
    assert "hunter2" not in ran.own.replace(own, "")


@pytest.mark.claim("A secret reaches its step, and no log, result or error.")
def test_a_surviving_child_with_open_streams_of_a_secret_attempt_blocks_nothing(
    run: Any,
) -> None:
    stays = "runner.replace = lambda: None"  # so that the next attempt runs in the same process
    ran = run({"python": "left_child", "params": PARAMS}, {"python": "plain"}, prepared=stays)
    assert [outcome.kind for outcome in ran.outcomes] == [OutcomeKind.SUCCEEDED] * 2
    assert not psutil.pid_exists(ran.outcomes[0].results["pid"])


def test_a_secret_in_the_name_of_a_leftover_thread_is_not_logged(
    run: Any,
) -> None:
    ran = run({"python": "thread_left", "params": PARAMS})
    assert "left the thread " in ran.own
    assert "hunter2" not in ran.everything()


@pytest.mark.variant
@pytest.mark.parametrize(
    ("step", "says"),
    [
        (
            "column",
            (
                "OUTPUT_INVALID False the output o has the value of ${secret:NAME} in the name or "
                "the metadata of a column"
            ),
        ),
        (
            "nested_column",
            (
                "OUTPUT_INVALID False the output o has the value of ${secret:NAME} in the name or "
                "the metadata of a column"
            ),
        ),
        ("named", "OUTPUT_INVALID False an output has the value of ${secret:NAME} in its name"),
    ],
)
def test_an_output_with_a_secret_in_a_name_is_refused_and_removed(
    run: Any, step: str, says: str
) -> None:
    output = {} if step == "named" else {"output": "o"}
    ran = run({"python": step, "params": {"password": "${secret:NAME}"}, **output})
    assert ran.failure.startswith(says)
    assert "hunter2" not in ran.everything()


@pytest.mark.claim("A secret reaches its step, and no log, result or error.")
def test_a_short_secret_is_refused_only_as_a_whole_name(run: Any) -> None:
    params = {"password": "${secret:SHORT}"}
    ran = run(
        {"python": "column", "params": params, "output": "o"},
        {"python": "part", "params": params, "output": "o"},
    )
    assert ran.failure.startswith(
        "OUTPUT_INVALID False the output o has the value of ${secret:SHORT}"
    )
    assert ran.outcomes[1].kind is OutcomeKind.SUCCEEDED


@pytest.mark.claim("A secret reaches its step, and no log, result or error.")
@pytest.mark.parametrize("kind", ["text", "key", "url", "deep"])
def test_a_result_with_a_secret_is_refused_and_not_masked(run: Any, kind: str) -> None:
    ran = run({"python": "result", "params": {**PARAMS, "kind": kind}})
    assert ran.failure.startswith("OUTPUT_INVALID False the result "), ran.failure
    assert "holds the value of ${secret:PW}" in ran.failure
    assert "hunter2" not in ran.everything()


def test_a_fork_over_a_column_with_a_secret_is_refused(run: Any) -> None:
    ran = run(
        {"python": "values", "params": PARAMS, "output": "o"},
        collect=[Collect(output="o", column="who")],
    )
    assert ran.failure.startswith(
        "FORK_VALUES_INVALID False a value of o.who holds the value of ${secret:PW}"
    )
    assert "hunter2" not in ran.own + ran.outcomes[0].to_json()


def test_a_secret_reference_in_data_reaches_a_step_as_plain_text(run: Any) -> None:
    made = run(
        {"python": "gives_references", "output": "o"}, collect=[Collect(output="o", column="who")]
    )
    assert made.outcomes[0].forks == {"o.who": ["ann", "${secret:PW}", "${secret:NOT_SET}"]}
    assert made.outcomes[0].results == {"who": "${secret:PW}"}


@pytest.mark.variant
@pytest.mark.parametrize(
    "value", ["${secret:PW}", "${secret:NOT_SET}", "$${secret:PW}", "${secret:"]
)
def test_a_fork_value_reaches_the_step_unchanged(run: Any, value: str) -> None:
    group = {"for_each": {"who": []}}
    ran = run(
        {"python": "lengths", "params": PARAMS},
        group=group,
        value=value,
        params={"who": "${secret:KEY}"},
    )
    assert ran.outcomes[0].results == {"who": len(value), "password": len(PASSWORD)}
