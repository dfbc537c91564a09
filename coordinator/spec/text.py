"""Reads the text of a spec, YAML or JSON, into plain values with their places.

Only what JSON can express is read. Tags are refused, and so are words that YAML 1.1 and 1.2 read
differently (``no``, ``010``, ``1_000``). Only code that reads a text imports this file, since a
coordinator gets most specs as values and needs no parser.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from unstuck.coordinator.spec.problems import (
    MAX_PROBLEMS,
    Loc,
    SpecError,
    SpecProblem,
    Written,
    describe,
    shorten,
    suggestion,
)
from unstuck.tasks.plain_text import plain_text

MAX_BYTES = 10 * 1024 * 1024
MAX_NODES = 500_000  # with the value of an alias counted each time: the bound on alias bombs
MAX_DEPTH = 40  # well below the depth at which Python's own recursion ends

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_UNCLEAR = re.compile(
    r"yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
    r"|[-+]?(?:0[0-9_]+|[1-9][0-9]*_[0-9_]*|0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+)"
)
_TAGS: dict[type[yaml.Event], tuple[str | None, ...]] = {
    yaml.ScalarEvent: (None, "!", "tag:yaml.org,2002:str"),
    yaml.SequenceStartEvent: (None, "tag:yaml.org,2002:seq"),
    yaml.MappingStartEvent: (None, "tag:yaml.org,2002:map"),
}
_SURROGATE = re.compile("[\ud800-\udfff]")
_EMPTY = "the spec is empty; it needs at least name: and groups:"
_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"
# Of a text that is valid JSON.
_JSON_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]|[^\s,:"\[\]{}]+')

Place = tuple[int, int]  # line and column, counted from 1


class Node(NamedTuple):
    """One plain value with its place.

    Attributes:
        parts: the nodes of a list by index, or of a mapping by key.
    """

    value: Any
    place: Place
    parts: dict[Any, Node]
    key_place: Place | None = None  # of the key of a mapping that holds this value
    is_block: bool = False  # a text after ``|``, whose first line is the one below


@dataclass(frozen=True, slots=True)
class Reading:
    """The values of a text, and problems that leave the rest readable."""

    source: str
    root: Node
    problems: tuple[SpecProblem, ...] = ()

    def located(self, problem: SpecProblem) -> SpecProblem:
        """Return ``problem`` with the line and column of its nearest written place."""
        if problem.line is not None:
            return problem
        node, on_key = self.root, problem.on_key
        for part in problem.loc:
            if part not in node.parts:
                on_key = False
                break
            node = node.parts[part]
        line, column = (on_key and node.key_place) or node.place
        if node.is_block and problem.line_inside:
            return replace(
                problem, source=self.source, line=line + problem.line_inside, column=None
            )
        return replace(problem, source=self.source, line=line, column=column)


def read_file(path: str | os.PathLike[str]) -> Written:
    """Read the spec in a YAML or JSON file.

    Raises:
        SpecError: as for `read_text`, or the file cannot be read.
    """
    source = os.fspath(path)
    try:
        with open(source, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = getattr(error, "strerror", None) or error
        near = ""
        if isinstance(error, FileNotFoundError):
            beside = (
                sibling.name
                for sibling in Path(source).parent.glob("*")
                if sibling.suffix in (".yaml", ".yml", ".json")
            )
            near = suggestion(Path(source).name, beside)
        raise SpecError([SpecProblem(f"cannot be read: {why}{near}", source=source)]) from None
    return written_in(read_bytes(data, source), source, Path(source).parent)


def written_in(text: str, source: str, folder: Path | None) -> Written:
    """Read the spec in ``text``; ``folder`` is that of ``sql_file:``.

    Raises:
        SpecError: as for `read_text`.
    """
    reading = read_text(text, source)
    return Written(reading.root.value, reading.located, reading.problems, folder)


def read_bytes(data: bytes, source: str) -> str:
    """Return the text in ``data``.

    Raises:
        SpecError: more than 10 MB, or not UTF-8.
    """
    if len(data) > MAX_BYTES:
        raise SpecError([SpecProblem("larger than 10 MB", source=source)])
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        message = f"not UTF-8 text: byte 0x{data[error.start]:02x}"
        if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            message += "; it looks like UTF-16, save it as UTF-8"
        raise SpecError([SpecProblem(message, source=source, line=line, column=column)]) from None


def read_text(text: str, source: str) -> Reading:
    """Read the values in ``text``: JSON if ``source`` ends in ``.json`` or it is JSON, else YAML.

    Raises:
        SpecError: empty, too big, too deep, or neither YAML nor JSON. Problems that leave the rest
            readable (a key that is written twice, a word that readers disagree about) are in
            ``Reading.problems`` instead.
    """
    builder = _Builder(source)
    if len(text) > MAX_BYTES or len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        raise builder.refused("larger than 10 MB")
    if half := _SURROGATE.search(text):
        message = "not valid Unicode: half of a surrogate pair"
        raise builder.refused(message, _place_at(text, half.start()))
    text = plain_text(text) + "\n"  # a block at the end of a file keeps its line end
    if not text.strip():
        raise builder.refused(_EMPTY)
    if _is_json(text, builder):
        root = builder.document(_json_events(text), _json_word)
    else:
        root = _read_yaml(text, builder)
    return Reading(source, root, tuple(builder.problems))


def _read_yaml(text: str, builder: _Builder) -> Node:
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return builder.document(iter(yaml.parse(text, Loader=loader)), plain_scalar)
    except yaml.MarkedYAMLError as error:
        what, mark = str(error.problem), error.problem_mark or error.context_mark
        if error.context and error.context_mark:
            what += f" {error.context} (line {error.context_mark.line + 1})"
        if "\t" in text and "cannot start any token" in what:
            what += "; indent YAML with spaces, not with tabs"
        place = _place(mark) if mark else None
    except yaml.reader.ReaderError as error:
        what = str(error.reason)
        place = _place_at(text, error.position if isinstance(error.position, int) else 0)
    raise builder.refused(f"not readable as YAML: {what}", place)


def plain_scalar(text: str) -> str | int | float | bool | None:
    """Return the value of a word without quotes.

    ``2013`` is a number, ``true`` a truth value, ``2013-01-01`` text.

    Raises:
        ValueError: YAML 1.1 and 1.2 disagree about it, or JSON has no such number.
    """
    if text in _WORDS:
        return _WORDS[text]
    shown = shorten(text, quote="")
    if _INT.fullmatch(text):
        # The length first: int() itself refuses many thousand digits.
        if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
            raise ValueError(f"the number {shown} needs more than 64 bits; put it in quotes")
        return int(text)
    if _UNCLEAR.fullmatch(text):
        raise ValueError(
            f"{shown} without quotes is not the same to all readers of YAML and JSON; write true, "
            "false or plain digits, or put it in quotes"
        )
    if _FLOAT.fullmatch(text):
        if math.isinf(number := float(text)):
            raise ValueError(f"the number {shown} is too large; put it in quotes if it is text")
        return number
    return text


class _Builder:
    """Builds nodes from parser events one at a time, so that bounds hold before memory is used."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.problems: list[SpecProblem] = []
        self._size = 0
        self._word: Callable[[str], Any] = plain_scalar
        self._anchors: dict[str | None, Node] = {}

    def document(self, events: Iterator[Any], word: Callable[[str], Any]) -> Node:
        """Return the root of the only document; ``word`` reads a scalar without quotes."""
        self._word = word
        root: Node | None = None
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    place = _place(event.start_mark)
                    raise self.refused(
                        "a second document begins here; one file holds one spec", place
                    )
                root = self._value(next(events), events, ())
        if root is None or root.value is None:
            raise self.refused(_EMPTY)
        return root

    def refused(self, message: str, place: Place | None = None, loc: Loc = ()) -> SpecError:
        """Return the error that ends the reading, with the problems before it."""
        return SpecError(
            [
                *self.problems,
                SpecProblem(message, loc, False, self.source, *(place or (None, None))),
            ]
        )

    def _note(self, message: str, place: Place, loc: Loc) -> None:
        """Add a problem that leaves the rest readable. Raises: SpecError: there are too many."""
        if len(self.problems) >= MAX_PROBLEMS:
            raise self.refused("more problems follow; the reading ends here", place)
        self.problems.append(SpecProblem(message, loc, False, self.source, *place))

    def _count(self, place: Place, depth: int, parts: Iterable[Node] = ()) -> None:
        """Count one value at this depth, and the ``parts`` of an alias."""
        self._size += 1
        if self._size > MAX_NODES:
            raise self.refused(
                f"more than {MAX_NODES:,} values, with the value of an alias counted each time",
                place,
            )
        if depth > MAX_DEPTH:
            raise self.refused(_TOO_DEEP, place)
        for part in parts:
            self._count(place, depth + 1, part.parts.values())

    def _value(self, event: Any, events: Iterator[Any], loc: Loc) -> Node:
        place = _place(event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            if (node := self._anchors.get(event.anchor)) is None:
                message = (
                    f"the alias *{event.anchor} has no anchor &{event.anchor} whose value "
                    "ends above it"
                )
                raise self.refused(message, place, loc)
            self._count(place, len(loc), node.parts.values())
            return node._replace(place=place)
        self._count(place, len(loc))
        self._check_tag(event, place, loc)
        self._anchors.pop(event.anchor, None)
        parts: dict[Any, Node] = {}
        if isinstance(event, yaml.SequenceStartEvent):
            while not isinstance(item := next(events), yaml.SequenceEndEvent):
                parts[len(parts)] = self._value(item, events, (*loc, len(parts)))
            node = Node([item.value for item in parts.values()], place, parts)
        elif isinstance(event, yaml.MappingStartEvent):
            parts = self._mapping(events, loc)
            node = Node({key: part.value for key, part in parts.items()}, place, parts)
        else:
            node = Node(self._scalar(event, place, loc), place, parts, is_block=event.style == "|")
        self._anchors[event.anchor] = node
        return node

    def _mapping(self, events: Iterator[Any], loc: Loc) -> dict[Any, Node]:
        parts: dict[Any, Node] = {}
        merged: list[Node] = []
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            place = _place(event.start_mark)
            if not isinstance(event, yaml.ScalarEvent):
                raise self.refused(
                    "a key must be text, not a list, a mapping or an alias", place, loc
                )
            if event.value == "<<" and event.implicit[0]:
                merged.append(self._value(next(events), events, (*loc, "<<")))
                continue
            self._check_tag(event, place, loc)
            key = str(event.value)  # a key is text whatever it looks like, as in `on:` and `1:`
            value = self._value(next(events), events, (*loc, key))
            if key in parts:
                line = (parts[key].key_place or place)[0]
                message = (
                    f"{shorten(key)} is written twice in one mapping, first on line {line}; "
                    "keep one"
                )
                self._note(message, place, (*loc, key))
            else:
                parts[key] = value._replace(key_place=place)
        # A key of the mapping wins over `<<`. Of several `<<`, the first wins.
        for base in merged:
            for key, part in self._merged_parts(base, loc):
                parts.setdefault(key, part)
        return parts

    def _merged_parts(self, base: Node, loc: Loc) -> Iterator[tuple[Any, Node]]:
        """Yield the entries that ``<<`` with the value ``base`` adds."""
        for node in base.parts.values() if isinstance(base.value, list) else [base]:
            if isinstance(node.value, dict):
                yield from node.parts.items()
            else:
                what = f"<< takes a mapping or a list of mappings, not {describe(node.value)}"
                self._note(what, base.place, loc)

    def _scalar(self, event: Any, place: Place, loc: Loc) -> Any:
        text = str(event.value)
        if event.tag is not None or not event.implicit[0]:
            return text
        try:
            return self._word(text)
        except ValueError as error:
            self._note(str(error), place, loc)
            return text

    def _check_tag(self, event: Any, place: Place, loc: Loc) -> None:
        if event.tag not in _TAGS[type(event)]:
            tag = str(event.tag).replace("tag:yaml.org,2002:", "!!")
            self._note(
                f"the tag {shorten(tag, quote='')} is not read here; write the value without it",
                place,
                loc,
            )


def _place(mark: Any) -> Place:
    return mark.line + 1, mark.column + 1


def _place_at(text: str, index: int) -> Place:
    return text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index)


