"""The Spark session of one attempt: opened and closed within times of their own."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from billiard.common import terminate_handler_fired

from unstuck.tasks.driver.driver import check_reaches
from unstuck.tasks.errors import NotBegun
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.runner.attempt_host import AttemptHost
from unstuck.tasks.spec.spark_conf import static_conf
from unstuck.tasks.spec.work_order import WorkOrder
from unstuck.tasks.steps.execute import StepRaised, users_code
from unstuck.tasks.time_zone import executors_in_zone

log = logging.getLogger(__name__)


def open_session(
    stack: ExitStack,
    runner: AttemptHost,
    token: Token,
    work_order: WorkOrder,
    conf: Mapping[str, str],
    tables: str,
) -> Any:
    """Open the session of the attempt ``token``. ``stack`` closes it.

    ``tables``: where its tables are stored.
    """
    zone = work_order.plan.zone
    stack.callback(runner.session_used)
    entered = ExitStack()
    try:
        with (
            runner.watchdog.clock("SESSION_TIMEOUT", runner.settings.session_timeout),
            users_code(),
        ):
            # Each attempt of a fresh group has a process of its own, and so a session that no other
            # group will use.
            runner.start_session(_own_conf(conf, zone) if work_order.group.fresh else None)
            session = entered.enter_context(runner.driver.attempt(str(token), conf, tables, zone))
    except StepRaised as raised:
        if isinstance(raised.error, NotBegun):
            raise raised.error from None  # the fault of this host or runner, and no step's
        raise
    stack.callback(partial(_close, runner, token, entered))
    check_reaches(session, work_order.plan.warehouse)
    return session


def _own_conf(conf: Mapping[str, str], zone: str) -> dict[str, str]:
    """Return the static conf of a session for one group, with its ``zone``, if any."""
    return {**(executors_in_zone(zone) if zone else {}), **static_conf(conf)}


def _close(runner: AttemptHost, token: Token, entered: ExitStack) -> None:
    """Close the session, within a time of its own: a query that runs on may not stop."""
    what = f"leaving the Spark session on {runner.name}"
    with runner.watchdog.clock("SESSION_TIMEOUT", runner.settings.session_timeout, what):
        try:
            entered.close()
        except BaseException:
            runner.replace()
            if terminate_handler_fired():
                raise  # this process was told to end
            log.exception(
                "%s: %s failed; this runner is replaced before it takes more work", token, what
            )
