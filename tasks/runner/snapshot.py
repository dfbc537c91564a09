"""The process snapshot: what the steps of an attempt change in this process is restored after them.

``Code`` holds the functions and classes that our own code uses, and ``_SETTINGS`` what the kernel and the interpreter
keep for a whole process. Some changes also replace the runner (docs/decisions/0028).
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from unstuck.tasks.process.tree import working_folder

# Names of modules; with a dot at the end, of all that begin so. ``builtins`` is restored first.
_USED = (
    *("builtins", "sys", "os", "posixpath", "io", "json.", "logging", "pathlib", "socket", "select", "selectors"),
    *("signal", "subprocess", "tempfile", "shutil", "threading", "queue", "time", "struct", "pickle", "re", "random"),
    *("secrets", "hashlib", "contextlib", "functools", "traceback", "importlib", "operator"),
    "concurrent.futures.",
    *("redis.client", "redis.connection", "redis.commands.core", "redis.retry", "redis.utils", "redis._parsers."),
    *("billiard.pool", "billiard.connection", "billiard.queues", "billiard.reduction", "celery.app.trace", "unstuck."),
)
_OWN = ("logging.Logger", "callHandlers")  # the log of the attempt replaces it while the log is open
# Bound here, because a step may replace the builtins themselves.
_callable, _isinstance = callable, isinstance
_KINDS = (property, classmethod, staticmethod, type(sys), type(os.environ))
_HEAP, _FIXED = 1 << 9, 1 << 8  # of ``type.__flags__``: a class made by Python code; a class that cannot be changed


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
        """Restore what was replaced, removed or hidden. Returns the names."""
        found: list[str] = []
        for part in self._parts:
            # Comparing whole dictionaries is cheap, and calls nothing before the builtins are restored.
            if part.held != part.as_it_was:
                found += part.put_back()
        return found


@dataclass(frozen=True, slots=True)
class _Part:
    """The attributes of one module, or of the class ``made``."""

    where: str
    held: Any  # the dictionary of the module or class, as it is now
    as_it_was: dict[str, Any]
    made: type | None = None

    def put_back(self) -> list[str]:
        changed = []
        for name, value in self.as_it_was.items():
            if name in self.held and self.held[name] is value:
                continue
            if (self.where, name) != _OWN and (self.made is not None or _is_code(value)):
                changed += [name]
                if self.made is None:
                    self.held[name] = value
                else:
                    type.__setattr__(self.made, name, value)
        if self.made is not None:
            # A new attribute of a class hides the one that the class inherits.
            for name in [name for name in self.held if name not in self.as_it_was and _is_code(self.held[name])]:
                changed += [name]
                type.__delattr__(self.made, name)
        return [f"{self.where}.{name}" for name in changed]


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
    """True for what is called or asked; false for numbers, texts and lists, which our own modules change themselves."""
    return _callable(value) or _isinstance(value, _KINDS)


# -- what the kernel and the interpreter keep for the whole process ------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Setting:
    """One setting of the process. ``put_back`` gets what ``read`` returned before the steps."""

    what: str
    read: Callable[[], Any]
    put_back: Callable[[Any], object]


def _setting_of_each(
    what: str, keys: Sequence[Any], read: Callable[[Any], Any], put_back: Callable[[Any, Any], object]
) -> _Setting:
    """A setting with a value for each of ``keys``. ``put_back`` gets a key and its value."""

    def put_all_back(before: tuple[Any, ...]) -> None:
        for key, value in zip(keys, before, strict=True):
            if read(key) != value:
                put_back(key, value)

    return _Setting(what, lambda: tuple(map(read, keys)), put_all_back)


def _environment(before: Mapping[str, str]) -> None:
    for name in [name for name in os.environ if name not in before]:
        del os.environ[name]
    for name, value in before.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    time.tzset()  # TZ may be one of them


def _umask() -> int:
    mask = os.umask(0o077)  # there is no other way to read the mask; what a thread creates meanwhile is private
    os.umask(mask)
    return mask


@cache
def _first_importers() -> tuple[Any, ...]:
    """Those from before the first step. A module that is imported may add others, which stay."""
    return tuple(sys.meta_path)


def _importers() -> tuple[Any, ...]:
    return tuple(one for one in _first_importers() if one in sys.meta_path)


def _set_importers(before: tuple[Any, ...]) -> None:
    sys.meta_path[:] = [*before, *(one for one in sys.meta_path if one not in before)]


def _decimal_values(of: Callable[[], decimal.Context]) -> dict[str, Any]:
    context = of()
    names = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")
    return {**{name: getattr(context, name) for name in names}, "traps": dict(context.traps)}


def _set_decimal_values(of: Callable[[], decimal.Context], values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(of(), name, value)


# SIGALRM belongs to the hang alarm, which keeps the handler of a step for the next attempt.
_SIGNALS = [n for n in range(1, 32) if n not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGALRM)]
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


def _not_at_all(before: Any) -> None:
    """Only a new process has it as it was."""


_ENVIRONMENT = _Setting("the environment", os.environ.copy, _environment)
_PATH = _Setting("sys.path", lambda: list(sys.path), lambda before: setattr(sys, "path", list(before)))
# A step that lowers a limit may have used it up, and its child processes have inherited it: neither is put back.
_RESOURCES = _setting_of_each("a resource limit", _LIMITS, resource.getrlimit, resource.setrlimit)
_SETTINGS = (
    # First what may make any other call fail.
    _Setting("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    _Setting("the trace function", sys.gettrace, sys.settrace),
    _Setting("the profile function", sys.getprofile, sys.setprofile),
    _setting_of_each(
        *("a timer", _TIMERS, lambda timer: signal.getitimer(timer)[0] > 0),
        lambda timer, ran: ran or signal.setitimer(timer, 0.0),
    ),
    _RESOURCES,
    _ENVIRONMENT,
    _PATH,
    _Setting("sys.meta_path", _importers, _set_importers),
    _Setting("the time zone", lambda: (time.tzname, time.timezone), lambda _: time.tzset()),
    _Setting("the working directory", working_folder, os.chdir),
    _Setting("the umask", _umask, os.umask),
    _Setting("socket.setdefaulttimeout", socket.getdefaulttimeout, socket.setdefaulttimeout),
    _setting_of_each(
        *("the decimal context", (decimal.getcontext, lambda: decimal.DefaultContext)),
        *(_decimal_values, _set_decimal_values),
    ),
    _setting_of_each(
        *("a signal handler", _SIGNALS, signal.getsignal),
        lambda number, handler: handler is None or signal.signal(number, handler),
    ),
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
        spoiled: putting it back is not enough, so the runner is to be replaced.
    """

    def __init__(self, code: Code, *, others_import: bool) -> None:
        """``others_import``: a thread of ours starts Spark meanwhile, which sets variables and imports modules."""
        self._code = code
        self._others_import = others_import
        self._before = [(setting, setting.read()) for setting in _SETTINGS]
        self._modules = len(sys.modules)
        self.changed: list[str] = []
        self.spoiled = False

    def imported(self) -> None:
        """The module of a step was imported, and keeps what it has added to the environment and to ``sys.path``."""
        if len(sys.modules) == self._modules:
            return
        self._modules = len(sys.modules)
        self._keep_additions()
        if any(_differs(setting, before) for setting, before in self._before):
            self.spoiled = True

    def put_code_back(self) -> None:
        """Restore between two steps what our own code uses. A step may set variables for the next step of its group."""
        try:
            found = self._code.put_back()
        except Exception as error:  # noqa: BLE001 - an object of a step may raise when it is compared
            found = [f"what cannot be compared ({type(error).__name__})"]
        if found:
            self.changed += found
            self.spoiled = True

    def put_back(self) -> None:
        """Restore everything after the last step."""
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
            except Exception:  # noqa: BLE001 - whatever the reason is, a new process has the setting as it was
                self.spoiled = True
            if grown or setting is _RESOURCES or _differs(setting, before):
                self.spoiled = True

    def _keep_additions(self) -> None:
        self._before = [(setting, _with_additions(setting, before)) for setting, before in self._before]


def _differs(setting: _Setting, before: Any) -> bool:
    try:
        return bool(setting.read() != before)
    except Exception:  # noqa: BLE001 - a setting that cannot be read has changed
        return True


def _with_additions(setting: _Setting, before: Any) -> Any:
    if setting is _ENVIRONMENT:
        return {**os.environ, **before}
    if setting is _PATH and all(entry in sys.path for entry in before):
        return list(sys.path)
    return before


def _words(setting: _Setting, before: Any) -> str:
    """The name of ``setting``; for the environment also the changed names, never their values."""
    if setting is not _ENVIRONMENT:
        return setting.what
    now = dict(os.environ)
    names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    return f"{setting.what} ({', '.join(names[:5])}{', …' if len(names) > 5 else ''})"
