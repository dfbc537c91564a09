"""The documentation against the code: every command, setting, field, state, key, file, code and
test it names exists.

Sections headed "Not yet" name what is still to come and are left out, where names of commands are
concerned.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args
from xml.etree import ElementTree

import pytest
import typer.main
import yaml
from celery.bin.celery import celery as celery_command
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from scripts import diagrams, generated_pages
from tests.support.paths import ROOT
from tests.support.servers import RedisServer
from unstuck import Client, JobSpec, Settings, Status
from unstuck.cli.app import app
from unstuck.coordinator.command_table import COMMANDS
from unstuck.coordinator.model.schedule_record import SCHEDULE_MOVES, ScheduleStatus
from unstuck.coordinator.model.status import (
    GROUP_MOVES,
    GROUP_MOVES_REQUESTED,
    JOB_MOVES,
    TERMINAL,
    GroupState,
)
from unstuck.coordinator.spec.defaults import Defaults
from unstuck.coordinator.spec.job_params import Param
from unstuck.coordinator.spec.messages import NOT_YET
from unstuck.coordinator.spec.notify_spec import EXAMPLES, PLAIN, NotifyRule
from unstuck.coordinator.spec.schedule_spec import RunRetry, ScheduleSpec
from unstuck.exits import ExitCode
from unstuck.tasks.duration import parse_duration
from unstuck.tasks.protocol import keys
from unstuck.tasks.spec.group import ForkFrom, GroupSpec, Step
from unstuck.tasks.spec.inputs import DatasetInput, StreamInput
from unstuck.tasks.spec.join import JoinRule
from unstuck.tasks.spec.outputs import Expect, OutputSpec, Quality
from unstuck.tasks.spec.retry import RetryPolicy
from unstuck.tasks.spec.streams.kafka_input import KafkaInput

DOCS = ROOT / "docs"
WRITTEN = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted(path for path in DOCS.rglob("*.md") if path not in generated_pages.PAGES),
]
PAGES = [*WRITTEN, *generated_pages.PAGES]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
UNSTUCK: Any = typer.main.get_command(app).import_all()


@cache
def text_of(page: Path) -> str:
    """The text of a page. That of a generated one is made anew, whatever lies in its file."""
    generate = generated_pages.PAGES.get(page)
    return generate() if generate else page.read_text()


class Block(NamedTuple):
    """One fenced block of a page."""

    page: Path
    number: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}-{self.number}"


BLOCKS = [
    Block(page, n, *found)
    for page in WRITTEN
    for n, found in enumerate(FENCE.findall(page.read_text()), 1)
]


def blocks(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def prose(page: Path, *, not_yet: bool = False) -> str:
    """The page without its fenced blocks, and without its sections headed "Not yet" unless they are
    wanted.
    """
    text = FENCE.sub("", text_of(page))
    return (
        text
        if not_yet
        else re.sub(r"^(#+) Not yet\n.*?(?=^#|\Z)", "", text, flags=re.MULTILINE | re.DOTALL)
    )


def section(page: str, heading: str) -> str:
    """The text below one heading, up to the next of any level."""
    found = re.search(
        rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)",
        (DOCS / page).read_text(),
        re.MULTILINE | re.DOTALL,
    )
    assert found, f"{page} has no heading {heading!r}"
    return found[1]


def rows(text: str, columns: int) -> list[list[str]]:
    """The body rows of every table in ``text`` with so many columns, cells stripped."""
    found = [
        [cell.strip(" |") for cell in line.split(" | ")]
        for line in text.splitlines()
        if line[:1] == "|"
    ]
    assert [row for row in found if len(row) != columns and not set(row[0]) <= set("-|")] == []
    return [row for row in found if len(row) == columns and row[0].startswith("`")]


def bare(cell: str) -> str:
    found = SPAN.match(cell)
    assert found, cell
    return found[1]


# -- links and names -------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text_of(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_an_existing_file_or_heading(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page, not_yet=True)):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked in PAGES or linked.exists(), target
        assert linked.is_relative_to(ROOT), target
        if anchor:
            assert anchor in anchors(linked), target


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page not in seen:
            seen.add(page)
            links = re.findall(r"\]\(([^)\s#]+\.md)", text_of(page))
            todo += [(page.parent / link).resolve() for link in links if "://" not in link]
    assert set(PAGES) <= seen


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_named_file_and_test_exists(page: Path) -> None:
    for name in SPAN.findall(prose(page, not_yet=True)):
        path, _, test = name.partition("::")
        if re.fullmatch(r"(tasks|coordinator|tests|docs|examples|scripts)/[\w./-]*", path):
            assert (ROOT / path).exists(), name
        if test:
            assert test in functions_in(ROOT / path), name


def test_every_wrong_result_in_the_list_names_an_existing_test() -> None:
    text = text_of(ROOT / "tests" / "right_results.md")
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", text)
    assert named
    for path, test in named:
        assert (ROOT / "tests" / path).exists(), path
        assert not test or test in functions_in(ROOT / "tests" / path), test


@cache
def functions_in(module: Path) -> set[str]:
    return {
        node.name
        for node in ast.parse(module.read_text()).body
        if isinstance(node, ast.FunctionDef)
    }


def test_the_map_of_the_code_names_existing_files() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for room in ("tasks", "coordinator", "src/unstuck"):
        table = re.search(rf"^\| in `{room}/` \|.*?\n\n", text, re.MULTILINE | re.DOTALL)
        assert table, room
        named = {
            name
            for row in table[0].strip().splitlines()[2:]
            for name in SPAN.findall(row.split("|")[1])
        }
        there = {path.name for path in (ROOT / room).glob("*.py")} - {"__init__.py"}
        there |= {
            f"{path.name}/"
            for path in (ROOT / room).iterdir()
            if path.is_dir() and path.name[0] != "_"
        }
        assert named <= there


@pytest.mark.variant
def test_every_documented_code_exists_in_the_program() -> None:
    files = [
        path
        for room in ("tasks", "coordinator", "src/unstuck")
        for end in ("py", "lua")
        for path in (ROOT / room).rglob(f"*.{end}")
    ]
    source = "\n".join(path.read_text() for path in files)
    for page in PAGES:
        text = re.sub(
            r"(?:UNSTUCK|AWS|OTEL|WAREHOUSE)_\w+|\$\{(?:env|secret):\w+\}", "", prose(page)
        )
        for code in re.findall(r"\b[A-Z]{3,}_[A-Z_]+[A-Z]\b", text):
            if code not in ("JAVA_HOME", "SEED_START"):
                assert re.search(rf"\b{code}\b", source), f"{page.name}: {code}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_named_variable_is_a_setting(page: Path) -> None:
    named = set(re.findall(r"UNSTUCK_[A-Z_]+[A-Z]", text_of(page))) - {
        "UNSTUCK_DEBUG",
        "UNSTUCK_ARM",
    }
    of_options = {
        str(parameter.envvar) for parameter in UNSTUCK.commands["web"].params if parameter.envvar
    }
    assert named <= {f"UNSTUCK_{name.upper()}" for name in Settings.model_fields} | of_options


# -- commands --------------------------------------------------------------------------------------


def commands() -> Iterator[Any]:
    """Every line in a shell block that calls one of our programs."""
    for block in blocks("console", "sh"):
        for line in block.text.splitlines():
            words = shlex.split(line.removeprefix("docker compose run --rm "), comments=True)
            if words and words[0] in ("unstuck", "make", "celery"):
                yield pytest.param(words, id=f"{block}: {line.partition('#')[0].strip()}")


def parse(words: list[str]) -> None:
    """Let the command line parse ``words``; nothing is run. Raises: UsageError, of the click that
    typer brings.
    """
    command, context, name = UNSTUCK, None, "unstuck"
    while hasattr(command, "commands"):
        context = command.context_class(command, info_name=name, parent=context)
        name, command, words = command.resolve_command(context, words)
    command.make_context(name, list(words), parent=context)


@pytest.mark.parametrize("words", list(commands()))
def test_every_documented_command_is_valid(words: list[str]) -> None:
    program, *rest = words
    if program == "unstuck":
        parse(rest)
    elif program == "make":
        phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert phony
        assert {word for word in rest if "=" not in word} <= set(phony[1].split())
        for variable in (word.partition("=")[0] for word in rest if "=" in word):
            assert f"{variable} ?=" in (ROOT / "Makefile").read_text()
    elif (
        words[-1] != "flower"
    ):  # of a package of its own; test_the_fleet_is_ordinary_celery_… runs it
        outer = celery_command.make_context("celery", rest)
        rest = [*outer._protected_args, *outer.args]  # noqa: SLF001 - the public name is deprecated
        name, inner, rest = celery_command.resolve_command(outer, rest)
        assert inner is not None
        outer.invoked_subcommand = name
        with outer:
            celery_command.callback(**outer.params)  # finds and imports the app
        inner.make_context(name, rest, parent=outer)


def test_commands_named_in_prose_exist() -> None:
    for page in PAGES:
        for span in SPAN.findall(prose(page)):
            if re.match(r"unstuck [a-z]", span):
                assert span.split()[1] in UNSTUCK.commands, f"{page.name}: {span}"


def test_the_command_line_page_matches_the_command_line() -> None:
    """The commands of the table have a generated page."""
    generated = {
        " ".join(command.words[1:])
        for commands in COMMANDS.values()
        for command in commands.values()
    }
    written = {}
    for usage, options, _ in rows((DOCS / "cli.md").read_text().partition("## Exit codes")[0], 3):
        written[bare(usage)] = set(SPAN.findall(options))
    told = {}
    todo = list(UNSTUCK.commands.items())
    while todo:
        name, command = todo.pop()
        if hasattr(command, "commands"):
            todo += [(f"{name} {below}", one) for below, one in command.commands.items()]
            continue
        if name in generated:
            continue
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        usage = [re.sub(r"[{}]", "", str(a.metavar or a.name).upper()) for a in arguments]
        usage = [
            word if a.required or word[0] == "[" else f"[{word}]"
            for a, word in zip(arguments, usage, strict=True)
        ]
        options = {o for p in command.params if p.param_type_name == "option" for o in p.opts} - {
            "--help"
        }
        told[" ".join([name, *usage])] = options
    assert written == told


def test_the_documented_exit_codes_match_the_program() -> None:
    numbers = re.findall(r"^\| (\d+) \|", section("cli.md", "Exit codes"), re.MULTILINE)
    assert [int(number) for number in numbers] == sorted(int(code) for code in ExitCode)


def test_every_make_target_is_described() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony
    assert {bare(row[0]) for row in rows(section("cli.md", "make"), 2)} == {
        f"make {name}" for name in phony[1].split()
    }


# -- fields and settings ---------------------------------------------------------------------------


def same(written: str, field: FieldInfo) -> bool:
    """Does the cell of a default say what the field's default is?"""
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined or default is None:
        return written == ("none" if default is None else "required")
    if default in ((), {}, [], Defaults(), RunRetry()):
        return written == "empty"
    text = bare(written)
    if isinstance(default, float) and "parse_duration" in str(field):
        return parse_duration(text) == default
    return text == (str(default) if isinstance(default, str | JoinRule) else json.dumps(default))


