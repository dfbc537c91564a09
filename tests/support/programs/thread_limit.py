"""A process that gets no more threads, as under a limit of its host."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

STACK = 1 << 50  # bytes; more than any process can address


@contextmanager
def no_new_threads() -> Iterator[None]:
    """No thread that this process starts inside the block begins: there is no room for its
    stack.
    """
    before = threading.stack_size(STACK)
    try:
        yield
    finally:
        threading.stack_size(before)
