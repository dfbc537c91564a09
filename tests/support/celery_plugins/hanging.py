"""A worker that can be made to hang, as by a bug of Celery, kombu or a plugin: ``-I hanging``."""

# Its main process by a remote command, for ever. A child of it at the signal of Celery that HANG_AT
# names, the first that comes there. As a program it is ``celery`` with a short time for a child's
# way from one job to the next.

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

AT, ONCE = "HANG_AT", "HANG_ONCE"  # a signal; a file, with the pid of the child that hangs
ON_THE_WAY = 5.0  # seconds, and UNSTUCK_DISPATCH_TIMEOUT

if __name__ == "__main__":
    from celery.__main__ import main

    import unstuck.tasks.transport.celery_app

    unstuck.tasks.transport.celery_app.START_WITHIN = ON_THE_WAY
    main()
else:
    from celery import signals
    from celery.worker.control import control_command

    @control_command()  # type: ignore[untyped-decorator]
    def hang(state: Any) -> None:
        """In the main thread, which also hears the runners."""
        threading.Event().wait()

    def _hang_once(**_: Any) -> None:
        with suppress(FileExistsError):
            with Path(os.environ[ONCE]).open("x") as file:
                file.write(str(os.getpid()))
            threading.Event().wait()

    if AT in os.environ:
        getattr(signals, os.environ[AT]).connect(_hang_once, weak=False)
