"""Restore what the steps of an attempt changed in this process.

Most changes also replace the runner (docs/decisions/0017). Code is compared after each step,
settings of the process after the last one.
"""

from __future__ import annotations

import builtins
import decimal
import gc
import locale
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import chain
from typing import Any

from unstuck.tasks.process.tree import working_folder
from unstuck.tasks.steps.execute import users_code

# Without their functions and classes no outcome can be recorded.
_COMPARED_MODULES = (
    *("os", "time", "json", "json.decoder", "json.encoder", "threading", "logging", "random"),
    *("shutil", "signal", "socket", "subprocess", "tempfile", "redis.client", "redis.connection"),
)
# Py_TPFLAGS_HEAPTYPE without Py_TPFLAGS_IMMUTABLETYPE: Python code can change no other class.
_HEAP, _IMMUTABLE = 1 << 9, 1 << 8
_KINDS = (property, classmethod, staticmethod, type(sys), type(os.environ))


class Code:
    """The original functions and classes that are needed to record an outcome."""

    def __init__(self, *, watched: bool = True) -> None:
        """Remember the code.

        Args:
            watched: False for a process that ends with its job, where nothing is compared.
        """
        owners: dict[str, Any] = {}
        for name in sys.modules.keys() & _COMPARED_MODULES if watched else ():
            owners |= {name: sys.modules[name], **_classes_in(name, sys.modules[name])}
        self._builtins = vars(builtins).copy() if watched else vars(builtins)
        self._before = [(name, owner, dict(vars(owner))) for name, owner in owners.items()]
        # The log of each attempt replaces a method of Logger, so that class is compared alone.
        self._logger = [entry for entry in self._before if entry[1] is logging.Logger]
        self._attributes = [
            vars(owner).values() for _, owner, _ in self._before if owner is not logging.Logger
        ]
        self._values = self._all_values()

    def put_back(self) -> list[str]:
        """Restore what was replaced, removed or hidden. Returns the names."""
        now = vars(builtins)
        replaced = []
        if now != self._builtins:  # calls nothing that a step may have replaced
            before = now.copy()
            now.update(self._builtins)
            replaced = [f"builtins.{name}" for name in now if now[name] is not before.get(name)]
        try:
            same = self._all_values() == self._values
            for name, owner, attributes in self._logger if same else self._before:
                replaced += [f"{name}.{attribute}" for attribute in _restore(owner, attributes)]
            if not same:
                self._values = self._all_values()  # modules change values that are no code
        except Exception as error:  # noqa: BLE001
            # An object of a step may raise when it is compared.
            replaced.append(f"what cannot be compared ({type(error).__name__})")
        return replaced

    def _all_values(self) -> list[Any]:
        """Return the values of all attributes. Comparing one list takes half the time."""
        return [*chain.from_iterable(self._attributes)]


def _classes_in(name: str, module: Any) -> dict[str, type]:
    """Return the classes that ``module`` defines and that Python code can change."""
    return {
        f"{name}.{value.__qualname__}": value
        for value in list(vars(module).values())
        if isinstance(value, type)
        and value.__module__ == name
        and value.__flags__ & (_HEAP | _IMMUTABLE) == _HEAP
    }


def _restore(owner: Any, before: dict[str, Any]) -> list[str]:
    """Restore the code of a module or a class. Returns the names that had changed."""
    now = vars(owner)
    if now == before:
        return []
    changed = [
        name
        for name, value in before.items()
        if now.get(name) is not value and _is_code(value) and name != "callHandlers"
    ]
    for name in changed:
        setattr(owner, name, before[name])
    if not isinstance(owner, type):
        return changed
    # A new attribute of a class hides an inherited one.
    hiding = [name for name in now.keys() - before.keys() if _is_code(now[name])]
    for name in hiding:
        delattr(owner, name)
    return changed + hiding


def _is_code(value: Any) -> bool:
    return callable(value) or isinstance(value, _KINDS)


# -- what the kernel and the interpreter keep for the whole process --------------------------------


# What `os.environ` holds: a copy of that itself decodes each name and value, and takes a hundred
# times as long.
_environment: dict[bytes, bytes] = vars(os.environ)["_data"]


def environment() -> dict[str, str]:
    """A copy of `os.environ`."""
    return dict(_decoded(tuple(_environment.items())))


@lru_cache(maxsize=1)
def _decoded(variables: tuple[tuple[bytes, bytes], ...]) -> dict[str, str]:
    return {os.fsdecode(name): os.fsdecode(value) for name, value in variables}


def _set_environment(before: Mapping[bytes, bytes]) -> None:
    for name in [name for name in _environment if name not in before]:
        del os.environb[name]
    os.environb.update(before)
    time.tzset()  # TZ may be one of them


def _umask() -> int:
    # The mask can only be read by setting it; files that a thread creates meanwhile are private.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _stop_timers(before: list[bool]) -> None:
    for timer, ran in zip(_TIMERS, before, strict=True):
        if not ran:
            signal.setitimer(timer, 0.0)


def _set_limits(before: list[tuple[int, int]]) -> None:
    for limit, values in zip(_LIMITS, before, strict=True):
        resource.setrlimit(limit, values)


def _set_handlers(before: list[Any]) -> None:
    for number, handler in zip(_SIGNALS, before, strict=True):
        if handler is not None and signal.getsignal(number) != handler:
            signal.signal(number, handler)


def _decimals() -> list[str]:
    context = decimal.getcontext().copy()
    context.clear_flags()  # each calculation raises some
    return [repr(context), repr(decimal.DefaultContext)]


