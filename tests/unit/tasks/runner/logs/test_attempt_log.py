"""The log of an attempt beside what libraries and steps do to logging."""

from __future__ import annotations

import contextlib
import io
import logging
import logging.config
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from unstuck.tasks.protocol.secrets import Secrets
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.runner.logs.attempt_log import AttemptLog, logging_restored
from unstuck.tasks.warehouse.files import Files


def hush() -> Secrets:
    secrets = Secrets({"S": "hush-hush"})
    secrets.resolve("${secret:S}")
    return secrets


@pytest.fixture
def log(tmp_path: Path) -> AttemptLog:
    return AttemptLog(Files(str(tmp_path)), "_staging/j/job.logs/g.1-n-c.log")


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("somebodys_library")
    yield logger
    logger.handlers.clear()
    logger.propagate = True


def text_of(log: AttemptLog) -> str:
    assert log.path is not None
    return log.path.read_text()


def test_the_log_folder_of_a_job_is_created_first_and_again_if_removed(
    tmp_path: Path,
) -> None:
    token = Token("j", "month[3]", 1, "n", "c")
    folder = tmp_path / "_staging" / "j" / "job.logs"
    for one in (token, replace(token, group="clean")):
        with AttemptLog(Files(str(tmp_path)), one.log).open() as log:
            log.logger.warning("written")
    assert sorted(path.name for path in folder.iterdir()) == [
        "clean.1-n-c.log",
        "month.3.1-n-c.log",
    ]
    shutil.rmtree(folder)
    with (again := AttemptLog(Files(str(tmp_path)), replace(token, epoch=2).log)).open():
        again.logger.warning("written again")
    assert "written again" in text_of(again)


def test_another_library_that_hooks_logging_works_after_the_attempt(
    log: AttemptLog, tmp_path: Path
) -> None:
    """As Sentry's does: it puts its own function around the one it finds, once in the life of a
    process.
    """
    heard: list[str] = []
    plain = logging.Logger.callHandlers
    try:
        with log.open():
            inner = logging.Logger.callHandlers

            def listen(logger: logging.Logger, record: logging.LogRecord) -> None:
                heard.append(record.getMessage())
                inner(logger, record)

            logging.Logger.callHandlers = listen  # type: ignore[method-assign, assignment]
            log.logger.info("in the first")
        log.logger.warning("between")
        second = AttemptLog(Files(str(tmp_path)), "_staging/j/job.logs/g.2-n-c.log")
        with second.open():
            second.logger.info("in the second")
        assert logging.Logger.callHandlers is listen
    finally:
        logging.Logger.callHandlers = plain  # type: ignore[method-assign]
    assert heard == ["in the first", "between", "in the second"]
    assert [line.partition(": ")[2] for line in text_of(log).splitlines()] == ["in the first"]
    assert [line.partition(": ")[2] for line in text_of(second).splitlines()] == ["in the second"]


def test_log_records_of_custom_classes_are_logged(log: AttemptLog) -> None:
    class Braces(logging.LogRecord):
        def getMessage(self) -> str:
            return str(self.msg).format(*self.args or ())

    usual = logging.getLogRecordFactory()
    try:
        with log.open(), logging_restored():
            logging.setLogRecordFactory(Braces)
            log.logger.info("{} and {{{}}}", 1, 2)
            log.logger.info("after that")
        assert logging.getLogRecordFactory() is usual
    finally:
        logging.setLogRecordFactory(usual)
    assert [line.partition(": ")[2] for line in text_of(log).splitlines()] == [
        "1 and {2}",
        "after that",
    ]


def test_a_secret_in_a_traceback_already_printed_by_a_step_handler_is_masked(
    tmp_path: Path, logger: logging.Logger
) -> None:
    log = AttemptLog(Files(str(tmp_path)), "_staging/j/job.logs/g.1-n-c.log", hush())
    logger.addHandler(logging.StreamHandler(io.StringIO()))
    console = io.StringIO()
    root = logging.StreamHandler(console)
    logging.getLogger().addHandler(root)
    try:
        with log.open():
            try:
                raise ValueError("hush-hush")
            except ValueError:
                logger.exception("it failed")
    finally:
        logging.getLogger().removeHandler(root)
    for text in (text_of(log), console.getvalue()):
        assert "ValueError: ${secret:S}" in text
        assert "hush" not in text


def test_secrets_in_names_of_loggers_threads_and_levels_are_masked(tmp_path: Path) -> None:
    log = AttemptLog(Files(str(tmp_path)), "_staging/j/job.logs/g.1-n-c.log", hush())
    console = io.StringIO()
    handler = logging.StreamHandler(console)
    handler.setFormatter(
        logging.Formatter("%(levelname)s %(name)s %(threadName)s %(user)s %(message)s")
    )
    logging.getLogger().addHandler(handler)
    logging.addLevelName(35, "hush-hush")
    try:
        with log.open():
            say = partial(
                logging.getLogger("of.hush-hush").log,
                35,
                "said",
                extra={"user": "hush-hush"},
                stack_info=True,
            )
            thread = threading.Thread(target=say, name="hush-hush")
            thread.start()
            thread.join()
    finally:
        logging.addLevelName(35, "Level 35")
        logging.getLogger().removeHandler(handler)
    assert "${secret:S} of.${secret:S} ${secret:S} ${secret:S} said" in console.getvalue()
    assert "${secret:S} of.${secret:S}: said" in text_of(log)
    assert "hush" not in console.getvalue() + text_of(log)


def test_a_logger_without_propagation_is_not_in_the_log(
    log: AttemptLog, logger: logging.Logger
) -> None:
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    with log.open():
        logger.warning("unheard")
        log.logger.info("heard")
    assert "unheard" not in text_of(log)
    assert " heard" in text_of(log)


def test_the_worker_console_shows_prints_once_and_survives_a_step_that_closes_it(
    log: AttemptLog,
) -> None:
    stream = io.StringIO()
    console = logging.StreamHandler(stream)
    usual = logging.Formatter("%(message)s")
    console.setFormatter(usual)
    root = logging.getLogger()
    before = list(root.handlers)
    root.handlers = [console]
    try:
        with contextlib.redirect_stdout(stream), log.open():
            with logging_restored():
                print("printed")
                console.setFormatter(logging.Formatter("%(unknown)s"))
                logging.config.dictConfig({"version": 1, "root": {"level": "CRITICAL"}})
            log.logger.warning("after the steps")
        assert root.handlers == [console]
    finally:
        root.handlers = before
    assert stream.getvalue() == "printed\nafter the steps\n"