@pytest.mark.parametrize(
    ("heading", "model"),
    [
        ("Job", JobSpec),
        ("Parameters", Param),
        ("Schedule", ScheduleSpec),
        ("Retries of runs", RunRetry),
        ("Notify", NotifyRule),
        ("Defaults", Defaults),
        ("Group", GroupSpec),
        ("Step", Step),
        ("Retry", RetryPolicy),
        ("Published inputs", DatasetInput),
        ("Stream inputs", StreamInput),
        ("Kafka inputs", KafkaInput),
        ("Fork from a column", ForkFrom),
        ("Outputs", OutputSpec),
        ("Rules", Quality),
        ("Expectations", Expect),
    ],
)
def test_the_documented_spec_fields_match_the_accepted_fields(
    heading: str, model: type[BaseModel]
) -> None:
    text = "".join(
        line + "\n" for line in section("spec.md", heading).splitlines() if line.count(" | ") == 3
    )
    table = {bare(row[0]): row[2] for row in rows(text, 4)}
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    assert list(table) == list(fields)
    assert [name for name, field in fields.items() if not same(table[name], field)] == []


def test_every_notice_condition_is_documented() -> None:
    text = "".join(
        line + "\n" for line in section("spec.md", "Notify").splitlines() if line.count(" | ") == 2
    )
    assert {bare(row[0]) for row in rows(text, 3)} == {*PLAIN, *EXAMPLES}