# JSON is not read as YAML: tabs, `\/` and surrogate pairs are JSON, and are not YAML.


def _is_json(text: str, builder: _Builder) -> bool:
    """Return whether the text is JSON. Raises: SpecError.

    A YAML mapping in braces may look like JSON.
    """
    named = builder.source.lower().endswith(".json")
    if not named and not text.lstrip().startswith("{"):
        return False
    try:
        # `plain_scalar` reads the numbers.
        json.loads(text, parse_int=str, parse_float=str, parse_constant=str)
    except json.JSONDecodeError as error:
        if not named:
            return False
        what = error.msg.replace("Expecting", "expected")
        raise builder.refused(
            f"not readable as JSON: {what}", (error.lineno, error.colno)
        ) from None
    except RecursionError:
        raise builder.refused(_TOO_DEEP) from None
    return True


def _json_events(text: str) -> Iterator[Any]:
    """Yield the events that a YAML parser would have for a JSON text."""
    yield yaml.DocumentStartEvent()
    line = begin = counted_to = 0  # of the line: its number, and the index of its first character
    for token in _JSON_TOKEN.finditer(text):
        start, word = token.start(), token[0]
        if breaks := text.count("\n", counted_to, start):
            line, begin = line + breaks, text.rfind("\n", counted_to, start) + 1
        counted_to, mark = token.end(), yaml.Mark("", start, line, start - begin, "", 0)
        if word[0] == '"':
            yield yaml.ScalarEvent(None, None, (False, True), json.loads(word), mark)
        elif word == "[":
            yield yaml.SequenceStartEvent(None, None, True, mark)
        elif word == "{":
            yield yaml.MappingStartEvent(None, None, True, mark)
        elif word == "]":
            yield yaml.SequenceEndEvent()
        elif word == "}":
            yield yaml.MappingEndEvent()
        else:
            yield yaml.ScalarEvent(None, None, (True, False), word, mark)


def _json_word(word: str) -> Any:
    if word in ("NaN", "Infinity", "-Infinity"):
        raise ValueError(f"{word} is not JSON; put it in quotes if it is text")
    return plain_scalar(word)
