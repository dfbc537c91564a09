"""Create a file in memory, which forked processes share."""

from __future__ import annotations

import os
import tempfile


def anonymous_file(name: str, size: int) -> int:
    """Return the descriptor of a new file of ``size`` bytes, all zero.

    Args:
        name: for people who list the descriptors of a process.

    Raises: OSError: no memory or no descriptor is left.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create(name)
    else:  # macOS
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
