"""The name ``module:function`` by which a worker imports a decorated function."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple

Function = Callable[..., Any]

_MAIN = ("__main__", "__mp_main__")  # the second: in a process that multiprocessing has spawned
_WRITE_A_FUNCTION = "Write a function with def at the top of the module"


class Place(NamedTuple):
    """A file and line of the user's code."""

    source: str
    line: int

    def __str__(self) -> str:
        return f"{self.source}:{self.line}"


class NotImportable(Exception):
    """No worker can import the function; the text says why and what to do."""


def place_of(function: Function) -> Place | None:
    """Return the file and line of an undecorated function; None for other callables."""
    code = getattr(_unwrapped(function), "__code__", None)
    return Place(code.co_filename, code.co_firstlineno) if code else None


def step_name(function: Function) -> str:
    """Return ``module:function``.

    Raises:
        NotImportable: the function has no such name.
    """
    _check_kind(function)
    owner = function.__self__ if inspect.ismethod(function) else None
    # A class method, maybe inherited: its qualified name is that of the class that defines it.
    if inspect.isclass(owner):
        module, path = owner.__module__, f"{owner.__qualname__}.{function.__name__}"
    else:
        module, path = function.__module__, function.__qualname__
    if "<" in path:
        raise NotImportable(_why_hidden(function, path))
    return f"{_main_module() if module in _MAIN else module}:{path}"


def check_resolves(function: Function, name: str) -> None:
    """Check that the step ``name`` leads to ``function``, or to a wrapper of it.

    Raises:
        NotImportable: it leads to something else.
    """
    path = name.partition(":")[2]
    module = function.__self__.__module__ if inspect.ismethod(function) else function.__module__
    target: Any = sys.modules.get(module)
    if target is None:
        raise NotImportable(
            f"the module {module} is not imported under this name, so a worker cannot import {name}"
        )
    for part in path.split("."):
        if not hasattr(target, part):
            raise NotImportable(f"{module} has no {path}, so a worker cannot import {name}")
        target = getattr(target, part)
    if not any(_is_same(layer, function) for layer in _layers(target)):
        raise NotImportable(_why_another(function, target, name))


def _layers(target: Any) -> Iterator[Any]:
    """Yield ``target``, and each function that it wraps."""
    for _ in range(sys.getrecursionlimit()):
        yield target
        if (target := getattr(target, "__wrapped__", None)) is None:
            return


def _is_same(layer: Any, function: Function) -> bool:
    if isinstance(function, staticmethod):
        function = function.__func__
    return layer is function or (
        inspect.ismethod(layer) and inspect.ismethod(function) and layer == function
    )


def _unwrapped(function: Function) -> Any:
    with suppress(ValueError):  # it wraps itself
        return inspect.unwrap(function)
    return function


def _check_kind(function: Any) -> None:
    """Check that a step is a function with a name. Raises: NotImportable."""
    if isinstance(function, functools.partial):
        raise NotImportable(
            "a functools.partial has no name that a worker can import. Write a function with def "
            "that makes the call, or give its arguments as params: of the group"
        )
    if isinstance(function, classmethod):
        raise NotImportable(
            "a classmethod is no step before its class is complete: job.group()(Class.method) "
            "after it"
        )
    if not callable(function):
        raise NotImportable(f"a step is a function, not a {type(function).__name__}")
    if not hasattr(function, "__qualname__"):
        raise NotImportable(
            f"an object of {type(function).__name__} has no name that a worker can import. "
            f"{_WRITE_A_FUNCTION} that calls it; a class that is a decorator needs "
            "functools.update_wrapper(self, function)"
        )


def _why_hidden(function: Any, path: str) -> str:
    if path.endswith("<lambda>"):
        return f"a lambda has no name that a worker can import. {_WRITE_A_FUNCTION}"
    outer = path.partition(".<locals>")[0]
    if (wrapped := _wrapped_without_name(function)) is not None:
        return (
            f"{outer}() returned a function of its own around {wrapped}, which a worker cannot "
            f"import. If {outer} is a decorator, add @functools.wraps({wrapped}) in it, or put it "
            "below @job.group()"
        )
    return (
        f"{function.__name__} is defined inside {outer}(), and a worker imports a step as "
        "module:function. Move it to the top of the module, and give what it takes from there as "
        "params: or for_each:"
    )


