"""The process as a step found it, so that no step harms what runs in this process after it.

``Code`` is what our own code runs on: functions and classes of Python's own modules, of the Redis client, of Celery's
child and of Unstuck. ``_SETTINGS`` are what the kernel and the interpreter keep for a whole process. Both are put back
as soon as the steps are over, before a line of ours goes on: a patched ``json.dumps`` must not keep an outcome from the
record. A module that was imported may count on what it has set, so some changes replace the runner as well; which ones,
and what all this costs, stands in docs/decisions/0028.
"""

from __future__ import annotations

import decimal
import gc
import locale
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from unstuck.tasks.process.tree import working_folder

# Names of modules; with a dot at the end, of all that begin so. ``builtins`` is the first to be put back.
_USED = (
    *("builtins", "sys", "os", "posixpath", "io", "json.", "logging", "pathlib", "socket", "select", "selectors"),
    *("signal", "subprocess", "tempfile", "shutil", "threading", "queue", "time", "struct", "pickle", "re", "random"),
    *("secrets", "hashlib", "contextlib", "functools", "traceback", "importlib", "operator"),
    *("redis.client", "redis.connection", "redis.commands.core", "redis.retry", "redis.utils", "redis._parsers."),
    *("billiard.pool", "billiard.connection", "billiard.queues", "billiard.reduction", "celery.app.trace", "unstuck."),
)
_OWN = ("logging.Logger", "callHandlers")  # the log of the attempt puts its own there while it is open
# Bound here, so that a step which replaces them does not keep them from being put back.
_callable, _isinstance = callable, isinstance
_KINDS = (property, classmethod, staticmethod, type(sys), type(os.environ))
_HEAP, _FIXED = 1 << 9, 1 << 8  # of ``type.__flags__``: a class that Python code made; one that cannot be changed


class Code:
    """The functions and classes that our own code uses, as they were before the first step of this process."""

    def __init__(self) -> None:
        used = sorted(_used().items(), key=lambda item: item[0] != "builtins")
        modules = [_Part(name, vars(module), dict(vars(module))) for name, module in used]
        classes = [
            _Part(f"{name}.{made.__qualname__}", vars(made), dict(vars(made)), made)
            for name, module in used
            for made in {id(held): held for held in list(vars(module).values()) if _can_be_set(held, name)}.values()
        ]
        self._parts = [*modules, _Part("sys.modules", sys.modules, dict(used)), *classes]

    def put_back(self) -> list[str]:
        """Put back what was replaced or taken away, and take away what hides it; the names of all that was."""
        found: list[str] = []
        for part in self._parts:
            # Whole dictionaries first: that is what makes it cheap. Nothing is called until the builtins are whole.
            if part.held != part.as_it_was:
                found += part.put_back()
        return found


@dataclass(frozen=True, slots=True)
class _Part:
    """What one module holds, or one class: ``made``."""

    where: str
    held: Any  # its own dictionary, as it is now
    as_it_was: dict[str, Any]
    made: type | None = None

    def put_back(self) -> list[str]:
        changed = []
        for name, value in self.as_it_was.items():
            if name in self.held and self.held[name] is value:
                continue
            if (self.where, name) != _OWN and (self.made is not None or _is_code(value)):
                changed += [name]
                self._set(name, value)
        if self.made is not None:
            # What a class inherits is hidden by what is put on the class itself.
            for name in [name for name in self.held if name not in self.as_it_was and _is_code(self.held[name])]:
                changed += [name]
                type.__delattr__(self.made, name)
        return [f"{self.where}.{name}" for name in changed]

    def _set(self, name: str, value: Any) -> None:
        if self.made is None:
            self.held[name] = value
        else:
            type.__setattr__(self.made, name, value)


def _used() -> dict[str, Any]:
    return {
        name: module
        for name, module in list(sys.modules.items())
        if module is not None and any(name == one or (one[-1] == "." and f"{name}.".startswith(one)) for one in _USED)
    }


