"""What a person meets before any job: help, completion, suggestions, and usage errors while Redis
is away.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tests.cli.conftest import ByHand, Cli
from tests.cli.test_exit_codes import GOOD
from tests.support.servers import free_port
from unstuck.cli.app import app

UNSTUCK: Any = get_command(app).import_all()  # type: ignore[attr-defined]


def each_command(
    group: Any = UNSTUCK, before: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        words = (*before, name)
        yield words, command
        if hasattr(command, "commands"):
            yield from each_command(command, words)


@pytest.fixture
def away(cli: Cli) -> Cli:
    """The command line while no Redis answers."""
    cli.env["UNSTUCK_REDIS_URL"] = f"redis://127.0.0.1:{free_port()}/0"
    return cli


def test_help_has_four_panels_and_h_is_an_alias(away: Cli) -> None:
    long, short = away("--help"), away("-h")
    assert (long.returncode, short.stdout) == (0, long.stdout)
    assert re.findall(r"^╭─ (\w+) ─", long.stdout, re.MULTILINE) == [
        "Options",
        "Run",
        "Inspect",
        "Control",
        "Operate",
    ]
    assert away("logs", "-h").stdout == away("logs", "--help").stdout


@pytest.mark.parametrize(
    ("words", "command"), [pytest.param(*each, id=" ".join(each[0])) for each in each_command()]
)
def test_every_command_has_a_valid_example(words: tuple[str, ...], command: Any) -> None:
    begin, _, example = command.epilog.replace("\\[", "[").partition(": unstuck ")
    given = shlex.split(example)
    assert begin == "Example"
    assert tuple(given[: len(words)]) == words
    if not hasattr(command, "commands"):
        command.make_context(
            " ".join(words), given[len(words) :]
        )  # raises on what it does not take


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed_for_shells(away: Cli, shell: str) -> None:
    done = away(_UNSTUCK_COMPLETE=f"source_{shell}")
    assert done.returncode == 0
    assert "_UNSTUCK_COMPLETE=" in done.stdout


def test_shell_completion_offers_commands_and_statuses(away: Cli) -> None:
    def completed(line: str) -> list[str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        return away(_UNSTUCK_COMPLETE="complete_bash", **words).stdout.split()

    assert completed("unstuck fl") == ["fleet"]
    assert completed("unstuck list --status RUN") == ["RUNNING"]


def test_a_misspelled_command_gets_a_suggestion(away: Cli) -> None:
    assert "Did you mean 'rerun'" in away("rerunn").stderr


@pytest.mark.parametrize("command", ["list", "cancel"])
def test_a_misspelled_status_exits_with_2_and_a_suggestion(away: Cli, command: str) -> None:
    done = away(command, "--status", "RUNING")
    assert done.returncode == 2
    assert "did you mean RUNNING?" in done.stderr
    assert "FINISHED" in away(command, "--status", "x").stderr


@pytest.mark.variant
@pytest.mark.parametrize(
    "arguments",
    [
        *((command,) for command in ("pause", "resume", "stop", "cancel", "force-stop", "retry")),
        *(
            ("cancel", "last", "--status", "RUNNING"),
            ("cancel", "--since", "yesterday-ish"),
            ("show",),
            ("skip", "x"),
        ),
        *(
            ("list", "--since", "yesterday-ish"),
            ("retry", "last", "--param", "x"),
            ("alter", "last", "--set", "x"),
        ),
        *(("dead", "drop"), ("submit", "nowhere.yaml"), ("list", "--limit", "none")),
    ],
    ids=" ".join,
)
def test_usage_errors_exit_with_2_even_without_redis(away: Cli, arguments: tuple[str, ...]) -> None:
    done = away(*arguments)
    assert done.returncode == 2, done.stderr
    assert "No Redis answers" not in done.stderr


@pytest.mark.variant
@pytest.mark.parametrize("command", ["submit", "validate"])
def test_a_spec_is_read_from_standard_input(
    cli: Cli, hand: ByHand, tmp_path: Path, command: str
) -> None:
    given = tmp_path / "given.yaml"
    for text, code in ((GOOD, 0), (GOOD.replace("groups", "gruops"), 2)):
        given.write_text(text)
        with (
            given.open() as stdin,
            cli.start(command, "-", "--param", "year=2014", stdin=stdin) as process,
        ):
            out, err = process.communicate()
        assert process.returncode == code, err
        assert "good" in out if code == 0 else "standard input:3:1: gruops" in err, out + err
    if command == "submit":
        (job,) = hand.client.jobs()
        assert hand.client.written(job.id)["params"] == {"year": 2014}