def _wrapped_without_name(function: Any) -> str | None:
    """Return the name of a module's function that a closure holds.

    A decorator without `functools.wraps` has such a closure.
    """
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # the cell is empty
            if (
                inspect.isfunction(cell.cell_contents)
                and "<" not in cell.cell_contents.__qualname__
            ):
                return cell.cell_contents.__name__
    return None


def _why_another(function: Function, target: Any, name: str) -> str:
    """Return why ``name`` does not lead to ``function``, for people."""
    path = name.partition(":")[2]
    if inspect.ismethod(function) and not inspect.isclass(function.__self__):
        return (
            f"{path} is a method of an object, which no worker has; it would be called as {name}, "
            f"without the object. {_WRITE_A_FUNCTION}, or a classmethod"
        )
    own, other = place_of(function), place_of(target)
    if other is None:
        return (
            f"a worker imports {name}, which is a {type(target).__name__} now. Give one of "
            "them "
            "another name"
        )
    if _unwrapped(target) is _unwrapped(function):
        return (
            f"a worker imports {name}, which is the function of {other} without the decorator that "
            "this group has. Write the decorators above each other, with @job.group() at the top"
        )
    if own == other:
        return (
            f"a worker imports {name}, which is another function of the same line, as one of a "
            "loop is or one after a reload of the module. For a loop use for_each: or a def for "
            "each group; @job.group() stands above other decorators"
        )
    return (
        f"a worker imports {name}, which is the function of {other}, and not that of {own}. Give "
        "one of them another name; @job.group() stands above other decorators"
    )


# -- the module of a program -----------------------------------------------------------------------


def _main_module() -> str:
    """Return the name by which a worker imports the program of this process.

    Raises: NotImportable.
    """
    main = sys.modules["__main__"]
    if (spec := getattr(main, "__spec__", None)) is not None:
        return str(spec.name)  # python -m
    file = getattr(main, "__file__", None)
    if not file:
        cell = (
            "a cell of a notebook"
            if hasattr(main, "get_ipython")
            else "what is typed in or given by python -c"
        )
        raise NotImportable(
            f"a worker cannot import {cell}. Write the job and its functions into a module, such "
            "as my_job.py beside it, and import that"
        )
    script = Path(os.path.realpath(file))
    for folder in _import_folders(script):
        if script.is_relative_to(folder) and _leads_to(folder, script):
            return _module_in(folder, script)
    root = next(folder for folder in script.parents if not (folder / "__init__.py").exists())
    raise NotImportable(
        f"{script} runs as a script, and no worker that is started in {Path.cwd()} can import its "
        f"functions. Start workers in {root}, and run `python -m {_module_in(root, script)}` there"
    )


def _import_folders(script: Path) -> list[Path]:
    """Return the folders of ``sys.path`` as a worker has them.

    They have the working folder in place of the folder of the script.
    """
    others = [Path(os.path.realpath(entry)) for entry in sys.path if entry]
    with suppress(ValueError):
        others.remove(script.parent)
    return [Path.cwd(), *others]


def _module_in(folder: Path, script: Path) -> str:
    return ".".join(script.relative_to(folder).with_suffix("").parts)


def _leads_to(folder: Path, script: Path) -> bool:
    """Return whether an import in ``folder`` finds the file ``script``. Nothing is imported."""
    origin, locations = None, [str(folder)]
    for part in _module_in(folder, script).split("."):
        spec = PathFinder.find_spec(part, locations) if part.isidentifier() else None
        if spec is None:
            return False
        origin, locations = spec.origin, list(spec.submodule_search_locations or ())
    return origin is not None and os.path.realpath(origin) == str(script)
