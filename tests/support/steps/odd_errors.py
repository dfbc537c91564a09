"""Steps whose errors cannot be told as other errors can."""

from __future__ import annotations

import ctypes
import threading
from typing import Any


def text_blocks(spark: Any, ctx: Any) -> None:
    """As a ``Py4JJavaError`` does whose JVM does not answer."""

    class Silent(Exception):
        def __str__(self) -> str:
            threading.Event().wait()
            raise AssertionError("nobody sets it")

    raise Silent


def text_holds_the_gil(spark: Any, ctx: Any) -> None:
    class Hog(Exception):
        def __str__(self) -> str:
            ctypes.PyDLL(None).sleep(600)
            return "after ten minutes"

    raise Hog


def raises_where(spark: Any, ctx: Any, name: str, kind: str = "RuntimeError") -> None:
    """Raises an ``Odd`` that raises ``kind`` wherever anybody asks it, or its class, for
    ``name``.
    """
    raised = {"RuntimeError": RuntimeError, "SystemExit": SystemExit, "MemoryError": MemoryError}[
        kind
    ]

    def refuse(*_: Any) -> Any:
        raise raised("not to be had")

    kinds = type(
        "Kinds", (type,), {name: property(refuse)} if name in ("__name__", "__module__") else {}
    )
    is_method = name in (
        "__str__",
        "__repr__",
        "__getattribute__",
        "__setattr__",
        "__eq__",
        "__hash__",
    )
    Odd = kinds("Odd", (Exception,), {name: refuse if is_method else property(refuse)})
    raise Odd("the true error")