def test_every_join_rule_is_documented_with_its_tolerance_of_failures() -> None:
    text = "".join(
        line + "\n" for line in section("spec.md", "Join").splitlines() if line.count(" | ") == 4
    )
    table = {bare(row[0]): row[4] for row in rows(text, 5)}
    assert set(table) == set(get_args(JoinRule.model_fields["rule"].annotation))
    for rule, lives in table.items():
        assert lives == ("yes" if JoinRule(rule=rule).tolerates_failure else "no")


def test_the_documented_future_fields_are_refused() -> None:
    assert set(SPAN.findall(section("spec.md", "Not yet"))) == NOT_YET


def test_the_settings_page_matches_the_settings() -> None:
    table = {bare(row[0]): row[1] for row in rows(section("settings.md", "Settings"), 4)}
    fields = {f"UNSTUCK_{name.upper()}": field for name, field in Settings.model_fields.items()}
    assert list(table) == list(fields)
    assert [name for name, field in fields.items() if not same(table[name], field)] == []


# -- states and keys -------------------------------------------------------------------------------


def test_tables_and_pictures_are_generated_from_the_code() -> None:
    for name in diagrams.PAGES:
        page = (DOCS / name).read_text()
        assert diagrams.drawn(name, page) == page, "run python -m scripts.diagrams"
    for name, picture in diagrams.pictures().items():
        assert (DOCS / "images" / name).read_text() == picture, (
            f"{name}: run python -m scripts.diagrams"
        )


