"""``python -m examples.demo`` is the demo that ``make demo`` runs."""

from __future__ import annotations

import typer

from examples.demo.flights_demo import demo
from unstuck.cli import run_app

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(demo)
run_app(lambda: app, "python -m examples.demo")
