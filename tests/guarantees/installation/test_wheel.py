"""The built wheel in an empty environment outside of the checkout, with what it requires and
nothing else.

What it requires is linked from the running environment; the long tests install it by pip, as a user
does.
"""

from __future__ import annotations

import os
import subprocess
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.servers import RedisServer, wait_until
from tests.support.wheel import built, installed, linked
from unstuck import Client, Settings, Status

pytestmark = pytest.mark.variant

STEPS = """
import pyarrow as pa

def numbers(spark, ctx):
    return pa.table({"n": [1, 2, 3]})
"""
SPEC = """
name: light
groups:
  - {name: only, spark: false, steps: [{python: "mine:numbers", output: numbers}]}
"""
APP = """
import sys, unstuck
from unstuck import Client, Status

with Client() as client:
    job = client.submit(sys.argv[1]).id
    status = client.wait(job).status if len(sys.argv) > 2 else client.show(job).status
print(job, status, unstuck.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("wheel"))


WAYS = [linked, pytest.param(installed, marks=pytest.mark.long)]


@pytest.fixture(scope="module", params=WAYS)
def without_worker(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    python: Path = request.param(tmp_path_factory.mktemp("light") / "env", wheel, "")
    return python


@pytest.fixture(scope="module", params=WAYS)
def with_worker(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    python: Path = request.param(tmp_path_factory.mktemp("full") / "env", wheel, "worker")
    return python


class UserFolder:
    """A folder of a user: a step, a spec and an app, and no checkout anywhere."""

    def __init__(self, folder: Path, redis: RedisServer) -> None:
        self.folder = folder
        self.settings = Settings(redis_url=redis.url, warehouse=str(folder / "warehouse"))
        for name, text in (("mine.py", STEPS), ("light.yaml", SPEC), ("app.py", APP)):
            (folder / name).write_text(text)
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("UNSTUCK_", "PYTHON"))
        }
        self.env = {
            **kept,
            "UNSTUCK_REDIS_URL": redis.url,
            "UNSTUCK_WAREHOUSE": self.settings.warehouse,
        }

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        words = [str(word) for word in command]
        return subprocess.run(words, cwd=self.folder, env=self.env, capture_output=True, text=True)

    def says(self, *command: str | Path) -> str:
        done = self.run(*command)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def celery(self, python: Path, *words: str) -> Iterator[Path]:
        """A worker or a coordinator, and its log."""
        log = self.folder / f"{words[0]}.log"
        command = [str(python), "-m", "celery", "-A", *words]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, cwd=self.folder, env=self.env, stdout=out, stderr=out
            )
            try:
                yield log
            finally:
                process.terminate()
                process.wait()


@pytest.fixture
def project(client: object, redis_server: RedisServer, tmp_path: Path) -> UserFolder:
    return UserFolder(tmp_path, redis_server)


def test_the_wheel_contains_all_product_files_in_one_package(
    wheel: Path,
) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = {name for name in packed.namelist() if ".dist-info/" not in name}
    listed = subprocess.run(
        ["git", "ls-files", "tasks", "coordinator", "src/unstuck"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    there = {
        f"unstuck/{name.removeprefix('src/unstuck/')}"
        for name in listed
        if not (ROOT / name).is_dir()
    }
    assert names == {name for name in there if (ROOT / "src" / name).is_file()}
    page = {name for name in names if name.startswith("unstuck/web/") and not name.endswith(".py")}
    assert {Path(name).suffix for name in names - page} == {".py", ".lua", ".json", ".typed"}
    assert {Path(name).suffix for name in page} == {
        ".html",
        ".css",
        ".js",
        ".svg",
        ".txt",
        ".LICENSE",
    }


def test_the_page_requires_the_web_extra_and_says_so(
    wheel: Path, without_worker: Path, project: UserFolder
) -> None:
    python = linked(project.folder / "env", wheel, "web")
    command = [str(python.with_name("unstuck")), "web", "--address", "127.0.0.1:0"]
    with subprocess.Popen(
        command, cwd=project.folder, env=project.env, stderr=subprocess.PIPE, text=True
    ) as page:
        try:
            assert page.stderr is not None
            address = page.stderr.readline().split()[-1]
            for path in (
                "",
                "jobs",
                "schedules",
                "datasets",
                "fleet",
                "static/style.css",
                "api/v1/jobs",
                "metrics",
            ):
                with urllib.request.urlopen(address + path) as answer:
                    assert answer.read()
        finally:
            page.terminate()
    lacks = project.run(without_worker.with_name("unstuck"), "web")
    assert lacks.returncode == 2
    assert lacks.stderr.startswith("The page needs starlette, ")


def test_clients_and_coordinators_work_without_the_worker_extra(
    without_worker: Path, project: UserFolder
) -> None:
    python, here = without_worker, without_worker.parents[1]
    for missing in ("pyspark", "pyarrow", "pandas", "numpy", "tests"):
        assert project.run(python, "-c", f"import {missing}").returncode == 1, missing
    assert (
        project.says(python.with_name("unstuck"), "--version") == f"unstuck {version('unstuck')}\n"
    )
    job, status, file = project.says(python, "app.py", "light.yaml").split()
    assert status == "PENDING"
    assert Path(file).is_relative_to(here)
    with (
        Client(project.settings) as client,
        project.celery(python, "unstuck.coordinator", "worker", "-P", "threads"),
    ):
        wait_until(
            lambda: client.show(job).groups[0].states.get("QUEUED") == 1,
            60,
            "the coordinator to decide",
        )
    assert job in project.says(python.with_name("unstuck"), "list")
    refused = project.run(python, "-m", "celery", "-A", "unstuck.tasks", "worker", "-Q", "light")
    assert refused.returncode == 2
    assert (
        f"pyspark and pyarrow cannot be imported by {python}. In a checkout of Unstuck run: "
        in refused.stderr
    )
    assert "Traceback" not in refused.stderr


def test_a_job_runs_with_the_worker_extra(with_worker: Path, project: UserFolder) -> None:
    python = with_worker
    worker = project.celery(python, "unstuck.tasks", "worker", "-Q", "light", "-c", "1")
    with worker as said, project.celery(python, "unstuck.coordinator", "worker", "-P", "threads"):
        job, status, file = project.says(python, "app.py", "light.yaml", "wait").split()
        assert status == Status.FINISHED, said.read_text()
    assert Path(file).is_relative_to(python.parents[1])
    assert "numbers" in project.says(python.with_name("unstuck"), "datasets")
    assert job in project.says(python.with_name("unstuck"), "show", "light")
