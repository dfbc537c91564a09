"""The reference of the Python API is made from docstrings: it is current, complete, and each
example in it runs.
"""

from __future__ import annotations

import ast
import doctest
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import unstuck
from examples.demo.checkout import published_rows
from scripts import api_page
from tests.support.servers import RedisServer
from tests.support.streams.stream_fleet import stream_fleet
from unstuck import Client, Job, JobSpec, Settings, SpecError, Status, published_files
from unstuck.tasks.settings import settings
from unstuck.testing import Unstuck as Fixture

LOAD = """
import pyarrow

def load(spark, ctx):
    ctx.output("sales").write(pyarrow.table({"amount": [3]}))
"""
EXAMPLES = {
    name: member for name, member in api_page.examples() if ">>>" in (inspect.getdoc(member) or "")
}


def test_every_public_name_and_method_is_on_the_page_with_a_docstring() -> None:
    page = api_page.page()
    missing = [
        name
        for name in unstuck.__all__
        if f"### {name}\n" not in page and f"| `{name}` |" not in page
    ]
    assert missing == []
    silent = [
        name for name, member in api_page.examples() if not (inspect.getdoc(member) or "").strip()
    ]
    assert silent == []
    assert "+SKIP" not in page, "each example runs"


def test_every_signature_on_the_page_is_valid_python() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", api_page.page(), re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        ast.parse(block)


@pytest.fixture
def names(
    client: object, redis_server: RedisServer, tmp_path: Path, unstuck: Fixture
) -> Iterator[dict[str, Any]]:
    """What stands at hand in each example: a client on an empty store, and a warehouse in which
    sales are published.
    """
    unstuck.publish("sales", [{"day": "2026-01-02", "amount": 3}], partition_by=["day"])
    spec = {
        "name": "sales",
        "groups": [{"name": "load", "spark": False, "steps": [{"python": "shop:load"}]}],
    }
    with Client(Settings(redis_url=redis_server.url, warehouse=unstuck.warehouse)) as asked:
        yield {
            "__name__": "shop",
            "Client": Client,
            "Job": Job,
            "JobSpec": JobSpec,
            "SpecError": SpecError,
            "Status": Status,
            "published_files": published_files,
            "client": asked,
            "spec": spec,
            "warehouse": unstuck.warehouse,
        }


@pytest.fixture
def fleet_here(
    client: object, redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A fleet to which the environment leads, and its folder, with a spec, as the working
    directory.
    """
    home = tmp_path / "home"
    home.mkdir()
    (home / "sales.yaml").write_text(
        "name: sales\ngroups: [{name: load, spark: false, steps: [{python: 'shop:load'}]}]\n"
    )
    given = {
        "UNSTUCK_REDIS_URL": redis_server.url,
        "UNSTUCK_WAREHOUSE": str(tmp_path / "published"),
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(home)
    settings.cache_clear()
    try:
        with stream_fleet(
            redis_server, home, {"shop": LOAD}, UNSTUCK_WAREHOUSE=given["UNSTUCK_WAREHOUSE"]
        ):
            yield
    finally:
        settings.cache_clear()


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "Client"])
def test_each_example_on_the_page_runs_with_its_documented_output(
    name: str, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("shop")  # a step is a function of a module
    monkeypatch.setitem(sys.modules, "shop", module)
    answers_as_it_says(name, names, vars(module))


@pytest.mark.usefixtures("fleet_here")
def test_the_client_example_runs_a_job_on_the_configured_fleet() -> None:
    answers_as_it_says("Client", {"Client": Client}, {})
    assert [row["amount"] for row in published_rows(settings().warehouse, "sales")] == [3]


def answers_as_it_says(name: str, names: dict[str, Any], module: dict[str, Any]) -> None:
    """Run the example ``name`` with ``names`` in ``module``."""
    text = inspect.getdoc(EXAMPLES[name]) or ""
    example = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    module.update(names)
    example.globs = module
    told: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=told.append)
    assert told == []


def test_each_part_of_the_page_has_examples() -> None:
    parts = {name.partition(".")[0] for name in EXAMPLES}
    assert {"Job", "JobSpec", "Client", "JobHandle", "client", "published_files"} <= parts
