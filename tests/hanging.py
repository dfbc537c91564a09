"""A worker whose main process can be made to hang, as by a bug of Celery, kombu or a plugin: ``-I hanging``."""

from __future__ import annotations

import threading
from typing import Any

from celery.worker.control import control_command


@control_command()  # type: ignore[untyped-decorator]
def hang(state: Any) -> None:
    """In the main thread, which also hears the runners: for ever."""
    threading.Event().wait()
