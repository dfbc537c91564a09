"""Make the reference of the commands that change something, from their table.

``scripts.generated_pages`` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from unstuck.cli.app import imported
from unstuck.coordinator.command_table import COMMANDS, Command, TargetKind
from unstuck.web.api.api_app import PREFIX
from unstuck.web.api.command_routes import PATHS

HEAD = """\
# Commands

These commands change something. This page is generated from their declarations, from which the
[command line](cli.md), the methods of the [client](api.md), the [HTTP API](http-api.md) and the buttons of
[the page](web.md) come, too. A repeated command changes nothing.
"""
_TITLES = {TargetKind.GROUP: "Groups of a job", TargetKind.BACKFILL: "Backfills"}
_ROOMS = {
    TargetKind.SCHEDULE: "client.schedules",
    TargetKind.BACKFILL: "client.schedules",
    TargetKind.POOL: "client.pools",
    TargetKind.DEAD_LETTER: "client.dead_letters",
}


def page() -> str:
    """The whole page."""
    parts = [HEAD.rstrip()]
    for target, commands in COMMANDS.items():
        parts.append(f"## {_TITLES.get(target, f'{target}s'.capitalize())}")
        for command in commands.values():
            parts.extend(_command(command))
    return "\n\n".join(parts) + "\n"


def _command(command: Command) -> Iterator[str]:
    words = command.words
    yield f"### {' '.join(words)}"
    yield command.help
    facts = []
    if command.legal:
        facts.append(f"Legal in: {', '.join(sorted(command.legal))}.")
    room = _ROOMS.get(command.target, "client")
    route = f"{PREFIX}{PATHS[command.target][1]}/{command.name}"
    facts.append(f"Python: `{room}.{command.method}`. HTTP: `POST {route}`.")
    yield "\n".join(facts)
    names = {argument.name: argument for argument in command.arguments}
    rows = [
        f"| {_shown(option)} | {_in_json(names[option.name].alias if option.name in names else '')} "
        f"| {(option.help or '').replace('|', chr(92) + '|')} |"
        for option in _typer_command(words[1:]).params
        if option.name not in ("help", "as_json")
    ]
    yield "\n".join(["| command line | JSON | |", "|---|---|---|", *rows])
    yield f"```console\n{command.example}\n```"


def _typer_command(words: list[str]) -> Any:
    command = imported(words[0])
    return command.commands[words[1]] if words[1:] else command


def _shown(option: Any) -> str:
    if option.param_type_name == "argument":
        return f"`{(option.metavar or option.name).upper()}`"
    return " ".join(f"`{name}`" for name in option.opts)


def _in_json(name: str) -> str:
    return f"`{name}`" if name else ""