def _can_be_set(held: Any, module: str) -> bool:
    """True for a class of ``module`` whose attributes may be set at all."""
    return isinstance(held, type) and held.__module__ == module and held.__flags__ & (_HEAP | _FIXED) == _HEAP


def _is_code(value: Any) -> bool:
    """What is called or asked, and no number, text or list, which our own modules change as they go."""
    return _callable(value) or _isinstance(value, _KINDS)


# -- what the kernel and the interpreter keep for the whole process ------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Setting:
    """One thing that holds for the whole process. ``put_back`` gets what ``read`` answered before the steps."""

    what: str
    read: Callable[[], Any]
    put_back: Callable[[Any], object]


def _environment(before: Mapping[str, str]) -> None:
    for name in [name for name in os.environ if name not in before]:
        del os.environ[name]
    for name, value in before.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    time.tzset()  # TZ may be one of them


def _umask() -> int:
    mask = os.umask(0o077)  # there is no other way to ask; what a thread makes meanwhile is private
    os.umask(mask)
    return mask


def _set_path(before: list[str]) -> None:
    sys.path = list(before)


@cache
def _first_importers() -> tuple[Any, ...]:
    """Those of before the first step. A module may add others while it is imported, which stay."""
    return tuple(sys.meta_path)


def _importers() -> tuple[Any, ...]:
    return tuple(one for one in _first_importers() if one in sys.meta_path)


def _set_importers(before: tuple[Any, ...]) -> None:
    sys.meta_path[:] = [*before, *(one for one in sys.meta_path if one not in before)]


def _decimal_context() -> tuple[Any, ...]:
    return tuple(
        (one.prec, one.rounding, one.Emin, one.Emax, one.capitals, one.clamp, tuple(one.traps.values()))
        for one in (decimal.getcontext(), decimal.DefaultContext)
    )


def _set_decimal_context(before: tuple[Any, ...]) -> None:
    for one, values in zip((decimal.getcontext(), decimal.DefaultContext), before, strict=True):
        one.prec, one.rounding, one.Emin, one.Emax, one.capitals, one.clamp, traps = values
        for trap, value in zip(list(one.traps), traps, strict=True):
            one.traps[trap] = value


# SIGALRM is the fuse's, which keeps the handler of a step for its next attempt.
_SIGNALS = [n for n in range(1, 32) if n not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGALRM)]


def _signals() -> tuple[Any, ...]:
    return tuple(map(signal.getsignal, _SIGNALS))


def _set_signals(before: tuple[Any, ...]) -> None:
    for number, handler in zip(_SIGNALS, before, strict=True):
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


def _timers_run() -> tuple[bool, ...]:
    return tuple(signal.getitimer(timer)[0] > 0 for timer in _TIMERS)


def _stop_timers(before: tuple[bool, ...]) -> None:
    for timer, ran in zip(_TIMERS, before, strict=True):
        if not ran:
            signal.setitimer(timer, 0.0)


_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


def _set_limits(before: tuple[tuple[int, int], ...]) -> None:
    for limit, pair in zip(_LIMITS, before, strict=True):
        if resource.getrlimit(limit) != pair:
            resource.setrlimit(limit, pair)


def _set_folder(before: str | None) -> None:
    if before is not None:
        os.chdir(before)


def _not_at_all(before: Any) -> None:
    """Only a new process has it as it was."""


