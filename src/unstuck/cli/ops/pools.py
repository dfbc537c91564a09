"""``unstuck pool`` shows the pools of slots that attempts share, and sets their sizes."""

from __future__ import annotations

from typing import Annotated

import typer

from unstuck.cli.connection import connected
from unstuck.cli.options import AsJson
from unstuck.cli.render.terminal import emit, stderr, stdout, table
from unstuck.exits import ExitCode
from unstuck.views.words import count_of

pool = typer.Typer(
    help="Pools of slots, which groups take with `pool: NAME`.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the pool.")]


@pool.command("list", epilog="Example: unstuck pool list --json")
def list_pools(as_json: AsJson = False) -> None:
    """List the pools: their slots, how many are in use and by what, and how many groups wait."""
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


@pool.command("set", epilog="Example: unstuck pool set jdbc 4")
def set_pool(
    name: Name,
    slots: Annotated[
        int, typer.Argument(metavar="SLOTS", help="Attempts that may hold one at once.")
    ],
) -> None:
    """Make a pool, or change its size; 0 lets nothing begin. What runs goes on."""
    with connected() as connection:
        connection.client.pools.set(name, slots)
    stdout.print(f"pool {name} has {count_of(slots, 'slot')}")


@pool.command("remove", epilog="Example: unstuck pool remove jdbc")
def remove_pool(name: Name) -> None:
    """Forget the size of a pool. A group that names it gets one slot."""
    with connected() as connection:
        removed = connection.client.pools.remove(name)
    if not removed:
        stderr.print(f"There is no pool {name}.")
        raise typer.Exit(ExitCode.NO_SUCH_JOB)
    stdout.print(f"pool {name} is removed")
