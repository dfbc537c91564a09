"""A fresh runner: a new process that runs one attempt of a group with ``fresh: true``.

The runner that claimed the attempt starts the process, passes the claim, and waits. The process has
its own watchdog (docs/decisions/0017).
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Any, TypeGuard

import redis
from billiard.common import reset_signals

from unstuck.tasks.errors import NotBegun
from unstuck.tasks.log_lines import formatter
from unstuck.tasks.process import hang_alarm
from unstuck.tasks.process.shutdown_flag import ShutdownFlag
from unstuck.tasks.process.tree import end_strays, is_watchdog
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.runner.attempt import Attempt
from unstuck.tasks.runner.runner import Runner, start_runner
from unstuck.tasks.settings import settings
from unstuck.tasks.transport.celery_app import START_WITHIN
from unstuck.tasks.transport.lease import Claim

_SHOWN_EVERY = 5.0  # seconds between two notes of the waiting runner that it is alive


def wants_fresh(claim: object) -> TypeGuard[Claim]:
    """Return whether the group needs a fresh runner; False if its work order is unreadable."""
    if not isinstance(claim, Claim) or '"fresh":true' not in claim.stored[0]:
        return False
    try:
        return claim.work_order.group.fresh
    except Exception:  # noqa: BLE001 - the attempt itself reports what is wrong with its work order
        return False


def run_fresh(runner: Runner, claim: Claim) -> str:
    """Run the attempt in a fresh runner, and wait for its end.

    Raises:
        NotBegun: no fresh runner could be started, and no process runs the attempt.
    """
    work_order = claim.work_order
    flag = None if runner.shutdown_flag is None else runner.shutdown_flag.read_fd
    request = {
        "token": str(claim.token),
        "stored": claim.stored,
        "queues": [work_order.group.queue_name] if work_order.group.spark else ["light"],
        "slots": runner.slots,
        "shutdown_flag": flag,
    }
    ours, child_end = socket.socketpair()
    with ours, child_end:
        try:
            command = [sys.executable, "-m", "unstuck.tasks.runner.fresh_process"]
            process = runner.start_helper(
                command, stdin=child_end, pass_fds=[] if flag is None else [flag]
            )
        except OSError as error:
            raise NotBegun(
                f"{runner.name} could not start a fresh runner: {type(error).__name__}: {error}"
            ) from error
        child_end.close()
        begun = b""
        try:
            with suppress(OSError):  # it may have ended already
                ours.sendall(json.dumps(request).encode() + b"\n")
                begun = _await_begin(runner, ours, claim.token)
            if not begun:
                raise NotBegun(
                    f"the fresh runner that {runner.name} started ended with {process.wait()} and "
                    "did nothing"
                )
            ours.close()
            hang_alarm.cancel()  # from here on its watchdog counts the time
            _wait(runner, process)
        except BaseException:
            # This runner is told to end. The fresh runner hands the attempt back when it gets
            # SIGTERM.
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(runner.settings.stop_within(at_once=True))
            raise
        finally:
            hang_alarm.start()
    return "run by a fresh runner"


def _await_begin(runner: Runner, child: socket.socket, token: Token) -> bytes:
    """Renew the lease until the fresh runner says that it has begun; empty if it ended.

    On a busy host, a Python process may take longer to start than a lease lasts.
    """
    child.settimeout(runner.settings.lease_renew)
    while True:
        try:
            return child.recv(1)
        except TimeoutError:
            # The fresh runner hears of an instruction, or that the attempt is stale, by its own
            # watchdog. If Redis does not answer, the lease may lapse, as everywhere.
            with suppress(redis.RedisError):
                runner.lease.renew(token, runner.name)


def _wait(runner: Runner, process: subprocess.Popen[bytes]) -> None:
    while True:
        try:
            process.wait(_SHOWN_EVERY)
            return
        except subprocess.TimeoutExpired:
            runner.watchdog.taken()
            runner.end_idle_session()


def main() -> None:
    """Run the fresh runner: read the claim from standard input, a socket, and confirm the start."""
    request: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    reset_signals()  # SIGTERM ends the attempt, as in a child of Celery's pool
    console = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("[%(asctime)s: %(levelname)s/fresh-%(process)d] %(message)s")
    console.setFormatter(formatter(settings().log, text))
    logging.basicConfig(handlers=[console], level=logging.INFO)
    flag = None if request["shutdown_flag"] is None else ShutdownFlag(request["shutdown_flag"])
    # As in a child of the pool: no end of this process may hang.
    hang_alarm.install(START_WITHIN + settings().dispatch_timeout)
    runner = start_runner(
        queues=request["queues"], slots=request["slots"], shutdown_flag=flag, prewarm=False
    )
    os.write(0, b"1")
    try:
        token = Token.parse(request["token"])
        Attempt(runner, token, Claim(token, tuple(request["stored"])), runner.lease.finish).run()
    except Exception:
        logging.getLogger(__name__).exception("%s has failed", request["token"])
    finally:
        runner.end()
        # The runner above adopts what is left, such as the JVM, and would be replaced with its warm
        # session for it.
        with suppress(OSError):  # no descriptor is free
            end_strays(is_watchdog)
        sys.stdout.flush()
        logging.shutdown()
        os._exit(0)  # a thread that a step has left must not keep the process


if __name__ == "__main__":
    main()
