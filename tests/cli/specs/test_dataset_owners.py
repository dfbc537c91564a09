"""The commands refuse a dataset of another job with exit code 4, and take it over with an
option.
"""

from __future__ import annotations

import json
from typing import Any

from tests.cli.conftest import Cli

STEPS = """
import pyarrow as pa

def rows(spark, ctx):
    return pa.table({"n": [1]})
"""


def job(cli: Cli, name: str, **more: Any) -> str:
    """The spec of a job of this name that publishes ``flights``."""
    load = {
        "name": "load",
        "spark": False,
        "steps": [{"python": "steps:rows", "output": "flights"}],
    }
    (cli.folder / f"{name}.json").write_text(json.dumps({"name": name, "groups": [load], **more}))
    return f"{name}.json"


def test_commands_that_create_jobs_name_the_dataset_owner_and_offer_the_takeover(
    cli: Cli,
) -> None:
    (cli.folder / "steps.py").write_text(STEPS)
    shared = {"outputs": {"flights": {"shared_with": ["night_*"]}}}
    assert cli("run", job(cli, "daily", **shared)).returncode == 0
    assert cli("run", job(cli, "night_1")).returncode == 0

    other = job(cli, "hourly", schedule={"every": "1h"})
    for command in (("run", other), ("submit", other), ("schedule", "set", other)):
        done = cli(*command)
        assert done.returncode == 4, (command, done.stdout)
        assert "job hourly may not publish flights, which job daily owns" in " ".join(
            done.stderr.split()
        )
    assert cli("submit", other, "--take-over").returncode == 0
    assert cli("schedule", "set", other, "--take-over").returncode == 0

    (shown,) = cli.json("datasets", "flights")
    assert (shown["owner"], shown["shared_with"], shown["job_name"]) == (
        "daily",
        ["night_*"],
        "night_1",
    )
    assert cli("run", other, "--take-over").returncode == 0
    assert cli.json("datasets", "flights")[0]["owner"] == "hourly"
    told = " ".join(cli("datasets", "flights", "--history").stdout.split())
    assert "version 3 took flights over from job daily" in told
