"""A spec whose parameters come from a tick is valid for a schedule, and a submit asks for their values."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Cli

SPEC = """\
name: nightly
schedule: {cron: "30 2 * * *", zone: Europe/Berlin}
params: {day: {type: date, default: tick}}
groups:
  - {name: a, steps: [{python: "m:f"}]}
"""


def test_a_spec_with_parameters_of_a_tick_is_valid_and_set_and_its_ticks_are_shown_in_its_zone(
    cli: Cli, tmp_path: Path
) -> None:
    spec = tmp_path / "nightly.yaml"
    spec.write_text(SPEC)
    assert cli("validate", spec).stdout.startswith("OK")
    assert "schedule nightly is set" in cli("schedule", "set", spec).stdout
    shown = cli("schedule", "show", "nightly", "--next", "5").stdout
    ticks = [line.split()[-1] for line in shown.splitlines() if line.strip().startswith("next ")]
    assert len(ticks) == 5
    assert {tick.split("+")[0] for tick in ticks} == {"02:30:00"}
    refused = cli("submit", spec)
    assert refused.returncode == 2
    assert "params.day: has the tick of its schedule" in refused.stderr
