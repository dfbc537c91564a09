"""The rules and the text format by the tool of Prometheus itself, where a machine has it."""

# Debian has it in the package prometheus, which needs no installation: `apt-get download
# prometheus`, `dpkg -x` it into a folder, and put its usr/bin on the PATH.

from __future__ import annotations

import shutil
import subprocess

import pytest
from prometheus_client import generate_latest

from tests.support.coordinator import Coordinator, failed, group
from tests.support.paths import ROOT
from unstuck.metrics.scrape import Exporter

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool, of the Debian package prometheus, is not on the PATH",
)


def promtool(*arguments: str, given: bytes = b"") -> str:
    """What it says; it must not complain."""
    done = subprocess.run(["promtool", *arguments], input=given, capture_output=True, check=False)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


def test_promtool_accepts_the_alert_rules() -> None:
    rules = ROOT / "deploy/prometheus/unstuck.rules.yml"
    alerts = rules.read_text().count("- alert:")
    assert f"SUCCESS: {alerts} rules found" in promtool(
        "check", "rules", "--lint=all", "--lint-fatal", str(rules)
    )


def test_promtool_accepts_a_scrape_without_complaints(
    coordinator: Coordinator,
) -> None:
    coordinator.note_runner("idle", idle_since=1.0)
    for name in ("nightly", "hourly"):
        coordinator.submit(
            group("a", retry={"max": 0}), name=name, notify=[{"on": ["failed"], "to": "ops"}]
        )
    coordinator.read()
    first, _second = coordinator.offers()
    coordinator.work(first, failed())
    coordinator.read()
    text = generate_latest(Exporter(coordinator.redis, coordinator.settings))
    assert b"unstuck_job_duration_seconds_bucket" in text
    assert promtool("check", "metrics", given=text) == ""
