"""The wheel of this checkout, and environments that have it, with what it requires and nothing
else.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import distribution, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import ROOT

PARTS = ("tasks", "coordinator", "src", "pyproject.toml", "README.md", "LICENSE")


def built(folder: Path) -> Path:
    """The wheel. Built from a copy: building leaves files beside the sources."""
    copy = folder / "copy"
    copy.mkdir()
    for part in PARTS:
        if (ROOT / part).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / part, copy / part, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / part, copy)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(folder),
        str(copy),
    ]
    # An older one than pyproject.toml asks for is replaced by pip for the build alone, from the
    # package index.
    alone = [] if int(version("setuptools").partition(".")[0]) < 77 else ["--no-build-isolation"]
    done = subprocess.run([*command, *alone], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def required(extra: str = "", *more: str) -> set[str]:
    """The distributions that ``pip install unstuck[extra] more`` brings, by what each says that it
    requires.
    """
    found: set[str] = {*more}
    todo = [Requirement(f"unstuck[{extra}]" if extra else "unstuck"), *map(Requirement, more)]
    while todo:
        wanted = todo.pop()
        for text in distribution(wanted.name).requires or ():
            one = Requirement(text)
            extras = wanted.extras or {""}
            if one.marker is not None and not any(
                one.marker.evaluate({"extra": each}) for each in extras
            ):
                continue
            name = canonicalize_name(one.name)
            if name not in found or one.extras:
                found.add(name)
                todo.append(one)
    return found


def linked(folder: Path, wheel: Path, extra: str, *more: str) -> Path:
    """An environment with the wheel, and with links to what it requires, and to ``more``.

    Its Python.
    """
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    there = folder / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    for name in required(extra, *more):
        for file in distribution(name).files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__", "/") and not (there / top).exists():
                (there / top).symlink_to(Path(str(distribution(name).locate_file(top))))
    install(python, "--no-index", "--no-deps", str(wheel))
    return python


def installed(folder: Path, wheel: Path, extra: str) -> Path:
    """An environment into which pip has installed the wheel with all that it requires.

    Its Python.
    """
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    install(python, f"{wheel}[{extra}]" if extra else str(wheel))
    return python


def install(python: Path, *what: str) -> None:
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *what]
    subprocess.run(pip, check=True)
