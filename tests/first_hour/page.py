"""What a page tells a reader to do: files to save, changes to them, commands to type, and what
these print.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

# A console block, and what is printed, follow each other; a file is named by the sentence above its
# block.
_BLOCK = re.compile(
    r"(?P<above>[^\n]*)\n\n```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_NAMED = re.compile(r"\b(?P<verb>[Ss]ave|[Cc]hange|[Aa]dd).*`(?P<name>[\w./]+)`[^`]*:$")
_EXIT = re.compile(r"# exit code (\d+)")
# What differs from run to run. Ids and processes are kept: a later command may name them.
_KEPT = re.compile(r"\d{8}T\d{6}-\w{8}|(?<=:)\d{3,}\b")
_VARIES = re.compile(
    rf"(?P<kept>{_KEPT.pattern})|\d{{4}}-\d\d-\d\d|\d\d:\d\d:\d\d(?:\+\d\d:\d\d)?|\b\d+(?:\.\d+)?m?s\b|[▇▁]+|\w+@\w+|/[\w/.-]+"
    r"|\bvm\b"
)


@dataclass(frozen=True)
class Save:
    """A new file."""

    name: str
    text: str


@dataclass(frozen=True)
class Change:
    """Lines of a file that go, each run of them with the lines that come for it; lines alone stand
    at its end.
    """

    name: str
    diff: str

    def made(self, text: str) -> str:
        gone, come = (
            "".join(line[1:] + "\n" for line in self.diff.splitlines() if line[:1] in (side, " "))
            for side in "-+"
        )
        assert text.count(gone) == 1 or not gone, f"{self.name} has not once:\n{gone}"
        return text.replace(gone, come) if gone else text + come


@dataclass
class Command:
    """A line for a shell, or a text for Python, and the lines that it shows, in their order."""

    line: str
    shown: str = ""
    code: int = 0

    @property
    def stays(self) -> bool:
        return self.line == "unstuck up"


def read(page: Path) -> list[Save | Change | Command]:
    """The page from top to bottom."""
    done: list[Save | Change | Command] = []
    for block in _BLOCK.finditer(page.read_text()):
        kind, text = block["kind"], block["text"]
        named = _NAMED.search(block["above"])
        if kind == "diff":
            assert named, block["above"]
            done.append(Change(named["name"], text))
        elif named:
            done.append(Save(named["name"], text))
        elif kind == "python":
            done.append(Command(text))
        elif kind == "console":
            for line in text.splitlines():
                code = _EXIT.search(line)
                done.append(Command(re.sub(r"\s+#.*", "", line), code=int(code[1]) if code else 0))
        elif kind == "text":
            assert isinstance(done[-1], Command), block["above"]
            done[-1].shown = text
    return done


def match(shown: str, said: str) -> dict[str, str] | None:
    """The ids and processes of the page with those of this run; None unless ``said`` has all lines
    of ``shown``.
    """
    parts, names = [], []
    for line in filter(str.strip, shown.splitlines()):
        at, pattern = 0, ""
        for varies in _VARIES.finditer(line):
            pattern += _spaced(line[at : varies.start()])
            if varies["kept"]:
                names.append(varies["kept"])
            pattern += r"(\w+(?:-\w+)?)" if varies["kept"] else r"\S+"
            at = varies.end()
        parts.append(pattern + _spaced(line[at:]))
    parts = [part for part in parts if part.strip() != r"\.\.\."]
    found = re.search(r"\s*$[\s\S]*?^\s*".join(parts), said, re.MULTILINE)
    return None if found is None else dict(zip(names, found.groups(), strict=True))


def renamed(line: str, names: dict[str, str]) -> str:
    """A command of the page, with the ids and processes of this run."""
    for shown, real in names.items():
        line = re.sub(rf"\b{re.escape(shown)}\b", real, line)
    return line


def _spaced(text: str) -> str:
    """A text with spaces of any width, in which … stands for the rest of a line."""
    return r"\s+".join(map(re.escape, re.split(r"\s+", text))).replace("…", ".*")
