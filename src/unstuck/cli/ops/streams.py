"""``unstuck stream``: its commands are those of the command table."""

from __future__ import annotations

import typer

stream = typer.Typer(no_args_is_help=True)