_ENVIRONMENT = _Setting("the environment", os.environ.copy, _environment)
_PATH = _Setting("sys.path", lambda: list(sys.path), _set_path)
# A step that lowers a limit may have used it up, and what it started has it, too: that is not put back.
_RESOURCES = _Setting("a resource limit", lambda: tuple(map(resource.getrlimit, _LIMITS)), _set_limits)
_SETTINGS = (
    # First of all what any other call may run into.
    _Setting("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    _Setting("the trace function", sys.gettrace, sys.settrace),
    _Setting("the profile function", sys.getprofile, sys.setprofile),
    _Setting("a timer", _timers_run, _stop_timers),
    _RESOURCES,
    _ENVIRONMENT,
    _PATH,
    _Setting("sys.meta_path", _importers, _set_importers),
    _Setting("the time zone", lambda: (time.tzname, time.timezone), lambda _: time.tzset()),
    _Setting("the working directory", working_folder, _set_folder),
    _Setting("the umask", _umask, os.umask),
    _Setting("socket.setdefaulttimeout", socket.getdefaulttimeout, socket.setdefaulttimeout),
    _Setting("the decimal context", _decimal_context, _set_decimal_context),
    _Setting("a signal handler", _signals, _set_signals),
    _Setting(
        "the signal mask",
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        lambda before: signal.pthread_sigmask(signal.SIG_SETMASK, before),
    ),
    _Setting("the locale", lambda: locale.setlocale(locale.LC_ALL), lambda at: locale.setlocale(locale.LC_ALL, at)),
    _Setting("gc.isenabled", gc.isenabled, lambda ran: gc.enable() if ran else gc.disable()),
    _Setting("gc.set_threshold", gc.get_threshold, lambda at: gc.set_threshold(*at)),
    _Setting("the priority", lambda: os.getpriority(os.PRIO_PROCESS, 0), _not_at_all),
    _Setting("the user", lambda: (os.getresuid(), os.getresgid()), _not_at_all),
    _Setting("the CPUs", lambda: os.sched_getaffinity(0), lambda cpus: os.sched_setaffinity(0, cpus)),
)


class ProcessSnapshot:
    """The process before the steps of one attempt.

    Attributes:
        changed: in words, what the steps have changed, as far as that was looked at.
        spoiled: it is not enough to put that back: the runner is to be replaced.
    """

    def __init__(self, code: Code, *, others_import: bool) -> None:
        """``others_import``: Spark is being started meanwhile in a thread of ours, which sets variables and imports."""
        self._code = code
        self._others_import = others_import
        self._before = [(setting, setting.read()) for setting in _SETTINGS]
        self._modules = len(sys.modules)
        self.changed: list[str] = []
        self.spoiled = False

    def imported(self) -> None:
        """The module of a step was imported. What it has added to the environment and to ``sys.path`` is its own."""
        if len(sys.modules) == self._modules:
            return
        self._modules = len(sys.modules)
        self._keep_additions()
        if any(_differs(setting, before) for setting, before in self._before):
            self.spoiled = True

    def put_code_back(self) -> None:
        """Between two steps: what our own code needs. A step may set variables for the next one of its group."""
        try:
            found = self._code.put_back()
        except Exception as error:  # noqa: BLE001 - raised by what a step has put there: it was asked whether it is equal
            found = [f"what cannot be compared ({type(error).__name__})"]
        if found:
            self.changed += found
            self.spoiled = True

    def put_back(self) -> None:
        """All of it."""
        self.put_code_back()
        if self._others_import:
            self._keep_additions()
        grown = len(sys.modules) > self._modules and not self._others_import
        for setting, before in self._before:
            if not _differs(setting, before):
                continue
            self.changed.append(_words(setting, before))
            try:
                setting.put_back(before)
            except Exception:  # noqa: BLE001 - whatever the reason is: a new process has it as it was
                self.spoiled = True
            if grown or setting is _RESOURCES or _differs(setting, before):
                self.spoiled = True

    def _keep_additions(self) -> None:
        self._before = [(setting, _with_additions(setting, before)) for setting, before in self._before]


def _differs(setting: _Setting, before: Any) -> bool:
    try:
        return bool(setting.read() != before)
    except Exception:  # noqa: BLE001 - what cannot be read is not as it was
        return True


def _with_additions(setting: _Setting, before: Any) -> Any:
    if setting is _ENVIRONMENT:
        return {**os.environ, **before}
    if setting is _PATH and all(entry in sys.path for entry in before):
        return list(sys.path)
    return before


def _words(setting: _Setting, before: Any) -> str:
    """``setting``; of the environment the names that were changed, never their values."""
    if setting is not _ENVIRONMENT:
        return setting.what
    now = dict(os.environ)
    names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    return f"{setting.what} ({', '.join(names[:5])}{', …' if len(names) > 5 else ''})"
