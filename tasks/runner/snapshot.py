"""The process snapshot: what the steps of an attempt change in this process is put back after them.

Most changes also replace the runner (docs/decisions/0017). After each step the code is compared
that an outcome needs, and once a second at most all that ours uses.
"""

from __future__ import annotations

import decimal
import gc
import itertools
import locale
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from unstuck.tasks.process.tree import working_folder
from unstuck.tasks.steps.execute import users_code

COMPARED_EVERY = 1.0  # seconds between two comparisons of all code

# Names of modules; with a dot at the end, of all that begin so. ``builtins`` is restored first.
_FOR_AN_OUTCOME = (
    "builtins",
    "os",
    "time",
    "json.",
    "threading",
    "logging",
    "redis.client",
    "redis.connection",
)
_USED = (
    *(
        "sys",
        "posixpath",
        "io",
        "pathlib",
        "socket",
        "select",
        "selectors",
        "signal",
        "subprocess",
        "tempfile",
    ),
    *(
        "shutil",
        "queue",
        "struct",
        "pickle",
        "re",
        "random",
        "secrets",
        "hashlib",
        "contextlib",
        "functools",
    ),
    *("traceback", "importlib", "operator", "concurrent.futures."),
    *("redis.commands.core", "redis.retry", "redis.utils", "redis._parsers."),
    *(
        "billiard.pool",
        "billiard.connection",
        "billiard.queues",
        "billiard.reduction",
        "celery.app.trace",
        "unstuck.",
    ),
)
_OWN = (logging.Logger, "callHandlers")  # the log of the attempt replaces it while the log is open
# Bound here, because a step may replace the builtins themselves.
_callable, _isinstance, _type, _map, _chained = (
    callable,
    isinstance,
    type,
    map,
    itertools.chain.from_iterable,
)
_now = time.monotonic
# Py_TPFLAGS_HEAPTYPE without Py_TPFLAGS_IMMUTABLETYPE: Python code can change no other class.
_HEAP, _IMMUTABLE = 1 << 9, 1 << 8
_KINDS = (property, classmethod, staticmethod, type(sys), type(os.environ))


class _Compared:
    """The functions and classes of some modules, as they were."""

    def __init__(self, names: Sequence[str]) -> None:
        used = (
            (name, module)
            for name, module in list(sys.modules.items())
            if module is not None and _is_one_of(name, names)
        )
        self._modules = dict(sorted(used, key=lambda item: item[0] != "builtins"))
        classes = {
            kind: f"{name}.{kind.__qualname__}"
            for name, module in self._modules.items()
            for kind in list(vars(module).values())
            if isinstance(kind, type)
            and kind.__module__ == name
            and kind.__flags__ & (_HEAP | _IMMUTABLE) == _HEAP
        }
        owners = [*((module, name) for name, module in self._modules.items()), *classes.items()]
        self._owners = [(name, owner, vars(owner), dict(vars(owner))) for owner, name in owners]
        self._changing = [entry for entry in self._owners if entry[1] is _OWN[0]]
        self._views = [now.values() for _, owner, now, _ in self._owners if owner is not _OWN[0]]
        self._values = self._all_values()

    def _all_values(self) -> list[Any]:
        """One list takes half the time of a look at each dictionary."""
        return [*_chained(self._views), *_map(sys.modules.get, self._modules)]

    def put_back(self) -> list[str]:
        """Restore what was replaced, removed or hidden. Returns the names."""
        changed: list[str] = []
        try:
            same = self._all_values() == self._values
            for where, owner, now, before in self._changing if same else self._owners:
                # Comparing whole dictionaries is cheap, and calls nothing before the builtins are
                # restored.
                if now != before:
                    changed += [f"{where}.{name}" for name in _restore(owner, now, before)]
            if same:
                return changed
            lost = {
                name: module
                for name, module in self._modules.items()
                if sys.modules.get(name) is not module
            }
            sys.modules.update(lost)
            self._values = self._all_values()  # modules of ours change values that are no code
            return [*changed, *(f"sys.modules.{name}" for name in lost)]
        except Exception as error:  # noqa: BLE001
            # An object of a step may raise when it is compared.
            return [*changed, f"what cannot be compared ({type(error).__name__})"]


