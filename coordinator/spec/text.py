"""Read the text of a spec, YAML or JSON, into plain values with their places.

Only what JSON can say is read, no tag builds a Python object, and a word that readers of YAML 1.1 and 1.2 understand
differently (``no``, ``010``, ``1_000``) is refused. Only code that reads a text imports this file, since a coordinator
is given specs as values and needs no parser.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import yaml

from unstuck.coordinator.spec.problems import MAX_PROBLEMS, Loc, Problem, SpecError, describe, shorten

MAX_BYTES = 10 * 1024 * 1024
MAX_NODES = 500_000  # with every alias counted as what it stands for: the bound on alias bombs
MAX_DEPTH = 40  # well below the depth at which Python's own recursion ends

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_ODD_INT = re.compile(r"[-+]?(?:0[0-9_]+|[1-9][0-9]*_[0-9_]*|0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+)")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_TRUTHS_OF_YAML_1_1 = {
    **dict.fromkeys(("yes", "Yes", "YES", "on", "On", "ON"), "true"),
    **dict.fromkeys(("no", "No", "NO", "off", "Off", "OFF"), "false"),
}
_TEXT_TAGS = (None, "!", "tag:yaml.org,2002:str")
_SURROGATE = re.compile("[\ud800-\udfff]")
_JSON_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]|[^\s,:"\[\]{}]+')  # of a text that is known to be JSON


class Place(NamedTuple):
    """Line and column, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Node:
    """One value and where it stands.

    Attributes:
        value: the plain value.
        parts: the nodes of a list, by index, or of a mapping, by key.
        keys: for a mapping, where each key stands.
        size: how many values it stands for, itself included and aliases counted in full.
        height: how many levels there are below it.
    """

    value: Any
    place: Place
    parts: dict[Any, Node] = field(default_factory=dict)
    keys: dict[str, Place] = field(default_factory=dict)
    size: int = 1
    height: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """A text that was read: its values, and the way back from a value to its place."""

    source: str
    root: Node
    problems: tuple[Problem, ...] = ()

    def data(self) -> Any:
        """Plain values: text, numbers, true, false, None, lists and dicts."""
        return self.root.value

    def located(self, problem: Problem) -> Problem:
        """``problem`` with the line and column of its place, or of the nearest place around it that is written."""
        node, place = self.root, self.root.place
        for depth, part in enumerate(problem.loc, start=1):
            child = node.parts.get(part)
            if child is None:
                break
            place = child.place
            if problem.on_key and depth == len(problem.loc):
                place = node.keys.get(str(part), place)  # a key that `<<` brought in has no place here
            node = child
        return replace(problem, source=self.source, line=place.line, column=place.column)


def read_bytes(data: bytes, source: str) -> str:
    """The text in ``data``.

    Raises:
        SpecError: more than 10 MB, or not UTF-8.
    """
    if len(data) > MAX_BYTES:
        raise SpecError([Problem("larger than 10 MB", source=source)])
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        hint = "; it looks like UTF-16, save it as UTF-8" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        message = f"not UTF-8 text: byte 0x{data[error.start]:02x}{hint}"
        raise SpecError([Problem(message, source=source, line=line, column=column)]) from None


def read_text(text: str, source: str) -> Reading:
    """The values in ``text``: JSON if ``source`` ends in ``.json`` or the text is JSON, else YAML.

    Raises:
        SpecError: empty, too big, too deep, or neither YAML nor JSON. Problems that leave the rest readable
            (a key that stands twice, a word that readers disagree about) are in ``Reading.problems`` instead.
    """
    builder = _Builder(source)
    if len(text) > MAX_BYTES or len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        raise builder.refused("larger than 10 MB")
    if half := _SURROGATE.search(text):
        raise builder.refused("not valid Unicode: half of a surrogate pair", _place_at(text, half.start()))
    text = text.removeprefix("\ufeff")
    if not text.strip():
        raise builder.refused("the spec is empty; it wants at least name: and groups:")
    if source.lower().endswith(".json"):
        root = _read_json(text, builder)
    elif text.lstrip().startswith("{"):
        try:
            root = _read_json(text, builder)
        except SpecError as as_json:
            builder = _Builder(source)  # perhaps a YAML mapping in braces, or JSON with a comment
            try:
                root = _read_yaml(text, builder)
            except SpecError as as_yaml:
                raise max(as_json, as_yaml, key=_how_far) from None
    else:
        root = _read_yaml(text, builder)
    return Reading(source, root, tuple(builder.problems))


