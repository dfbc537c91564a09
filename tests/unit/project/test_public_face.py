"""``from unstuck import …``: all that a user must name is there, and costs nothing before it is
used.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import unstuck
import unstuck.testing
from scripts import generated_pages
from tests.support.paths import ROOT
from unstuck import Client, Job, JobHandle, JobSpec, StepContext, published, published_files
from unstuck.coordinator.store.pool_store import Pools
from unstuck.tasks.steps.context import OutputSlot
from unstuck.testing import JobRun, StepRun, TickRun, Unstuck

FACE = ROOT / "src" / "unstuck" / "__init__.py"
FUNCTIONS = (published, published_files)
OF_TESTS = (JobRun, StepRun, TickRun, Unstuck)
WHAT_USERS_CALL = (
    Client,
    Job,
    JobHandle,
    JobSpec,
    OutputSlot,
    Pools,
    StepContext,
    *OF_TESTS,
    *FUNCTIONS,
)


def documented(member: Any) -> set[str]:
    """The errors that the docstrings of a function, or of a class and its public methods, say that
    they raise.
    """
    docs = [inspect.getdoc(member) or ""]
    if inspect.isclass(member):
        classes = [one for one in member.__mro__ if one.__module__.startswith("unstuck.")]
        found_there = [item for one in classes for item in vars(one).items()]
        members = [
            one for name, one in found_there if name == "__init__" or not name.startswith("_")
        ]
        docs += [inspect.getdoc(one) or "" for one in members]
    found: set[str] = set()
    for doc in docs:
        raises = doc.partition("Raises:")[2]
        # "    NoSuchJob: there is none" on lines of their own, or "Raises: NoSuchJob." in a line.
        for several in re.findall(r"^ +([A-Z]\w+(?:, [A-Z]\w+)*):", raises, re.MULTILINE):
            found |= set(several.split(", "))
        found |= set(re.findall(r"\b[A-Z]\w+\b(?=[.;,:]|$)", raises.split("\n")[0]))
    return found


@pytest.mark.parametrize("member", WHAT_USERS_CALL, ids=lambda member: member.__name__)
def test_every_documented_error_can_be_imported_from_unstuck(member: Any) -> None:
    errors = documented(member)
    foreign = {"BaseException", "KeyboardInterrupt"} | {
        name for name in vars(builtins) if name.endswith("Error")
    }
    assert errors - foreign <= set(unstuck.__all__)
    assert errors or member is StepContext or member is JobSpec or member is published_files


def test_the_errors_of_the_client_are_collected_from_its_docstrings() -> None:
    """Or the test above would see nothing."""
    assert {
        "SpecError",
        "BadKey",
        "KeyConflict",
        "NoSuchJob",
        "Refused",
        "NoSuchGroup",
    } <= documented(Client)
    assert {"SettingsInvalid", "NewerJob"} <= documented(Client)
    assert documented(OutputSlot) == {
        *("OutputInvalid", "RuleInvalid", "TooManyRejectedRows", "RowsOutside", "ExpectationFailed")
    }
    assert documented(Pools) == {"BadRequest", "Refused"}
    assert documented(published) == {"DatasetNotFound", "ValueError", "TypeError"}


def test_every_public_name_exists_and_is_visible_to_type_checkers() -> None:
    assert dir(unstuck) == unstuck.__all__
    blocks = [node for node in ast.parse(FACE.read_text()).body if isinstance(node, ast.If)]
    seen = {
        str(alias.asname): str(node.module)
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(seen) == unstuck.__all__
    for name, module in seen.items():
        assert getattr(unstuck, name) is getattr(import_module(module), name)
    with pytest.raises(AttributeError, match="Clinet"):
        unstuck.Clinet  # noqa: B018


def test_all_errors_have_one_root_and_step_errors_declare_whether_to_retry() -> None:
    errors = [
        member for name in unstuck.__all__ if inspect.isclass(member := getattr(unstuck, name))
    ]
    raised = [member for member in errors if issubclass(member, Exception)]
    assert raised
    assert all(issubclass(member, unstuck.UnstuckError) for member in raised)
    assert issubclass(unstuck.OutputInvalid, unstuck.Unrecoverable)
    assert not issubclass(unstuck.InputMissing, unstuck.Unrecoverable)


FACES = {"unstuck": unstuck, "unstuck.testing": unstuck.testing}
PAGES = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path not in generated_pages.PAGES),
    *sorted((ROOT / "examples").glob("*.py")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documentation_and_examples_import_only_from_unstuck(page: Path) -> None:
    text = page.read_text()
    blocks = (
        re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        if page.suffix == ".md"
        else [text]
    )
    for node in (node for block in blocks for node in ast.walk(ast.parse(block))):
        if isinstance(node, ast.Import):
            assert not [alias.name for alias in node.names if alias.name.startswith("unstuck.")]
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "unstuck":
            assert node.module in FACES
            assert {alias.name for alias in node.names} <= set(FACES[node.module].__all__)


FROM_OUTSIDE = ("cli", "guarantees", "chaos", "spark", "support")


@pytest.mark.parametrize("folder", FROM_OUTSIDE)
def test_external_tests_import_public_names_only_from_unstuck(folder: str) -> None:
    imports = [
        (path.relative_to(ROOT), node.module, alias.name)
        for path in sorted((ROOT / "tests" / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        if alias.name in unstuck.__all__
    ]
    assert imports
    assert [found for found in imports if found[1].startswith("unstuck.")] == []


HEAVY = ("pyspark", "pyarrow", "pandas", "celery", "kombu")


@pytest.mark.parametrize(
    ("code", "without"),
    [
        ("import unstuck", (*HEAVY, "redis", "pydantic")),
        ("import unstuck.testing.plugin", (*HEAVY, "redis", "pydantic")),
        ("from unstuck import Client, JobSpec, Status, SpecError, Refused", HEAVY),
        ("from unstuck import Unrecoverable, StepContext, published, published_files", HEAVY),
    ],
)
def test_importing_unstuck_loads_neither_spark_nor_celery(
    code: str, without: tuple[str, ...]
) -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.split()
    assert set(loaded) & set(without) == set()
