"""Other people's processes, looked at while they come and go."""

from __future__ import annotations

import psutil

from unstuck.tasks.process.tree import ProcessState, process_state


def command_line(process: psutil.Process) -> str:
    """The command line, or the title that the process gave itself; empty once it is gone or a
    zombie.
    """
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # ZombieProcess is one
        return ""


def lives(process: psutil.Process) -> bool:
    """True while it runs; a zombie does not."""
    return process_state(process) is not ProcessState.GONE


def below(process: psutil.Process) -> list[psutil.Process]:
    """Everything that lives below ``process``; zombies do not."""
    return [child for child in process.children(recursive=True) if command_line(child)]
