"""``unstuck metrics`` as people and Prometheus start it."""

from __future__ import annotations

import re
import signal
import subprocess
import urllib.request

import pytest
import redis

from tests.cli.conftest import COMMAND, Cli
from unstuck.metrics.catalog import CATALOG


def test_metrics_are_printed_in_the_text_format(cli: Cli, client: redis.Redis) -> None:
    done = cli("metrics")
    assert (done.returncode, done.stderr) == (0, "")
    assert "# TYPE unstuck_jobs gauge\n" in done.stdout
    assert "unstuck_up 1.0\n" in done.stdout
    named = set(re.findall(r"^# HELP (\S+)", done.stdout, re.MULTILINE))
    assert named <= {metric.name for metric in CATALOG}


@pytest.mark.variant
def test_a_signal_shuts_the_metrics_exporter_down_cleanly(cli: Cli, client: redis.Redis) -> None:
    command = [*COMMAND, "metrics", "--serve", "127.0.0.1:0"]
    with subprocess.Popen(
        command, cwd=cli.folder, env=cli.env, stderr=subprocess.PIPE, text=True
    ) as exporter:
        assert exporter.stderr is not None
        said = exporter.stderr.readline()
        address = re.search(r"http://\S+", said)
        assert address, said
        with urllib.request.urlopen(re.sub(r"//.*:", "//127.0.0.1:", address[0])) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            assert b"unstuck_up 1.0" in answer.read()
        exporter.send_signal(signal.SIGTERM)
        assert exporter.wait() == 0


def test_an_address_in_use_exits_with_2_and_a_message(cli: Cli, client: redis.Redis) -> None:
    done = cli("metrics", "--serve", "nowhere")
    assert done.returncode == 2
    assert "expected HOST:PORT or :PORT" in done.stderr
