"""The function that was decorated is the function that a worker imports, or the job is refused with
the cause.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import PYTHONPATH
from unstuck import Job, SpecError
from unstuck.testing import Unstuck

HEAD = (
    "import asyncio, functools\nfrom unstuck import Job\njob = Job('j', params={'day': "
    "'2026-01-01'})\n"
)
_numbers = count()


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module with these lines, from line 4 on.

    Returns its job, or the text of the refusal.
    """

    def load(body: str) -> Job | str:
        name = f"jobs_of_a_test_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(HEAD + body)
        monkeypatch.syspath_prepend(str(tmp_path))
        importlib.invalidate_caches()
        try:
            job: Job = importlib.import_module(name).job
            job.spec()
        except SpecError as error:
            return str(error).replace(f"{tmp_path}/{name}.py", "FILE").replace(name, "jobs")
        finally:
            monkeypatch.setitem(sys.modules, name, sys.modules.get(name))
        return job

    return load


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        (
            (
                "@job.group('first')\ndef load(spark, ctx): ...\n@job.group('second')\ndef "
                "load(spark, "
                "ctx): ...\n"
            ),
            "FILE:4: groups[0].steps[0].python: a worker imports jobs:load, which is the function "
            "of FILE:6, and not that of FILE:4",
        ),
        (
            "for i in (1, 2):\n    @job.group(f'g{i}')\n    def g(spark, ctx, i=i): ...\n",
            (
                "FILE:5: groups[0].steps[0].python: a worker imports jobs:g, which is another "
                "function "
                "of the same line"
            ),
        ),
        (
            "@job.group()\ndef g(spark, ctx): ...\ndef g(spark, ctx): ...\n",
            (
                "FILE:4: groups[0].steps[0].python: a worker imports jobs:g, which is the function "
                "of FILE:6"
            ),
        ),
        ("@job.group()\ndef g(spark, ctx): ...\ng = 1\n", "which is a int now"),
        (
            "@job.group()\ndef g(spark, ctx): ...\ndel g\n",
            "jobs has no g, so a worker cannot import jobs:g",
        ),
        (
            "def timed(f):\n    @functools.wraps(f)\n    def inner(*a, **k): return f(*a, **k)\n   "
            " return inner\n"
            "def g(spark, ctx): ...\njob.group()(timed(g))\n",
            "which is the function of FILE:8 without the decorator",
        ),
        (
            "def timed(f):\n    def inner(*a, **k): return f(*a, **k)\n    return inner\n"
            "@job.group()\n@timed\ndef g(spark, ctx): ...\n",
            "FILE:5: timed() returned a function of its own around g, which a worker cannot "
            "import. If timed is a decorator, add @functools.wraps(g)",
        ),
        (
            "class Timed:\n    def __init__(self, f): self.f = f\n    def __call__(self, *a): "
            "self.f(*a)\n"
            "@job.group()\n@Timed\ndef g(spark, ctx): ...\n",
            "an object of Timed has no name that a worker can import",
        ),
        (
            "def g(spark, ctx, n): ...\njob.group('g')(functools.partial(g, n=1))\n",
            "a functools.partial has no name",
        ),
        (
            "g = lambda spark, ctx: None\njob.group('g')(g)\n",
            "FILE:4: a lambda has no name that a worker can import",
        ),
        (
            "def make(n):\n    def g(spark, ctx): return n\n    return g\njob.group()(make(1))\n",
            (
                "FILE:5: g is defined inside make(), and a worker imports a step as "
                "module:function. Move it to the top"
            ),
        ),
        (
            "class A:\n    def g(self, spark, ctx): ...\njob.group()(A().g)\n",
            "A.g is a method of an object, which no worker has",
        ),
        (
            "class A:\n    @job.group()\n    @classmethod\n    def g(cls, spark, ctx): ...\n",
            "a classmethod is no step before its class is complete",
        ),
        ("job.group('g')(1)\n", "a step is a function, not a int"),
        ("@job.group()\nasync def g(spark, ctx): ...\n", "FILE:4: g is an async def"),
        ("@job.group()\nasync def g(spark, ctx): yield 1\n", "FILE:4: g has a yield"),
        ("@job.group()\ndef g(spark, ctx): yield 1\n", "FILE:4: g has a yield"),
        (
            "@job.group()\ndef g(ctx, spark): ...\n",
            (
                "FILE:4: g must take spark and ctx first, and would get spark as ctx: def g(spark, "
                "ctx, …)"
            ),
        ),
        (
            "@job.group()\ndef g(spark, day): ...\n",
            "FILE:4: g must take spark and ctx first, and would get ctx as day",
        ),
        (
            "@job.group()\ndef g(*, spark, ctx): ...\n",
            "FILE:4: g must take spark and ctx first: def g(spark, ctx, …)",
        ),
        (
            "@job.group()\ndef g(spark, ctx, day, /): ...\n",
            "FILE:4: g takes day by position only (/)",
        ),
    ],
)
def test_each_cause_is_refused_with_its_own_message_and_line(
    load: Any, body: str, refusal: str
) -> None:
    assert refusal in str(load(body))


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (
            (
                "class A:\n    @classmethod\n    def g(cls, spark, ctx): ...\nclass B(A): "
                "...\njob.group()(B.g)\n"
            ),
            "B.g",
        ),
        ("class A:\n    @job.group()\n    @staticmethod\n    def g(spark, ctx): ...\n", "A.g"),
        (
            "def timed(f):\n    @functools.wraps(f)\n    def inner(*a, **k): return f(*a, **k)\n   "
            " return inner\n"
            "@timed\n@job.group()\n@timed\ndef g(spark, ctx, day): ...\n",
            "g",
        ),
        (
            "def sync(f):\n    @functools.wraps(f)\n    def inner(*a): return asyncio.run(f(*a))\n "
            "   return inner\n"
            "@job.group()\n@sync\nasync def g(spark, ctx): ...\n",
            "g",
        ),
        ("@job.group()\ndef g(session, context, day): ...\n", "g"),
        ("@job.group()\ndef g(*args): ...\njob.group('again')(g)\n", "g"),
    ],
)
def test_a_name_that_leads_to_the_decorated_function_is_accepted(
    load: Any, body: str, name: str
) -> None:
    made = load(body)
    assert isinstance(made, Job), made
    assert made.spec().groups[0].steps[0].python.partition(":")[2] == name  # type: ignore[union-attr]