def _cpus() -> set[int]:
    """The CPUs that this process may run on; empty on macOS, which binds no process."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def _leave_it(before: Any) -> None:
    """Our own code works without it, and the next runner has it as it was."""


# SIGALRM belongs to the hang alarm, which keeps the handler of a step for the next attempt.
_SIGNALS = [n for n in range(1, 32) if n not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGALRM)]
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
_handler = sys.modules["_signal"].getsignal  # makes no enums, which take most of the time
_IMPORTERS = tuple(sys.meta_path)  # a module that is imported may add others, which stay

_ENVIRONMENT, _ZONE, _PATH, _FOLDER = (
    "the environment",
    "the time zone",
    "sys.path",
    "the working directory",
)
# Many steps change these, so a change replaces no runner.
_COMMON = (_ENVIRONMENT, _ZONE, _PATH, _FOLDER)
# By name: how to read it, and how to put it back. First what may make any other call fail.
_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "the recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
    "the trace function": (sys.gettrace, sys.settrace),
    "the profile function": (sys.getprofile, sys.setprofile),
    "a timer": (lambda: [signal.getitimer(timer)[0] > 0 for timer in _TIMERS], _stop_timers),
    "a resource limit": (lambda: [resource.getrlimit(limit) for limit in _LIMITS], _set_limits),
    _ENVIRONMENT: (_environment.copy, _set_environment),
    _ZONE: (lambda: (time.tzname, time.timezone), lambda _: time.tzset()),  # after the environment
    _PATH: (lambda: list(sys.path), lambda before: setattr(sys, "path", list(before))),
    "sys.meta_path": (
        lambda: [importer for importer in _IMPORTERS if importer in sys.meta_path],
        lambda before: sys.meta_path.extend(
            importer for importer in before if importer not in sys.meta_path
        ),
    ),
    _FOLDER: (working_folder, os.chdir),
    "the umask": (_umask, os.umask),
    "socket.setdefaulttimeout": (socket.getdefaulttimeout, socket.setdefaulttimeout),
    "a signal handler": (lambda: [_handler(number) for number in _SIGNALS], _set_handlers),
    "the signal mask": (
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        lambda before: signal.pthread_sigmask(signal.SIG_SETMASK, before),
    ),
    "the locale": (
        lambda: locale.setlocale(locale.LC_ALL),
        lambda before: locale.setlocale(locale.LC_ALL, before),
    ),
    "the decimal context": (_decimals, _leave_it),
    "the garbage collector": (lambda: (gc.isenabled(), gc.get_threshold()), _leave_it),
    "the priority": (lambda: os.getpriority(os.PRIO_PROCESS, 0), _leave_it),
    "the user": (lambda: (os.getuid(), os.geteuid(), os.getgid(), os.getegid()), _leave_it),
    "the CPUs": (_cpus, _leave_it),
}


class ProcessSnapshot:
    """The process before the steps of one attempt.

    Attributes:
        changed: what the steps have changed, in words.
        spoiled: restoring is not enough, so the runner is replaced.
    """

    def __init__(self, code: Code, *, others_import: bool) -> None:
        """Read the settings of the process.

        Args:
            others_import: a thread of ours starts Spark meanwhile, which sets variables and imports
                modules.
        """
        self._code = code
        self._others_import = others_import
        self._before = {what: read() for what, (read, _) in _SETTINGS.items()}
        self._modules = len(sys.modules)
        self.changed: list[str] = []
        self.spoiled = False

    def imported(self) -> None:
        """Keep what the import of a step's module added to the environment and to ``sys.path``."""
        if len(sys.modules) == self._modules:
            return
        self._modules = len(sys.modules)
        self._keep_additions()
        if any(read() != self._before[what] for what, (read, _) in _SETTINGS.items()):
            self.spoiled = True

    def run(self, step: Callable[[], None]) -> None:
        """Run a step, and restore the code that it replaced.

        A step may set variables for the next step of its group.

        Raises: StepRaised: the step failed.
        """
        try:
            with users_code():
                step()
        finally:
            if replaced := self._code.put_back():
                self.changed += replaced
                self.spoiled = True

    def put_back(self) -> None:
        """Restore the settings after the last step."""
        if self._others_import:
            self._keep_additions()
        # A module that a step imported inside its function may depend on what it set.
        grown = len(sys.modules) > self._modules and not self._others_import
        for what in _SETTINGS:
            try:
                self.spoiled |= self._put_back(what)
            except Exception:  # noqa: BLE001
                # Whatever the reason, a new process has the original setting.
                self.spoiled = True
        self.spoiled |= grown and bool(self.changed)

    def _put_back(self, what: str) -> bool:
        """Restore a setting. Returns whether the change replaces the runner."""
        read, put_back = _SETTINGS[what]
        before, now = self._before[what], read()
        if now == before:
            return False
        names = _names(before, now) if what == _ENVIRONMENT else ""
        self.changed.append(f"{what}{names}")
        put_back(before)
        return what not in _COMMON or bool(read() != before)

    def _keep_additions(self) -> None:
        self._before[_ENVIRONMENT] = {**_environment, **self._before[_ENVIRONMENT]}
        if all(entry in sys.path for entry in self._before[_PATH]):
            self._before[_PATH] = list(sys.path)


def _names(before: Mapping[bytes, bytes], now: Mapping[bytes, bytes]) -> str:
    """The names of the variables that differ, never their values."""
    names = sorted(
        os.fsdecode(name) for name in {*before, *now} if before.get(name) != now.get(name)
    )
    return f" ({', '.join(names[:5])}{', …' if len(names) > 5 else ''})"
