"""Steps that leave the process as they did not find it, and one that says how it finds it."""

from __future__ import annotations

import builtins
import decimal
import gc
import importlib
import json
import locale
import logging
import os
import random
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
from typing import Any

import redis


def broken(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("patched by a step")


def rewrite(*_: Any, **__: Any) -> Any:
    return 1 / 0


def _time_zone() -> None:
    os.environ["TZ"] = "Pacific/Kiritimati"
    time.tzset()


def _time_zone_alone() -> None:
    """The variable is put back, as `mock.patch.dict` does, and the process keeps the zone."""
    before = os.environ.get("TZ")
    _time_zone()
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before


def _timer() -> None:
    signal.signal(signal.SIGVTALRM, broken)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.01)


def _recursion() -> None:
    """Little more than the step itself has used: C calls count, too, so the lowest that is taken is
    tried for.
    """
    for limit in range(20, 500, 5):
        try:
            sys.setrecursionlimit(limit + 5)
        except RecursionError:
            continue
        return


def _redis_class() -> None:
    """Hides a method that the class inherits, and replaces one of a base."""
    redis.Redis.evalsha = broken  # type: ignore[method-assign]
    redis.connection.AbstractConnection.send_packed_command = broken  # type: ignore[method-assign]


CODE = {
    "json": lambda: [setattr(json, name, broken) for name in ("dumps", "loads")],
    "redis": _redis_class,
    "os": lambda: [
        setattr(os, name, broken) for name in ("write", "read", "getcwd", "open", "killpg")
    ],
    "environ": lambda: setattr(os, "environ", {}),
    "builtins": lambda: [
        setattr(builtins, name, broken) for name in ("len", "callable", "isinstance", "open")
    ],
    "threading": lambda: [setattr(threading.Thread, name, broken) for name in ("start", "join")],
    "logging": lambda: [
        setattr(logging.Logger, name, broken) for name in ("info", "warning", "error", "log")
    ],
    "time": lambda: [setattr(time, name, broken) for name in ("time", "monotonic", "sleep")],
    "socket": lambda: setattr(socket, "socket", broken),
    "tempfile": lambda: setattr(tempfile, "TemporaryDirectory", broken),
    "random": lambda: setattr(random, "random", broken),
}
STATE = {
    "environment": os.environ.clear,
    "variable": lambda: os.environ.update(LEFT_BY_A_STEP="1"),
    "path": sys.path.clear,
    "importers": sys.meta_path.clear,
    "umask": lambda: os.umask(0o777),
    "sockets": lambda: socket.setdefaulttimeout(1e-9),
    "zone": _time_zone,
    "zone_alone": _time_zone_alone,
    "folder": lambda: os.chdir("/"),
    "decimals": lambda: setattr(decimal.getcontext(), "prec", 1),
    "traps": lambda: decimal.getcontext().traps.update({decimal.Inexact: True}),
    "handler": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "mask": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}),
    "timer": _timer,
    "files": lambda: resource.setrlimit(
        resource.RLIMIT_NOFILE, (8, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    ),
    "locale": lambda: locale.setlocale(
        locale.LC_ALL, "C.UTF-8" if locale.setlocale(locale.LC_ALL) == "C" else "C"
    ),
    "recursion": _recursion,
    "garbage": gc.disable,
    "trace": lambda: sys.settrace(lambda *_: None),
}


def leave(spark: Any, ctx: Any, what: str, then: str = "") -> None:
    (CODE | STATE)[what]()
    if then:
        raise ValueError(then)


def import_and_leave(spark: Any, ctx: Any, module: str, what: str) -> None:
    importlib.import_module(module)
    leave(spark, ctx, what)


def found(spark: Any, ctx: Any) -> None:
    """How this process is."""
    mask = os.umask(0)
    os.umask(mask)
    path = list(sys.path)
    ctx.result("pid", os.getpid())
    ctx.result(
        "found",
        {
            "environment": dict(os.environ),
            "path": path,
            "importers": [repr(one) for one in sys.meta_path],
            "umask": mask,
            "sockets": socket.getdefaulttimeout(),
            "zone": time.localtime(0).tm_hour,
            "folder": os.getcwd(),
            "decimals": repr(decimal.Context(decimal.getcontext().prec)),
            "traps": [bool(on) for on in decimal.getcontext().traps.values()],
            "handlers": [
                str(signal.getsignal(number)).partition(" at 0x")[0] for number in range(1, 32)
            ],
            "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            "timer": signal.getitimer(signal.ITIMER_VIRTUAL)[0],
            "files": resource.getrlimit(resource.RLIMIT_NOFILE),
            "locale": locale.setlocale(locale.LC_ALL),
            "recursion": sys.getrecursionlimit(),
            "garbage": gc.isenabled(),
            "trace": sys.gettrace() is None,
            "code": [
                holder.__dict__[name].__module__
                for holder, name in ((json, "dumps"), (time, "time"))
            ],
        },
    )


def rewrite_the_client(spark: Any, ctx: Any) -> None:
    """In place: nobody who compares functions finds it."""
    redis.connection.AbstractConnection.send_packed_command.__code__ = rewrite.__code__


def outside_of_the_steps(spark: Any, ctx: Any) -> None:
    """What runs after the steps fails, for a reason that nobody has thought of."""
    from unstuck.tasks.warehouse.marker import Marker

    Marker.__init__.__code__ = rewrite.__code__
