"""Resolves ``${env:NAME}`` in parameters and conf, in the worker alone, and takes the values out of all it says.

Only what the spec itself wrote is resolved: a person who writes data must not read a worker's environment. No secret
ever stands in a spec, a record, a marker, a report or a log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

from unstuck.tasks.errors import Unrecoverable
from unstuck.tasks.protocol.texts import map_texts

# ``$${`` stands for the text ``${``. The last group is what was meant as a reference and is none.
_REFERENCE = re.compile(
    r"(?P<escaped>\$\$\{)|\$\{env:(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}|(?P<wrong>\$\{\s*[\w.-]*:[^}\s]*\}?)"
)
_SHORTEST = 4  # characters; shorter values would blot out ordinary text, so they are no secrets
_PIECE = 256  # characters; a longer line of a secret is looked for in pieces, so that a stream is held back little
_WHOLE = 1024  # characters; a longer secret is looked for by its lines and pieces alone

# How programs write a text into another one. What is written twice, such as JSON in a repr, is found as well.
_ESCAPES: tuple[Callable[[str], str], ...] = (
    lambda text: repr(text)[1:-1],
    lambda text: repr("\"'" + text)[4:-1],  # a text with both kinds of quotes in it
    lambda text: ascii(text)[1:-1],
    lambda text: repr(_bytes(text))[2:-1],
    lambda text: json.dumps(text)[1:-1],
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
)
# What libraries leave as it is in a URL: all of Python, Java's encoder, a browser, user:password@, and requests.
_URL_SAFE = ("", "/", "*", "!'()*", "!$&'()*+,;=", "!#$%&'()*+,/:;=?@[]~")


def reference_in(text: str, *, wrong: bool = False) -> str | None:
    """The first reference in ``text``; if ``wrong``, the first that was meant as one and is none."""
    return next((found[0] for found in _REFERENCE.finditer(text) if found["wrong" if wrong else "name"]), None)


class Secrets:
    """Resolves references against one environment, and remembers what it gave out."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = environ or {}
        self._names: dict[str, str] = {}  # what a secret may look like → its variable
        self._longest = 1  # characters of what may be torn where a stream is written in parts
        self._found: re.Pattern[str] | None = None
        self.given: dict[str, str] = {}  # variable → value, of those that are secrets

    def resolve(self, value: Any) -> Any:
        """``value`` with each ``${env:NAME}`` in its strings replaced, at any depth of lists and objects.

        Raises: Unrecoverable: the worker has no such variable. Names the variable; there is no value to name.
        """
        return map_texts(value, lambda text: _REFERENCE.sub(self._replace, text))

    def expect(self, text: str) -> None:
        """``text`` has its references resolved by somebody else: Spark does so in SQL."""
        for found in _REFERENCE.finditer(text):
            if found["name"] in self._environ:
                self._look_up(found["name"])

    def clean(self, text: str) -> str:
        """``text`` with every value that was given out replaced by its reference."""
        return text if self._found is None else self._found.sub(lambda at: f"${{env:{self._names[at[0]]}}}", text)

    def clean_all(self, value: Any) -> Any:
        """``clean`` for every string in a JSON value."""
        if isinstance(value, dict):
            return {self.clean(key): self.clean_all(part) for key, part in value.items()}
        return [self.clean_all(part) for part in value] if isinstance(value, list) else map_texts(value, self.clean)

    def named_in(self, value: Any) -> str | None:
        """The reference to the first secret in a text ``value``."""
        found = self._found.search(value) if self._found is not None and isinstance(value, str) else None
        return f"${{env:{self._names[found[0]]}}}" if found else None

    def ready(self, text: str) -> int:
        """How much of ``text`` no text to come can change: all but the end of an unfinished line."""
        if self._found is None:
            return len(text)
        line = max(text.rfind("\n"), text.rfind("\r")) + 1  # no piece goes beyond the end of a line
        cut = max(line, len(text) - self._longest + 1)
        # What begins before the cut and goes beyond it is a whole secret already.
        return max([cut, *(found.end() for found in self._found.finditer(text) if found.start() < cut)])

    def _replace(self, found: re.Match[str]) -> str:
        if found["escaped"]:
            return "${"
        return found[0] if found["wrong"] else self._look_up(found["name"])

    def _look_up(self, name: str) -> str:
        if (value := self._environ.get(name)) is None:
            raise Unrecoverable(
                f"the environment variable {name} is not set on this worker, and ${{env:{name}}} asks for it; "
                "set it where the worker starts"
            )
        if name not in self.given:
            self._remember(name, value)
        return value

    def _remember(self, name: str, value: str) -> None:
        pieces = {form for piece in _pieces(value) for form in _forms(piece)}
        whole = _forms(value) if len(value) <= _WHOLE and len(value.strip()) >= _SHORTEST else set()
        if not pieces and not whole:
            return
        self.given[name] = value
        self._longest = max([self._longest, *map(len, pieces)])
        self._names = {**dict.fromkeys(pieces | whole, name), **self._names}
        # The longest first: one that holds another must not be taken for that, or its tail would stay.
        every = sorted(self._names, key=len, reverse=True)
        self._found = re.compile("|".join(map(re.escape, every)))


class Stream:
    """Text that comes in parts, cleaned: the end of an unfinished line waits for the part that follows."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._held = ""

    def feed(self, text: str) -> str:
        text = self._held + text
        ready = self._secrets.ready(text)
        self._held = text[ready:]
        return self._secrets.clean(text[:ready])

    def finish(self) -> str:
        text, self._held = self._held, ""
        return self._secrets.clean(text)


def _pieces(value: str) -> Iterator[str]:
    """The lines of a secret, each of which is one: a key in a file may be printed line by line."""
    for line in value.splitlines():
        line = line.strip()
        for at in range(0, len(line), _PIECE):
            if len(piece := line[at : at + _PIECE]) >= _SHORTEST:
                yield piece


def _forms(text: str) -> set[str]:
    """``text`` as it may stand in other text: as it is, in Python's and JSON's quotes, in a URL."""
    forms = {text, *(escape(text) for escape in _ESCAPES)}
    forms |= {escape(form) for form in forms for escape in _ESCAPES}
    for safe in _URL_SAFE:
        for written in (quote(_bytes(text), safe=safe), quote_plus(_bytes(text), safe=safe)):
            forms |= {written, re.sub("%..", lambda code: code[0].lower(), written)}
    return forms


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
