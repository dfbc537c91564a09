"""A spec whose parameters come from a tick is valid for a schedule, and a submit asks for their
values.
"""

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


def test_a_spec_with_tick_parameters_is_accepted_and_its_ticks_are_shown_in_its_zone(
    cli: Cli, tmp_path: Path
) -> None:
    spec = tmp_path / "nightly.yaml"
    spec.write_text(SPEC)
    assert cli("validate", spec).stdout.startswith("OK")
    assert "schedule nightly is set" in cli("schedule", "set", spec).stdout
    shown = cli("schedule", "show", "nightly", "--next", "5").stdout
    ticks = [line.split()[1:] for line in shown.splitlines() if line.strip().startswith("next ")]
    assert len(ticks) == 5
    assert {clock.split("+")[0] for _, clock, _ in ticks} == {"02:30:00"}
    assert [param for *_, param in ticks] == [f"day={day}" for day, *_ in ticks]
    shown_as_json = cli.json("schedule", "show", "nightly", "--next", "5")
    assert [tick["params"] for tick in shown_as_json["next"]] == [{"day": day} for day, *_ in ticks]
    refused = cli("submit", spec)
    assert refused.returncode == 2
    assert "params.day: its value is the tick of a schedule" in refused.stderr


def test_schedule_set_prints_the_warnings_of_a_submit_and_stores_the_spec(
    cli: Cli, tmp_path: Path
) -> None:
    spec = tmp_path / "nightly.yaml"
    spec.write_text(
        SPEC.replace(
            'python: "m:f"', "sql: \"SELECT * FROM default.raw WHERE day = ':day'\", output: out"
        )
    )
    submitted = cli("submit", spec, "--param", "day=2026-01-01")
    done = cli("schedule", "set", spec)
    assert done.returncode == 0
    assert "schedule nightly is set" in done.stdout
    told = [
        line.partition("Warning: ")[2]
        for line in submitted.stderr.splitlines()
        if line.startswith("Warning: ")
    ]
    assert any("':day'" in warning for warning in told)
    assert done.stderr.splitlines() == [f"Warning: nightly: {warning}" for warning in told]
    (answer,) = cli.json("schedule", "set", spec)
    assert (answer["answer"], answer["warnings"]) == ("ALREADY", told)


def test_a_backfill_is_listed_paused_and_canceled_and_shows_its_progress(
    cli: Cli, tmp_path: Path
) -> None:
    spec = tmp_path / "nightly.yaml"
    spec.write_text(SPEC)
    cli("schedule", "set", spec)
    days = ("--from", "2026-03-28", "--to", "2026-03-30")
    listed = cli("schedule", "ticks", "nightly", *days).stdout
    assert [line.strip() for line in listed.splitlines()] == [
        "2026-03-28 02:30:00+01:00  day=2026-03-28  missing",
        "2026-03-29 03:00:00+02:00  day=2026-03-29  missing",
        "2026-03-30 02:30:00+02:00  day=2026-03-30  missing",
        "3 ticks (3 missing); nothing is changed.",
    ]
    first = cli.json("schedule", "ticks", "nightly", *days)[0]
    known = {"tick": "2026-03-28T01:30:00.000Z", "params": {"day": "2026-03-28"}}
    assert first == {**known, "job": None, "outcome": "missing"}
    assert (
        "is on record: 0 of 3 ticks are done, at most 2 at once"
        in cli("schedule", "backfill", "nightly", *days, "--parallel", "2").stdout
    )
    assert "is paused" in cli("schedule", "pause-backfill", "nightly").stdout
    assert "PAUSED" in cli("schedule", "show", "nightly").stdout
    assert "is canceled" in cli("schedule", "cancel-backfill", "nightly").stdout
    assert cli("schedule", "run", "nightly", "--param", "day=2026-01-02").returncode == 0
    assert cli("schedule", "run", "nightly", "--param", "day=soon").returncode == 2
    wrong = cli("schedule", "backfill", "nightly", "--from", "yesterday", "--to", "2026-03-30")
    assert wrong.returncode == 2
    assert "expected a time with its offset from UTC" in wrong.stderr
    assert cli("schedule", "backfill", "nightly").returncode == 2
