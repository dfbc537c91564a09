"""The first files that a new user needs: the pins, the Makefile and the setup script."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from importlib.metadata import requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from redis.utils import HIREDIS_AVAILABLE

from tests.matrix import UNPINNED
from tests.support.paths import ROOT
from unstuck.tasks.host import SPARKS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Needed by nothing on the Python of this process, but by Python 3.11.0 to 3.11.2.
ELSEWHERE = {"async-timeout"}
TOOLS = ("sh", "dirname", "uname", "awk", "df", "sed", "grep", "id", "cat", "cksum")


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def needed() -> dict[str, Requirement]:
    """Every requirement of the project, of its extras, and of what those need, on this Python."""
    todo = [Requirement(text) for text in PROJECT["dependencies"]]
    todo += [
        Requirement(text) for extra in PROJECT["optional-dependencies"].values() for text in extra
    ]
    found: dict[str, Requirement] = {}
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name == PROJECT["name"] or str(requirement) in {str(r) for r in found.values()}:
            continue
        found[f"{name} {requirement}"] = requirement
        extras = ("", *requirement.extras)
        for text in requires(name) or []:
            below = Requirement(text)
            if below.marker is None or any(
                below.marker.evaluate({"extra": extra}) for extra in extras
            ):
                below.marker = None
                todo.append(below)
    return found


@pytest.mark.variant
def test_exactly_the_installed_packages_are_pinned() -> None:
    names = {canonicalize_name(requirement.name) for requirement in needed().values()}

    assert names - set(pins()) == set()
    assert set(pins()) - names - ELSEWHERE == set()


def test_the_pins_satisfy_the_requirements_of_the_project() -> None:
    pinned = pins()
    wrong = [
        f"{requirement}, pinned to {pinned[canonicalize_name(requirement.name)]}"
        for requirement in needed().values()
        if not requirement.specifier.contains(pinned[canonicalize_name(requirement.name)])
    ]
    assert wrong == []


def test_the_tests_run_with_the_pinned_versions() -> None:
    pinned = {name: pin for name, pin in pins().items() if name not in ELSEWHERE}
    assert {name: version(name) for name in pinned} == pinned


def test_the_redis_client_parses_replies_with_hiredis() -> None:
    assert HIREDIS_AVAILABLE


def test_the_pins_contain_no_host_name() -> None:
    text = "\n".join(f"{name}=={pin}" for name, pin in pins().items())
    assert re.findall(r"[^A-Za-z0-9.=\n-]", text) == []


def test_make_without_a_target_lists_every_target() -> None:
    shown = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None
    assert [line.split()[1] for line in shown.splitlines()] == targets[1].split()


class Machine:
    """A machine on which only the given programs exist, with a copy of what the setup script
    reads.
    """

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.checkout = folder / "checkout"
        for folder_name in ("scripts", "tests"):
            (self.checkout / folder_name).mkdir(parents=True)
        shutil.copy(ROOT / "scripts" / "setup.sh", self.checkout / "scripts")
        for name in ("pyproject.toml", "constraints.txt", "tests/requirements-flower.txt"):
            shutil.copy(ROOT / name, self.checkout / name)
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None
            (self.bin / tool).symlink_to(found)

    def has(self, name: str, script: str) -> None:
        program = self.bin / name
        program.unlink(missing_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def has_java(self, banner: str) -> None:
        self.has("java", f"echo '{banner}' >&2")

    def makes_environments(self, uv: str) -> None:
        """Its Python creates environments, in which uv runs this shell command."""
        self.has("venv-python", "exit 0")
        self.has("venv-uv", f'case "$*" in *pip*) {uv};; esac')
        make = (
            f"mkdir -p .venv/bin && cp {self.bin}/venv-python .venv/bin/python && cp "
            f"{self.bin}/venv-uv .venv/bin/uv"
        )
        self.has("python3", f'case "$*" in "-m venv .venv") {make};; -V) echo Python 3.11.7;; esac')
        for tool in ("mkdir", "cp", "chmod"):
            (self.bin / tool).symlink_to(str(shutil.which(tool)))

    def setup(self, what: str = "check", **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.checkout / "scripts" / "setup.sh"), what],
            env={"PATH": str(self.bin), **env},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine that lacks nothing."""
    machine = Machine(tmp_path)
    machine.has("python3", "case $1 in -V) echo Python 3.11.7;; esac")
    machine.has_java('openjdk version "17.0.15" 2025-04-15')
    machine.has(
        "df", "echo 'Filesystem 1024-blocks Used Available'; echo '/dev/sda 9 9 5000000 1% /'"
    )
    return machine


