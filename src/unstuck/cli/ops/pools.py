"""``unstuck pool`` shows and sets the pools of slots that attempts share."""

from __future__ import annotations

import typer

from unstuck.cli.connection import connected
from unstuck.cli.options import AsJson
from unstuck.cli.render.terminal import emit, stderr, stdout, table

pool = typer.Typer(no_args_is_help=True)


@pool.command("list", epilog="Example: unstuck pool list --json")
def list_pools(as_json: AsJson = False) -> None:
    """List the pools: their slots, the attempts that hold them, and how many groups wait."""
    with connected() as connection:
        pools = connection.client.pools.all()
    if as_json:
        emit(pools)
        return
    if not pools:
        stderr.print(
            "No pools. Make one with: unstuck pool set jdbc 4   (a group takes a slot of it with "
            "pool: jdbc)"
        )
        return
    shown = table("POOL", "SLOTS", "USED", "WAITING", "USED BY", right=("SLOTS", "USED", "WAITING"))
    for view in pools:
        by = ", ".join(view.holders[:3]) + (f" and {view.used - 3:,} more" if view.used > 3 else "")
        shown.add_row(view.name, f"{view.slots:,}", f"{view.used:,}", f"{view.waiting:,}", by)
    stdout.print(shown)