def test_every_state_and_status_is_in_the_tables() -> None:
    for words, moves in (
        (GroupState, GROUP_MOVES),
        (Status, JOB_MOVES),
        (ScheduleStatus, SCHEDULE_MOVES),
    ):
        assert {word for move in moves for word in move} == set(words)
        assert not [old for old, _ in moves if old.terminal], "terminal is final"
    assert {new for _, new in GROUP_MOVES_REQUESTED} == {GroupState.SKIPPED, GroupState.WAITING}


def test_every_status_is_described_and_final_ones_are_marked() -> None:
    text = section("internals/how-it-works.md", "Status of a job")
    told = [
        word
        for line in re.findall(r"^\| ([A-Z, ]+) \|", text, re.MULTILINE)
        for word in line.split(", ")
    ]
    assert sorted(told) == sorted(str(status) for status in Status)
    final = re.search(r"^([A-Z, ]+) and ([A-Z]+) are final", text, re.MULTILINE)
    assert final
    assert {*final[1].split(", "), final[2]} == {str(status) for status in TERMINAL}


def test_the_documented_redis_keys_match_the_code() -> None:
    source = inspect.getsource(keys)
    kind = r"# (hash|list|set|stream|string|zset|pub/sub): "
    fields = {
        **vars(keys.JobKeys("P", "JOB")),
        **vars(keys.ScheduleKeys("P", "SCHEDULE")),
        **vars(keys.Keys("P")),
    }
    methods = keys.Keys("P")
    # The comment with the kind stands behind a line, or above it where the line would be too long.
    above = rf"(?m:^) *{kind}.*\n(?: *# .*\n)* *"
    code = {fields[name]: found for name, found in re.findall(rf"self\.(\w+) = .*{kind}", source)}
    code |= {fields[name]: found for found, name in re.findall(rf"{above}self\.(\w+) = ", source)}
    method = r"def (\w+)\(self, ([^)]*)\) -> str:\n *"
    methods_found = re.findall(rf"{method}return .*{kind}", source)
    methods_found += [
        (name, of, found)
        for name, of, found in re.findall(rf"{method}{kind}.*\n(?: *# .*\n)* *return ", source)
    ]
    for name, of, found in methods_found:
        code[getattr(methods, name)(*re.findall(r"\w+(?=:)", of.upper()))] = found
    kinds = {"sorted set": "zset"}
    page = {
        bare(row[0]): kinds.get(row[1], row[1])
        for row in rows((DOCS / "internals" / "keys.md").read_text(), 3)
    }
    assert set(page) == set(code)
    assert page == code