def test_a_complete_machine_is_reported_as_complete(machine: Machine) -> None:
    done = machine.setup()
    assert (done.returncode, done.stderr) == (
        0,
        "This machine has what Unstuck needs: Python 3.11.7, Java 17, 4882 MB free.\n",
    )


@pytest.mark.parametrize(
    ("banner", "fits"),
    [
        ('openjdk version "21.0.7" 2025-04-15 LTS', True),
        ('java version "25" 2025-09-16', True),
        ('openjdk version "11.0.27" 2025-04-15', False),
        ('openjdk version "1.8.0_412"', False),
    ],
)
def test_java_17_or_newer_is_required(machine: Machine, banner: str, fits: bool) -> None:
    machine.has_java(banner)
    done = machine.setup()
    assert done.returncode == (0 if fits else 2)
    assert ("missing: Java 17 or newer" in done.stderr) is not fits


@pytest.mark.parametrize(
    ("manager", "advice"),
    [
        ("apt-get", "sudo apt-get install -y"),
        ("dnf", "sudo dnf install -y java-17-openjdk-headless"),
        ("brew", "brew install openjdk@17"),
        (None, "https://adoptium.net"),
    ],
)
def test_missing_java_is_reported_with_installation_instructions(
    machine: Machine, manager: str | None, advice: str
) -> None:
    (machine.bin / "java").unlink()
    if manager:
        machine.has(manager, "exit 1")
    done = machine.setup()
    assert done.returncode == 2
    assert advice in done.stderr
    assert "make java" in done.stderr


# A package manager that notes how it was called, and brings Java. What it needs to do so is on the
# machine.
BRINGS_JAVA = """echo "$(id -u) $*" >> calls
case "$*" in *install*)
    printf '%s\\n' '#!/bin/sh' "echo 'openjdk version \\"17.0.15\\"' >&2" > BIN/java
    chmod +x BIN/java;;
esac"""


def without_java(machine: Machine, manager: str, *, user: int, sudo: str | None = None) -> None:
    (machine.bin / "java").unlink()
    for tool in ("env", "chmod", "true"):
        (machine.bin / tool).symlink_to(str(shutil.which(tool)))
    machine.has(manager, BRINGS_JAVA.replace("BIN", str(machine.bin)))
    machine.has("apt-cache", "echo '  Candidate: 17.0.15'")
    machine.has("id", f"echo ${{AS:-{user}}}")
    if sudo is not None:
        machine.has("sudo", sudo)
    # What is to be installed into the environment fails: this is about Java.
    machine.has("python3", 'case "$*" in "-m venv"*) exit 3;; -V) echo Python 3.11.7;; esac')


@pytest.mark.parametrize("manager", ["apt-get", "dnf"])
@pytest.mark.parametrize(
    ("user", "sudo"), [(0, None), (1000, '[ "$1" = -n ] && shift && AS=0 exec env "$@"')]
)
def test_java_is_installed_after_a_message_if_no_password_is_needed(
    machine: Machine, manager: str, user: int, sudo: str | None
) -> None:
    without_java(machine, manager, user=user, sudo=sudo)

    done = machine.setup("demo")

    assert done.stderr.startswith(
        f"Java 17 or newer, which Spark runs on, is missing. {manager} installs it now;"
    )
    assert "missing: Java" not in done.stderr
    calls = (machine.checkout / "calls").read_text()
    assert re.search(r"^0 install -y (open)?(jdk-17|java-17)", calls, re.MULTILINE), calls
    assert machine.setup("check").returncode == 0


