"""``unstuck doctor`` prints the problems of an installation, with remedies, within 5 seconds."""

from __future__ import annotations

import typer
from rich.text import Text

from unstuck.cli.connection import settings_here
from unstuck.cli.options import AsJson
from unstuck.cli.render.terminal import emit, stdout, table
from unstuck.doctor.examine import Doctor, reached
from unstuck.doctor.finding import Finding, Level
from unstuck.documents.envelopes import Examination
from unstuck.exits import ExitCode
from unstuck.tasks.redis_url import without_password
from unstuck.views.words import count_of, one_line

STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


def doctor(as_json: AsJson = False) -> None:
    """Examine Redis, the fleet, the settings, the warehouse and this machine. Changes nothing.

    Exits with 0 if there is no problem (there may be warnings), 1 if there is one, 5 if Redis
    cannot be reached.
    """
    settings = settings_here()
    findings = Doctor(settings).examine()
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    if as_json:
        emit(Examination.of(without_password(settings.redis_url), findings))
    else:
        _show(findings)
        parts = [count_of(counts[level], str(level)) for level in (Level.PROBLEM, Level.WARNING)]
        stdout.print(f"\n{', '.join(parts)}, {counts[Level.OK]} ok", soft_wrap=True)
    if not reached(findings):
        raise typer.Exit(ExitCode.UNREACHABLE)
    if counts[Level.PROBLEM]:
        raise typer.Exit(ExitCode.NOT_WELL)


def _show(findings: list[Finding]) -> None:
    """Print a table on a terminal; otherwise one line per finding, for scripts."""
    if not stdout.is_terminal:
        for finding in findings:
            cure = f" → {finding.cure}" if finding.cure else ""
            stdout.print(
                f"{finding.level:<8} {finding.code}: {one_line(finding.text + cure)}",
                soft_wrap=True,
            )
        return
    shown = table("", "CHECK", "FOUND")
    for finding in findings:
        text = Text(one_line(finding.text))
        if finding.cure:
            text.append(f"\n→ {one_line(finding.cure)}", "bold")
        shown.add_row(Text(str(finding.level), STYLES[finding.level]), finding.code, text)
    stdout.print(shown)