def test_an_inherited_classmethod_is_called_with_the_class_named_in_the_job(
    load: Any, unstuck: Unstuck
) -> None:
    job = load(
        "class A:\n    tag = 'a'\n    @classmethod\n    def g(cls, spark, ctx): ctx.result('tag', "
        "cls.tag)\n"
        "class B(A):\n    tag = 'b'\njob.group(spark=False)(B.g)\n"
    )
    assert unstuck.run(job).results == {"g": {"tag": "b"}}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (
            "async def inner(): ...\n@job.group(spark=False)\ndef g(spark, ctx): return inner()\n",
            "coroutine",
        ),
        (
            "def inner(): yield 1\n@job.group(spark=False)\ndef g(spark, ctx): return inner()\n",
            "generator",
        ),
        ("@job.group(spark=False)\ndef g(spark, ctx): return map(print, [1])\n", "map"),
        (
            "async def inner(): ...\n@job.group(spark=False)\n"
            "def g(spark, ctx): return [1, inner()]\n",
            "coroutine",
        ),
    ],
)
def test_a_step_that_returns_unexecuted_work_is_refused(
    load: Any, unstuck: Unstuck, body: str, kind: str
) -> None:
    reason = unstuck.run(load(body)).group("g").reason
    assert reason is not None
    assert reason.code == "BAD_STEP_CALL"
    assert f"returned a {kind}, whose code has not run" in reason.text


# -- programs --------------------------------------------------------------------------------------

SCRIPT = (
    "from unstuck import Job\njob = Job('a')\n\n@job.group()\ndef f(spark, ctx): ...\n\n"
    "if __name__ == '__main__':\n    print(job.spec().groups[0].steps[0].python)\n"
)


def run_script(folder: Path, *words: str) -> str:
    """What the program prints: the name of its step, or the refusal."""
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    command = [sys.executable, *words]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    return (done.stdout or done.stderr).strip()


def test_a_step_of_a_script_is_named_by_its_importable_module(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "daily.py").write_text(SCRIPT)
    assert run_script(tmp_path / "jobs", "daily.py") == "daily:f"
    assert run_script(tmp_path, "jobs/daily.py") == "jobs.daily:f"
    assert run_script(tmp_path, "-m", "jobs.daily") == "jobs.daily:f"


@pytest.mark.variant
def test_a_script_that_workers_cannot_import_is_refused_with_the_right_command(
    tmp_path: Path,
) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "daily.py").write_text(SCRIPT)
    (tmp_path / "elsewhere").mkdir()
    refusal = run_script(tmp_path / "elsewhere", "../jobs/daily.py")
    assert f"Start workers in {tmp_path}/jobs, and run `python -m daily` there" in refusal
    (tmp_path / "jobs" / "__init__.py").touch()
    refusal = run_script(tmp_path / "elsewhere", "../jobs/daily.py")
    assert f"Start workers in {tmp_path}, and run `python -m jobs.daily` there" in refusal


@pytest.mark.variant
def test_notebooks_and_interactive_sessions_are_refused_with_their_own_messages(
    tmp_path: Path,
) -> None:
    refusal = "a worker cannot import {}. Write the job and its functions into a module"
    assert refusal.format("what is typed in or given by python -c") in run_script(
        tmp_path, "-c", SCRIPT
    )
    notebook = f"def get_ipython(): ...\n{SCRIPT}"
    assert refusal.format("a cell of a notebook") in run_script(tmp_path, "-c", notebook)