def test_a_demo_without_spark_requires_no_java(machine: Machine) -> None:
    without_java(machine, "apt-get", user=0)
    done = machine.setup("demo-stream")
    assert "Creating .venv" in done.stderr
    assert "Java" not in done.stderr
    assert not (machine.checkout / "calls").exists()


def test_java_is_not_installed_if_a_password_is_needed(machine: Machine) -> None:
    without_java(machine, "apt-get", user=1000, sudo="exit 1")

    done = machine.setup("demo")

    assert done.returncode == 2
    assert "missing: Java 17 or newer" in done.stderr
    assert not (machine.checkout / "calls").exists()


def test_the_check_installs_nothing(machine: Machine) -> None:
    without_java(machine, "apt-get", user=0)
    assert machine.setup("check").returncode == 2
    assert not (machine.checkout / "calls").exists()


def test_a_java_home_with_an_old_java_is_left_to_the_user(machine: Machine) -> None:
    """Spark follows JAVA_HOME: another Java beside it would not be used."""
    without_java(machine, "apt-get", user=0)
    done = machine.setup("demo", JAVA_HOME="/nowhere")
    assert done.returncode == 2
    assert not (machine.checkout / "calls").exists()


def test_a_java_home_without_java_is_reported(machine: Machine) -> None:
    done = machine.setup(JAVA_HOME="/nowhere")
    assert done.returncode == 2
    assert "JAVA_HOME, /nowhere" in done.stderr


def test_a_java_stub_counts_as_missing(machine: Machine) -> None:
    machine.has("java", "echo 'Unable to locate a Java Runtime' >&2; exit 1")
    assert machine.setup().returncode == 2


def test_an_old_python_is_refused_with_its_version(machine: Machine) -> None:
    machine.has("python3", "case $1 in -V) echo Python 3.9.2;; *) exit 1;; esac")
    done = machine.setup()
    assert done.returncode == 2
    assert "Python 3.11 or newer (found: Python 3.9.2)" in done.stderr


def test_a_broken_program_on_the_path_is_skipped(machine: Machine) -> None:
    machine.has("python3.11", "echo 'pyenv: python3.11: command not found' >&2; exit 127")
    assert machine.setup().returncode == 0


def test_a_python_without_venv_is_reported_with_the_package(machine: Machine) -> None:
    machine.has(
        "python3", "case $2 in *ensurepip*) exit 1;; *version_info\\[:2*|*%d*) echo 3.11;; esac"
    )
    done = machine.setup()
    assert done.returncode == 2
    assert "apt-get install -y python3.11-venv" in done.stderr


def test_all_missing_parts_are_reported_together(machine: Machine) -> None:
    (machine.bin / "java").unlink()
    (machine.bin / "python3").unlink()
    machine.has("df", "echo head; echo '/dev/sda 9 9 100000 1% /'")
    machine.has("uname", "echo MINGW64_NT-10.0")
    done = machine.setup("dev")
    assert done.returncode == 2
    assert done.stderr.count("missing: ") == 4
    assert "WSL 2" in done.stderr
    assert "97 MB are free, 3000 MB are needed" in done.stderr
    assert not (machine.checkout / ".venv").exists()


def test_nothing_is_installed_twice_without_changes(machine: Machine) -> None:
    """Given an environment made by one setup; then the next installs nothing, until the pins
    change.
    """
    calls = machine.checkout / "calls"
    machine.makes_environments(
        f'echo "$*" >> {calls}; : > .venv/bin/unstuck; chmod +x .venv/bin/unstuck'
    )

    assert machine.setup("dev").returncode == 0
    assert calls.read_text().splitlines() == [
        "pip install --quiet --system-certs --python .venv/bin/python -e .[dev] -c constraints.txt",
        "pip install --quiet --system-certs --python .venv/bin/python --upgrade --no-deps --target "
        ".venv/flower -r tests/requirements-flower.txt -c constraints.txt",
    ]
    assert machine.setup("dev").returncode == 0
    assert machine.setup("demo").returncode == 0  # dev holds all that demo holds
    assert len(calls.read_text().splitlines()) == 2

    with (machine.checkout / "constraints.txt").open("a") as constraints:
        constraints.write("six==1.17.0\n")
    assert machine.setup("demo").returncode == 0
    assert "-e .[demo]" in calls.read_text().splitlines()[-1]