def plain_scalar(text: str) -> str | int | float | bool | None:
    """What a word without quotes says: ``2013`` a number, ``true`` a truth value, ``2013-01-01`` and ``12:30`` text.

    Raises:
        ValueError: YAML 1.1 and 1.2 disagree about it, or JSON has no such number.
    """
    if text in _WORDS:
        return _WORDS[text]
    if truth := _TRUTHS_OF_YAML_1_1.get(text):
        raise ValueError(
            f'{text} without quotes is {truth} to some YAML readers and text to others; write {truth}, or "{text}"'
        )
    if _INT.fullmatch(text):
        # Bounded first: int() of many thousand digits is an error of its own, and nothing behind us holds it.
        if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
            raise ValueError(f"the number {shorten(text, quote='')} needs more than 64 bits; put it in quotes")
        return int(text)
    if _ODD_INT.fullmatch(text):
        raise ValueError(
            f"{shorten(text, quote='')} is one number to some YAML readers and another, or text, to others; "
            "write it in plain digits, or in quotes"
        )
    if _FLOAT.fullmatch(text):
        number = float(text)
        if number in (float("inf"), float("-inf")):
            raise ValueError(f"the number {shorten(text, quote='')} is too large; put it in quotes if it is text")
        return number
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"{text} is no number that JSON can hold; put it in quotes if it is text")
    return text


