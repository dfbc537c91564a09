"""Resolve ``${env:NAME}`` and ``${secret:NAME}`` in parameters and conf, only in the worker.

Only what the spec itself wrote is resolved: a person who writes data must not read a worker's
environment. No secret ever stands in a spec, a record, a marker, a report or a log: it is taken out
of text, and refused in data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from unstuck.tasks.errors import Unrecoverable
from unstuck.tasks.plain_text import plain_text
from unstuck.tasks.protocol.texts import map_texts, texts_in

# ``$${`` stands for the text ``${``. The last group is what was meant as a reference and is none.
_REFERENCE = re.compile(
    r"(?P<escaped>\$\$\{)|\$\{(?P<kind>env|secret):(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}"
    r"|(?P<wrong>\$\{\s*[\w.-]*:[^}\s]*\}?)"
)
# A shorter value, or a common word, stands in ordinary text, which must stay as it is.
_SHORTEST = 6  # characters
_SHORTEST_LINE = 4  # characters, of a secret of several lines
_COMMON = re.compile(
    "true|false|null|none|name|type|text|user|test|prod"
    "|date|long|byte|char|short|array|bigint|binary|boolean|decimal|double|integer|interval"
    "|string|timestamp|variant|disabled|enabled|default|unknown|nothing|debugging|verbose|warning"
    "|localhost|development|preview|product(ion|ive)?|release|sandbox|stable|staging|testing"
    "|primary|replica|private|public|admin(istrator)?|changeme|client|database|master|minioadmin"
    "|passwd|password|postgres|secret|server|service|system|unstuck|warehouse|worker",
    re.IGNORECASE,
)
_IN_NAMES = 8  # characters; a shorter secret is looked for as a whole name alone
# Characters; a longer line of a secret is looked for in pieces, so that a stream is held back
# little.
_PIECE = 256
_WHOLE = 1024  # characters; a longer secret is looked for by its lines and pieces alone
# After the name of a variable: another variable, which names the file that holds the secret.
_FILE = "_FILE"
_FILE_BYTES = 64 * 1024

# How programs write a text into another one. What is written twice, such as JSON in a repr, is
# found as well.
_ESCAPES: tuple[Callable[[str], str], ...] = (
    lambda text: repr(text)[1:-1],
    lambda text: repr("\"'" + text)[4:-1],  # a text with both kinds of quotes in it
    lambda text: ascii(text)[1:-1],
    lambda text: repr(_bytes(text))[2:-1],
    lambda text: json.dumps(text)[1:-1],
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
)
# What libraries leave as it is in a URL: all of Python, Java's encoder, a browser, user:password@,
# and requests.
_URL_SAFE = ("", "/", "*", "!'()*", "!$&'()*+,;=", "!#$%&'()*+,/:;=?@[]~")


def reference_in(text: str, *, wrong: bool = False) -> str | None:
    """Return the first reference in ``text``; if ``wrong``, the first malformed one."""
    return next(
        (match[0] for match in _REFERENCE.finditer(text) if match["wrong" if wrong else "name"]),
        None,
    )


class Secrets:
    """Resolves references against one environment, and remembers the secrets that it gave out."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = environ or {}
        self._names: dict[str, str] = {}  # what a secret may look like → its variable
        self._longest = 1  # characters of what may be torn where a stream is written in parts
        self._found: re.Pattern[str] | None = None
        self.values: dict[str, str] = {}  # variable → the secret in it

    @classmethod
    def of(cls, values: Mapping[str, str]) -> Secrets:
        """Create the secrets that another process sent as ``values`` (variable → secret)."""
        secrets = cls()
        for name, value in values.items():
            secrets._remember(name, value)
        return secrets

    def resolve(self, value: Any) -> Any:
        """``value`` with each reference in its strings replaced, at any depth of lists and objects.

        Raises: Unrecoverable: the worker has no such variable, or what it holds can be no secret.
        Names the variable.
        """
        return map_texts(value, lambda text: _REFERENCE.sub(self._replace, text))

    def clean(self, text: str) -> str:
        """``text`` with every secret that was given out replaced by its reference."""
        return (
            text
            if self._found is None
            else self._found.sub(lambda at: self._reference(at[0]), text)
        )

    def clean_all(self, value: Any) -> Any:
        """``clean`` for every string in a JSON value."""
        if self._found is None:
            return value
        if isinstance(value, dict):
            return {self.clean(key): self.clean_all(part) for key, part in value.items()}
        return (
            [self.clean_all(part) for part in value]
            if isinstance(value, list)
            else map_texts(value, self.clean)
        )

    def in_data(self, value: Any) -> str | None:
        """Return the reference to the first secret in ``value``, at any depth."""
        if self._found is None:
            return None
        matches = filter(None, map(self._found.search, texts_in(value)))
        return next((self._reference(match[0]) for match in matches), None)

    def in_name(self, name: str) -> str | None:
        """Return the reference to the secret in ``name``. A short one must match it as a whole."""
        for match in self._found.finditer(name) if self._found is not None else ():
            if match[0] == name or len(match[0]) >= _IN_NAMES:
                return self._reference(match[0])
        return None

    def unchangeable(self, text: str) -> int:
        """Return the length of ``text`` without its unfinished line."""
        if self._found is None:
            return len(text)
        line = max(text.rfind("\n"), text.rfind("\r")) + 1  # no piece goes beyond the end of a line
        cut = max(line, len(text) - self._longest + 1)
        # What begins before the cut and goes beyond it is a whole secret already.
        return max(
            [cut, *(match.end() for match in self._found.finditer(text) if match.start() < cut)]
        )

    def _reference(self, form: str) -> str:
        return f"${{secret:{self._names[form]}}}"

    def _replace(self, match: re.Match[str]) -> str:
        if match["escaped"]:
            return "${"
        if match["wrong"]:
            return match[0]
        name = match["name"]
        if match["kind"] == "secret":
            if name not in self.values:
                self._remember(name, self._secret(name))
            return self.values[name]
        if (value := self._environ.get(name)) is None:
            raise Unrecoverable(
                f"the environment variable {name} is not set on this worker, and {match[0]} asks "
                "for it; set it where the worker starts"
            )
        return value

    def _secret(self, name: str) -> str:
        """Return the value of the variable, or the content of the file in ``NAME_FILE``.

        Raises: Unrecoverable.
        """
        value, path = self._environ.get(name), self._environ.get(name + _FILE)
        if (value is None) == (path is None):
            which = "neither" if value is None else "both"
            raise Unrecoverable(
                f"${{secret:{name}}} asks for the environment variable {name}, or for "
                f"{name}{_FILE} with the name of a file, and this worker has {which}; set one "
                "where the worker starts"
            )
        if path is not None:
            try:
                with Path(path).open("rb") as file:
                    if len(data := file.read(_FILE_BYTES + 1)) > _FILE_BYTES:
                        raise ValueError(f"it has more than {_FILE_BYTES // 1024} KB")
                    value = data.decode()
            except (OSError, ValueError) as error:
                # An error of the decoder would tell bytes of the file.
                why = (
                    "it is not UTF-8"
                    if isinstance(error, UnicodeDecodeError)
                    else getattr(error, "strerror", error)
                )
                raise Unrecoverable(
                    f"${{secret:{name}}}: the file {path}, which {name}{_FILE} names, cannot be "
                    f"read: {why}"
                ) from None
        assert value is not None
        value = plain_text(value)
        if not _is_secret(value):
            raise Unrecoverable(
                f"what {name} holds on this worker can be no secret: it is shorter than "
                f"{_SHORTEST} characters, or a common word, and would be taken out of ordinary "
                f"text. Configuration is written as ${{env:{name}}}"
            )
        return value

    def _remember(self, name: str, value: str) -> None:
        pieces = {form for piece in _pieces(value) for form in _forms(piece)}
        whole = _forms(value) if len(value) <= _WHOLE or not pieces else set()
        self.values[name] = value
        self._longest = max([self._longest, *map(len, pieces)])
        self._names = {**dict.fromkeys(pieces | whole, name), **self._names}
        # The longest first: one that holds another must not be taken for that, or its tail would
        # stay.
        every = sorted(self._names, key=len, reverse=True)
        self._found = re.compile("|".join(map(re.escape, every)))


class Stream:
    """Cleans text that comes in parts. The end of an unfinished line waits for the next part."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._waiting = ""

    def feed(self, text: str) -> str:
        text = self._waiting + text
        unchangeable = self._secrets.unchangeable(text)
        self._waiting = text[unchangeable:]
        return self._secrets.clean(text[:unchangeable])

    def finish(self) -> str:
        text, self._waiting = self._waiting, ""
        return self._secrets.clean(text)


def _pieces(value: str) -> Iterator[str]:
    """The lines of a secret, each of which is one: a key in a file may be printed line by line."""
    for line in value.splitlines():
        line = line.strip()
        for at in range(0, len(line), _PIECE):
            if _is_secret(piece := line[at : at + _PIECE], _SHORTEST_LINE):
                yield piece


def _is_secret(text: str, shortest: int = _SHORTEST) -> bool:
    """False for what stands in ordinary text by chance."""
    return len(text.strip()) >= shortest and _COMMON.fullmatch(text.strip()) is None


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
