"""``show --graph`` and ``validate --graph`` draw into a file, or to standard output."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from tests.cli.conftest import ByHand, Cli


def test_the_graph_of_a_job_shows_the_state_of_its_groups(cli: Cli, hand: ByHand) -> None:
    job = hand.submit({"name": "a"}, {"name": "f", "needs": ["a"], "for_each": {"m": [1, 2, 3]}})
    hand.decide(job)
    hand.succeed(job, "a")
    done = cli("show", job, "--graph", "job.svg")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "The graph is in job.svg.\n")
    drawn = (cli.folder / "job.svg").read_text()
    titles = [
        one.text for one in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}title")
    ]
    assert titles[1:] == ["a: succeeded", "f: 3 queued; after a (all_succeeded)"]
    assert cli("show", job, "--graph", "-").stdout == drawn


def test_graph_draws_a_spec_without_submitting_it(cli: Cli, hand: ByHand, tmp_path: Path) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text(
        "{name: j, groups: [{name: a, steps: [{python: 'm:f'}]}, {name: b, needs: [a]}]}"
    )
    done = cli("validate", spec, "--graph", tmp_path / "j.svg")
    assert done.stdout.startswith("OK: ")
    assert "<title>b" in (tmp_path / "j.svg").read_text()
    assert cli("validate", spec, "--graph", "-").stdout == (tmp_path / "j.svg").read_text()
    assert hand.client.jobs() == []


def test_an_unwritable_file_is_a_usage_error(cli: Cli, hand: ByHand) -> None:
    done = cli("show", hand.finished(), "--graph", "no/such/folder.svg")
    assert done.returncode == 2
    assert "no/such/folder.svg cannot be written" in done.stderr