class Code:
    """The functions and classes that our own code uses, as they were before the first step of this
    process.

    Attributes:
        for_an_outcome: those without which an attempt could not record its outcome.
        sure: all were compared since the last step.
    """

    def __init__(self, *, watched: bool = True) -> None:
        """``watched``: False for a process that ends with its job, where nothing is compared."""
        self.for_an_outcome = _Compared(_FOR_AN_OUTCOME if watched else ())
        self._rest = _Compared(_USED if watched else ())
        self._at = _now()
        self.sure = True

    @property
    def due(self) -> bool:
        """True if steps have run since all were compared, a second ago or longer."""
        return not self.sure and _now() - self._at >= COMPARED_EVERY

    def put_rest_back(self) -> list[str]:
        """Restore what an outcome does not need. Returns the names of what was replaced."""
        self._at, self.sure = _now(), True
        return self._rest.put_back()


def _is_one_of(module: str, names: Sequence[str]) -> bool:
    return any(
        module == pattern or (pattern[-1] == "." and f"{module}.".startswith(pattern))
        for pattern in names
    )


def _restore(owner: Any, now: Any, before: dict[str, Any]) -> list[str]:
    """Restore the attributes of a module or a class.

    Returns the names of those that had changed.
    """
    of_class = _isinstance(owner, _type)
    # Our own modules change their numbers, texts and lists themselves.
    changed = [
        name
        for name, value in before.items()
        if (name not in now or now[name] is not value)
        and (of_class or _is_code(value))
        and (owner, name) != _OWN
    ]
    for name in changed:
        if of_class:
            _type.__setattr__(owner, name, before[name])
        else:
            now[name] = before[name]
    # A new attribute of a class hides the one that the class inherits.
    hiding = (
        [name for name in now if name not in before and _is_code(now[name])] if of_class else []
    )
    for name in hiding:
        _type.__delattr__(owner, name)
    return changed + hiding


def _is_code(value: Any) -> bool:
    return _callable(value) or _isinstance(value, _KINDS)


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
    mask = os.umask(
        0o077
    )  # there is no other way to read the mask; what a thread creates meanwhile is private
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
_COMMON = (
    _ENVIRONMENT,
    _ZONE,
    _PATH,
    _FOLDER,
)  # many steps change these, so they replace no runner
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
        changed: in words, what the steps have changed, as far as that was looked at.
        spoiled: putting it back is not enough, so the runner is to be replaced.
        doubtful: a step has failed, maybe by code that a step of an earlier attempt had replaced.
    """

    def __init__(self, code: Code, *, others_import: bool) -> None:
        """``others_import``: a thread of ours starts Spark meanwhile, which sets variables and
        imports modules.
        """
        self._code = code
        self._others_import = others_import
        self._before = {what: read() for what, (read, _) in _SETTINGS.items()}
        self._modules = len(sys.modules)
        self._unsure = not code.sure
        self.changed: list[str] = []
        self.spoiled = self.doubtful = False

    def imported(self) -> None:
        """The module of a step was imported, and keeps what it has added to the environment and to
        ``sys.path``.
        """
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            self._keep_additions()
            self.spoiled |= any(
                read() != self._before[what] for what, (read, _) in _SETTINGS.items()
            )

    def run(self, step: Callable[[], None]) -> None:
        """Run a step, and restore after it what our own code uses. It may set variables for the
        next step of its group.

        Raises: StepRaised: the step failed.
        """
        self._code.sure, failed = False, True
        try:
            with users_code():
                step()
            failed = False
        finally:
            replaced = self._replaced(self._code.for_an_outcome.put_back())
            if (failed or replaced or self._code.due) and self._replaced(
                self._code.put_rest_back()
            ):
                self.doubtful = failed and self._unsure

    def _replaced(self, names: list[str]) -> bool:
        self.changed += names
        self.spoiled |= bool(names)
        return bool(names)

    def put_back(self) -> None:
        """Restore the rest after the last step."""
        if self._others_import:
            self._keep_additions()
        grown = len(sys.modules) > self._modules and not self._others_import
        for what, (read, put_back) in _SETTINGS.items():
            before = self._before[what]
            try:
                if (now := read()) == before:
                    continue
                self.changed.append(f"{what}{_names(before, now) if what == _ENVIRONMENT else ''}")
                put_back(before)
                self.spoiled |= grown or what not in _COMMON or read() != before
            except Exception:  # noqa: BLE001
                # Whatever the reason, a new process has the original setting.
                self.spoiled = True

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