# -- snippets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_every_yaml_snippet_is_a_valid_spec(block: Block) -> None:
    JobSpec.from_text(block.text, "snippet.yaml")
    assert yaml.safe_load(block.text)


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_every_python_snippet_compiles_and_uses_existing_client_methods(block: Block) -> None:
    """What snippets import is looked at in test_public_face."""
    for node in ast.walk(ast.parse(block.text)):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "client"
        ):
            assert callable(getattr(Client, node.attr)), node.attr


@pytest.mark.variant
def test_make_docs_builds_the_site_strictly(
    tmp_path: Path,
) -> None:
    recipe = re.search(
        r"^docs:.*\n\t.*\n\t.*scripts\.generated_pages\n\t\$\(BIN\)/sphinx-build (.*) build/docs$",
        (ROOT / "Makefile").read_text(),
        re.M,
    )
    assert recipe
    assert "--fail-on-warning" in recipe[1]
    generated_pages.main()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "sphinx",
            *recipe[1].split(),
            "-d",
            str(tmp_path / "state"),
            str(tmp_path / "site"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for page in PAGES:
        assert (tmp_path / "site" / page.relative_to(ROOT)).with_suffix(".html").is_file(), (
            page.name
        )
    # The site works without a network: nothing that a browser loads by itself comes from another
    # host.
    tag = re.compile(r'<(?:script|img|link rel="(?:stylesheet|preload)")[^>]*(?:src|href)="([^"]+)')
    loaded = [
        address
        for page in (tmp_path / "site").rglob("*.html")
        for address in tag.findall(page.read_text())
    ]
    assert loaded
    assert [address for address in loaded if "//" in address] == []


@pytest.mark.variant
def test_a_documented_celery_submit_creates_one_job_per_key(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    (code,) = [
        b.text
        for b in blocks("python")
        if b.page.name == "write-jobs.md" and 'key="nightly-2013-12-31", by' in b.text
    ]
    env = {
        **os.environ,
        "UNSTUCK_REDIS_URL": redis_server.url,
        "UNSTUCK_WAREHOUSE": str(tmp_path / "warehouse"),
    }
    said = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for _ in range(2)
    ]
    assert [new for _, new in said] == ["True", "False"]
    assert said[0][0] == said[1][0], "the same key is the same job"


@pytest.mark.parametrize(
    "picture", sorted((DOCS / "images").glob("*.svg")), ids=lambda picture: picture.name
)
def test_every_picture_is_valid_has_a_description_and_loads_nothing(picture: Path) -> None:
    text = picture.read_text()
    root = ElementTree.fromstring(text)
    title = root.find("{http://www.w3.org/2000/svg}title")
    assert title is not None
    assert title.text
    assert re.findall(r"href|url\(|@import|/(?:work|tmp|home|root)/", text) == []


@pytest.mark.parametrize(
    "picture", sorted((DOCS / "images").iterdir()), ids=lambda picture: picture.name
)
def test_every_picture_is_used_on_a_page(picture: Path) -> None:
    assert any(f"images/{picture.name})" in text_of(page) for page in PAGES)


def test_no_file_contains_a_path_of_one_machine() -> None:
    for page in PAGES:
        assert re.findall(r"/(?:work|tmp|home|root)/\S*", text_of(page)) == [], page.name
