"""How a bug is put in on purpose, and how the simulator searches for it."""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from tests.simulation.model.store import ModelStore
from tests.simulation.stage.history import HistoryResult as History
from tests.simulation.stage.history import simulate

Patches = list[tuple[Any, str, Any]]


@dataclass(frozen=True, slots=True)
class Planted:
    """A bug, the promise that it breaks, and within how many seeds it must be seen to break it.

    ``start`` is near a seed that finds it, so that the suite does not play hundreds of histories for each bug;
    ``python -m tests.simulation --planted`` begins at seed 0. A change of the code changes all histories; then the
    search takes longer, and ``start`` can be set again. ``commands``: the user does more than submit.
    """

    name: str
    breaks: str
    start: int
    store: type[ModelStore] = ModelStore
    patches: Callable[[], Patches] = list
    commands: bool = False
    within: int = 400

    def search(self, start: int | None = None) -> History | None:
        """The first history, from ``start`` on, in which it breaks its promise. It may break others before."""
        first = self.start if start is None else start
        with self.planted():
            for seed in range(first, first + self.within):
                history = simulate(seed, store=self.store, commands=self.commands)
                if history.promise == self.breaks:
                    return history
        return None

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for target, name, value in self.patches():
                stack.enter_context(patch.object(target, name, value))
            yield


def edited(function: Any, old: str, new: str) -> Patches:
    """``function`` with one place of its source changed, wherever it is known by its name."""
    source = textwrap.dedent(inspect.getsource(function))
    found = source.count(old)
    assert found == 1, f"{function.__qualname__} has changed: {old!r} stands {found} times in it"
    made: dict[str, Any] = {}
    flags = __future__.annotations.compiler_flag
    code = compile(source.replace(old, new), f"{function.__qualname__}, edited", "exec", flags)
    exec(code, function.__globals__, made)
    name = function.__name__
    if "." in function.__qualname__:
        owner = getattr(sys.modules[function.__module__], function.__qualname__.split(".")[0])
        return [(owner, name, made[name])]
    modules = [module for module in list(sys.modules.values()) if getattr(module, "__dict__", {}).get(name) is function]
    return [(module, name, made[name]) for module in modules]
