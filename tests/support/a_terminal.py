"""A terminal of a given width, as the command line sees one."""

from __future__ import annotations

import io

from unstuck.cli.render.terminal import PrintedConsole


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(width: int) -> tuple[PrintedConsole, io.StringIO]:
    """A console, and what was printed on it: no colours."""
    told = _Terminal()
    return PrintedConsole(
        file=told, width=width, markup=False, highlight=False, emoji=False, color_system=None
    ), told
