"""The command line ``unstuck``; ``app`` lists the commands.

Commands ask and show, and decide nothing: the client, the warehouse reader and the local fleet do
the work. An expected error is shown without a traceback, and with ``--json`` standard output holds
the answer alone.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import NoReturn, TextIO


def main() -> None:
    """Run the command line ``unstuck``, as `run_app` does."""
    run_app(_commands, "unstuck")


def _commands() -> Callable[..., None]:
    from unstuck.cli.app import app

    return app


def run_app(load: Callable[[], Callable[..., None]], name: str) -> None:
    """Run the app that ``load`` imports, and explain its errors. ``name`` is for usage texts.

    Exits through ``sys.exit`` with one of ``exits.ExitCode``.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="replace"
            )  # a terminal that is not UTF-8 shows ? and not a traceback
    out = sys.stdout
    try:
        app = load()
        try:
            app(prog_name=name)
        finally:
            out.flush()  # here, and not at exit, where nobody could explain an error
    except SystemExit:
        if hasattr(
            sys.stdout, "wrapped"
        ):  # by typer, which leaves so when the reader has gone; its code 1 is another
            _reader_has_gone(out)
        raise
    except BrokenPipeError:
        _reader_has_gone(out)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:  # noqa: BLE001 - the last stop: explained, or shown as a bug
        from unstuck.exits import ExitCode, explained

        explanation = explained(error)
        if explanation is None:
            sys.stderr.write(
                "unstuck: this is a bug in Unstuck; please report it with the lines below\n"
            )
            sys.excepthook(type(error), error, error.__traceback__)
            sys.exit(ExitCode.BUG)
        if os.environ.get("UNSTUCK_DEBUG") == "1":
            sys.excepthook(type(error), error, error.__traceback__)
        from unstuck.tasks.terminal_text import printable

        code, text = explanation
        sys.stderr.write(f"{printable(text)}\n")
        sys.exit(code)


def _reader_has_gone(out: TextIO) -> NoReturn:
    """End quietly because ``head`` or ``less`` has closed the pipe.

    Python would report the closed pipe once more when it flushes at exit.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
    from unstuck.exits import ExitCode

    sys.exit(ExitCode.READER_GONE)
