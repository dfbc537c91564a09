"""Lines of logs as JSON: the work that they are about, and who keeps the form of a user's
handlers.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from celery import signals
from celery.utils.log import ColorFormatter

from unstuck.tasks.log_lines import (
    JsonFormatter,
    about,
    also_about,
    as_text,
    one_line,
    process_is_about,
)
from unstuck.tasks.settings import settings
from unstuck.tasks.transport import celery_app


def line(**fields: Any) -> dict[str, Any]:
    written = JsonFormatter().format(
        logging.makeLogRecord({"name": "l", "levelname": "INFO", "msg": "m", **fields})
    )
    assert "\n" not in written
    assert written.isascii()
    return dict(json.loads(written))


def test_a_log_line_names_only_the_work_of_its_own_thread() -> None:
    seen: list[dict[str, Any]] = []
    with about(job="j"):
        with about(group="g"):
            also_about(schedule="s")
            one = line()
            assert one | {"job": "j", "group": "g", "schedule": "s"} == one
            thread = threading.Thread(target=lambda: seen.append(line()))
            thread.start()
            thread.join()
        assert line()["job"] == "j"
        assert "schedule" not in line()
    assert "job" not in seen[0]
    assert "job" not in line()
    also_about(job="left")
    assert "job" not in line()


def test_all_threads_of_a_single_purpose_process_log_its_work() -> None:
    seen: list[dict[str, Any]] = []
    process_is_about(job="j", attempt=2)
    try:
        thread = threading.Thread(target=lambda: seen.append(line()))
        thread.start()
        thread.join()
    finally:
        process_is_about()
    assert (seen[0]["job"], seen[0]["attempt"]) == ("j", 2)
    assert "job" not in line()


def test_a_lone_surrogate_does_not_make_a_log_line_unreadable() -> None:
    assert line(msg="bad \ud83d, good \U0001f600")["message"] == "bad ?, good \U0001f600"


def test_an_extra_never_replaces_a_built_in_field() -> None:
    assert line(level="x", time=7, job="other", rows=3)["level"] == "INFO"
    with about(job="j"):
        assert line(job="other")["job"] == "j"


def test_json_lines_convert_back_to_the_equivalent_text() -> None:
    try:
        raise ValueError("böom\x1b[31m")
    except ValueError:
        record = logging.makeLogRecord(
            {"name": "l", "levelname": "ERROR", "msg": "a\nb", "exc_info": sys.exc_info()}
        )
    written = JsonFormatter().format(record)
    assert "\n" not in written
    text = as_text(written)
    assert " ERROR l: a\nb\nTraceback" in text
    assert text.endswith("ValueError: böom\x1b[31m")
    for odd in ('{"time": 1}', '{"a', "plain", '{"' + "[" * 100_000, "[1]"):
        assert as_text(odd) == odd
    assert as_text(one_line("json", "watchdog", "ERROR", "killed")).endswith(
        "Z ERROR watchdog: killed"
    )
    assert one_line("text", "watchdog", "ERROR", "killed").endswith("Z ERROR watchdog: killed")


@pytest.fixture
def as_json(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("UNSTUCK_LOG", "json")
    settings.cache_clear()
    yield
    monkeypatch.undo()
    settings.cache_clear()


def test_log_handlers_of_the_user_keep_their_format(as_json: None) -> None:
    assert celery_app.app is not None
    logger = logging.Logger("root of a worker")
    own, theirs = logging.StreamHandler(), logging.StreamHandler()
    own.setFormatter(ColorFormatter("%(message)s"))
    theirs.setFormatter(logging.Formatter("theirs: %(message)s"))
    logger.handlers = [own, theirs]
    signals.after_setup_logger.send(sender=None, logger=logger)
    record = logging.makeLogRecord({"name": "l", "msg": "hello"})
    assert json.loads(own.format(record))["message"] == "hello"
    assert theirs.format(record) == "theirs: hello"