def a_machine_that_makes_environments(machine: Machine, manager: str, user: int) -> Path:
    """Its package manager notes how it was called, in the file that is returned, and brings what it
    is asked for.
    """
    calls = machine.checkout / "calls"
    machine.makes_environments(": > .venv/bin/unstuck; chmod +x .venv/bin/unstuck")
    machine.has(
        manager, f'echo "$*" >> {calls}; case "$*" in *chromium*) : > {machine.bin}/chromium; esac'
    )
    machine.has("id", f"echo {user}")
    (machine.bin / "env").symlink_to(str(shutil.which("env")))
    return calls


@pytest.mark.parametrize("manager", ["apt-get", "dnf"])
def test_the_test_browser_is_installed_if_no_password_is_needed(
    machine: Machine, manager: str
) -> None:
    calls = a_machine_that_makes_environments(machine, manager, user=0)

    done = machine.setup("dev")

    assert done.returncode == 0
    assert (
        f"the tests of the page drive, is missing. {manager} installs it now; no password is needed"
        in done.stderr
    )
    assert re.search(r"^install -y .*chromium", calls.read_text(), re.MULTILINE)
    (machine.bin / "chromium").chmod(0o755)
    asked = calls.read_text()
    (machine.checkout / ".venv" / ".unstuck-dev").unlink()
    assert machine.setup("dev").returncode == 0
    assert calls.read_text() == asked  # it is there


def test_setup_continues_without_a_browser_and_lists_skipped_tests(machine: Machine) -> None:
    calls = a_machine_that_makes_environments(machine, "apt-get", user=1000)
    machine.has("sudo", "exit 1")

    done = machine.setup("dev")

    assert done.returncode == 0
    assert done.stderr.endswith(
        "No Chromium here: the tests of the page that need a browser will be skipped.\n"
    )
    assert not calls.exists()


def test_building_the_docs_needs_neither_java_nor_worker_packages(machine: Machine) -> None:
    calls = machine.checkout / "calls"
    machine.makes_environments(
        f'echo "$*" >> {calls}; : > .venv/bin/unstuck; chmod +x .venv/bin/unstuck'
    )
    (machine.bin / "java").unlink()

    for _ in range(2):
        assert machine.setup("docs").returncode == 0
    assert calls.read_text().splitlines() == [
        "pip install --quiet --system-certs --python .venv/bin/python -e .[docs] -c constraints.txt"
    ]
    assert machine.setup("demo").returncode == 2  # what is installed is no worker


def test_a_failed_installation_is_repeated_next_time(machine: Machine) -> None:
    machine.makes_environments("exit 1")

    for _ in range(2):
        done = machine.setup("demo")
        assert done.returncode == 2
        assert "uv could not install the project" in done.stderr


def test_the_tested_pyspark_versions_are_those_allowed_by_the_requirements() -> None:
    (asked,) = [
        one
        for one in map(Requirement, PROJECT["optional-dependencies"]["worker"])
        if one.name == "pyspark"
    ]
    newest = pins()["pyspark"]
    assert (*(version for version in UNPINNED), newest.rpartition(".")[0]) == SPARKS
    assert asked.specifier.contains(newest)
    found = [
        f"{one}.1"
        for one in ("3.4", "3.5", "4.0", "4.1", "4.2", "4.3", "4.4")
        if f"{one}.1" in asked.specifier
    ]
    assert found == [f"{one}.1" for one in SPARKS]