class _Builder:
    """Builds the nodes from the events of a parser, one at a time, so that the bounds hold before memory is spent."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.problems: list[Problem] = []
        self._size = 0
        self._word: Callable[[str], Any] = plain_scalar
        self._anchors: dict[str, Node | None] = {}  # None: the anchored value is still being read

    def document(self, events: Iterator[Any], word: Callable[[str], Any] = plain_scalar) -> Node:
        """The root of the one document in ``events``; ``word`` reads what stands without quotes."""
        self._word = word
        root: Node | None = None
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    place = _place(event.start_mark)
                    raise self.refused("a second document begins here; one file holds one spec", place)
                root = self._value(next(events), events, ())
        if root is None or root.value is None:
            raise self.refused("the spec is empty; it wants at least name: and groups:")
        return root

    def refused(self, message: str, place: Place | None = None, loc: Loc = ()) -> SpecError:
        """The error that ends the reading at once, with all that was found before."""
        return SpecError([*self.problems, Problem(message, loc, False, self.source, *(place or (None, None)))])

    def _note(self, message: str, place: Place, loc: Loc) -> None:
        """A problem that does not keep the rest from being read, unless there are very many."""
        if len(self.problems) >= MAX_PROBLEMS:
            raise self.refused("more problems follow; the reading ends here", place)
        self.problems.append(Problem(message, loc, False, self.source, *place))

    def _count(self, place: Place, loc: Loc, size: int = 1, height: int = 0) -> None:
        """Account for ``size`` more values at ``loc``, of which the deepest is ``height`` levels below it."""
        self._size += size
        if self._size > MAX_NODES:
            raise self.refused(f"more than {MAX_NODES:,} values, with aliases counted as what they stand for", place)
        if len(loc) + height > MAX_DEPTH:
            raise self.refused(f"nested more than {MAX_DEPTH} levels deep", place)

    def _value(self, event: Any, events: Iterator[Any], loc: Loc) -> Node:
        place = _place(event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, place, loc)
        self._count(place, loc)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        if isinstance(event, yaml.SequenceStartEvent):
            self._check_tag(event, place, loc, "tag:yaml.org,2002:seq")
            items: dict[Any, Node] = {}
            while not isinstance(item := next(events), yaml.SequenceEndEvent):
                items[len(items)] = self._value(item, events, (*loc, len(items)))
            node = _branch([item.value for item in items.values()], place, items)
        elif isinstance(event, yaml.MappingStartEvent):
            self._check_tag(event, place, loc, "tag:yaml.org,2002:map")
            node = self._mapping(events, place, loc)
        else:
            node = Node(self._scalar(event, place, loc), place)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _mapping(self, events: Iterator[Any], place: Place, loc: Loc) -> Node:
        parts: dict[Any, Node] = {}
        keys: dict[str, Place] = {}
        merged: list[Node] = []
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            at = _place(event.start_mark)
            if not isinstance(event, yaml.ScalarEvent):
                raise self.refused("a key must be text, not a list, a mapping or an alias", at, loc)
            if event.value == "<<" and event.implicit[0]:
                merged.append(self._value(next(events), events, (*loc, "<<")))
                continue
            self._check_tag(event, at, loc, *_TEXT_TAGS)
            key = self._text(event, at, loc)  # a key is text whatever it looks like, so `on:` and `1:` surprise nobody
            if key in keys:
                first = f"{shorten(key)} stands twice in one mapping, first on line {keys[key].line}; keep one"
                self._note(first, at, (*loc, key))
            value = self._value(next(events), events, (*loc, key))
            keys.setdefault(key, at)
            parts.setdefault(key, value)
        # What is written here wins over what `<<` brings in; of several, the first wins.
        for base in merged:
            for one in base.parts.values() if isinstance(base.value, list) else [base]:
                if isinstance(one.value, dict):
                    for key, part in one.parts.items():
                        parts.setdefault(key, part)
                else:
                    what = f"<< takes a mapping or a list of mappings, not {describe(one.value)}"
                    self._note(what, base.place, loc)
        return _branch({key: part.value for key, part in parts.items()}, place, parts, keys)

    def _scalar(self, event: Any, place: Place, loc: Loc) -> Any:
        self._check_tag(event, place, loc, *_TEXT_TAGS)
        text = self._text(event, place, loc)
        if event.tag is not None or not event.implicit[0]:
            return text
        try:
            return self._word(text)
        except ValueError as error:
            self._note(str(error), place, loc)
            return text

    def _text(self, event: Any, place: Place, loc: Loc) -> str:
        text = str(event.value)
        if _SURROGATE.search(text):  # written as an escape
            self._note("not valid Unicode: half of a surrogate pair", place, loc)
            text = _SURROGATE.sub("?", text)
        return text

    def _alias(self, event: Any, place: Place, loc: Loc) -> Node:
        if event.anchor not in self._anchors:
            raise self.refused(f"the alias *{event.anchor} has no anchor &{event.anchor} above it", place, loc)
        node = self._anchors[event.anchor]
        if node is None:
            raise self.refused(f"the alias *{event.anchor} stands inside what it stands for", place, loc)
        self._count(place, loc, node.size, node.height)
        return replace(node, place=place)

    def _check_tag(self, event: Any, place: Place, loc: Loc, *known: str | None) -> None:
        if event.tag is not None and event.tag not in known:
            tag = str(event.tag).replace("tag:yaml.org,2002:", "!!")
            self._note(f"the tag {shorten(tag, quote='')} is not read here; write the value without it", place, loc)


def _branch(value: Any, place: Place, parts: dict[Any, Node], keys: dict[str, Place] | None = None) -> Node:
    """A list or a mapping of finished nodes."""
    height = 1 + max((part.height for part in parts.values()), default=0)
    return Node(value, place, parts, keys or {}, 1 + sum(part.size for part in parts.values()), height)


def _place(mark: Any) -> Place:
    return Place(mark.line + 1, mark.column + 1)


def _place_at(text: str, index: int) -> Place:
    return Place(text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index))


def _how_far(error: SpecError) -> tuple[int, int]:
    """Where the reading ended: the grammar that got farther is the one that was meant."""
    last = error.problems[-1]
    return (last.line or 0, last.column or 0)


# ---- YAML ------------------------------------------------------------------------------------------------------------


def _read_yaml(text: str, builder: _Builder) -> Node:
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return builder.document(iter(yaml.parse(text, Loader=loader)))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = str(error.problem)
        if error.context and error.context_mark:
            what += f" {error.context} (line {error.context_mark.line + 1})"
        if "\t" in text and "cannot start any token" in what:
            what += "; YAML is indented with spaces, never with tabs"
        raise builder.refused(f"not readable as YAML: {what}", _place(mark) if mark else None) from None
    except yaml.reader.ReaderError as error:
        index = error.position if isinstance(error.position, int) else 0
        raise builder.refused(f"not readable as YAML: {error.reason}", _place_at(text, index)) from None
    except yaml.YAMLError as error:
        raise builder.refused(f"not readable as YAML: {error}") from None


# ---- JSON ------------------------------------------------------------------------------------------------------------


def _read_json(text: str, builder: _Builder) -> Node:
    """Not through YAML: tabs, ``\\/`` and surrogate pairs are JSON, and are not YAML."""
    try:
        # Numbers stay text: plain_scalar looks at their size first.
        json.loads(text, parse_int=str, parse_float=str, parse_constant=str)
    except json.JSONDecodeError as error:
        what = error.msg.replace("Expecting", "expected")
        raise builder.refused(f"not readable as JSON: {what}", Place(error.lineno, error.colno)) from None
    except RecursionError:
        raise builder.refused(f"nested more than {MAX_DEPTH} levels deep") from None
    return builder.document(_json_events(text), _json_word)


def _json_events(text: str) -> Iterator[Any]:
    """The events that a YAML parser would have for a text that is JSON."""
    yield yaml.DocumentStartEvent()
    end_of_list, end_of_mapping = yaml.SequenceEndEvent(), yaml.MappingEndEvent()
    line = begin = seen = 0  # of the line: its number, and the index of its first character
    for token in _JSON_TOKEN.finditer(text):
        start, word = token.start(), token[0]
        if breaks := text.count("\n", seen, start):
            line, begin = line + breaks, text.rfind("\n", seen, start) + 1
        seen, mark = token.end(), yaml.Mark("", start, line, start - begin, "", 0)
        if word[0] == '"':
            value = json.loads(word) if "\\" in word else word[1:-1]
            yield yaml.ScalarEvent(None, None, (False, True), value, mark)
        elif word == "[":
            yield yaml.SequenceStartEvent(None, None, True, mark)
        elif word == "{":
            yield yaml.MappingStartEvent(None, None, True, mark)
        elif word == "]":
            yield end_of_list
        elif word == "}":
            yield end_of_mapping
        else:
            yield yaml.ScalarEvent(None, None, (True, False), word, mark)


def _json_word(word: str) -> Any:
    if word in ("NaN", "Infinity", "-Infinity"):
        raise ValueError(f"{word} is not JSON; put it in quotes if it is text")
    return plain_scalar(word)
