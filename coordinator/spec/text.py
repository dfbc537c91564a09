"""The text of a spec, YAML or JSON, read into plain values with their places.

Only what JSON can say is read: text, numbers, true, false, null, lists, and mappings with text keys. Where readers
of YAML 1.1 and 1.2 disagree about a word (``no``, ``010``, ``1_000``), it is refused instead of guessed, with the
advice to use quotes. Dates and clock times are text. No tag ever builds a Python object.

Imported only where a text is read: a coordinator is given specs as values and needs no parser.
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import yaml

from unstuck.coordinator.spec.problems import Loc, Problem, SpecError, describe, shorten
from unstuck.coordinator.spec.text_tree import MAX_DEPTH, Node, Place, Reading, Tree

MAX_BYTES = 10 * 1024 * 1024

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
_JSON_SPACE = re.compile(r"[ \t\n\r]*")


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
    tree = Tree(source)
    if len(text) > MAX_BYTES or len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        raise tree.refuse("larger than 10 MB")
    if half := _SURROGATE.search(text):
        place = Place(text.count("\n", 0, half.start()) + 1, half.start() - text.rfind("\n", 0, half.start()))
        raise tree.refuse("not valid Unicode: half of a surrogate pair", place)
    text = text.removeprefix("\ufeff")
    if not text.strip():
        raise tree.refuse("the spec is empty; it wants at least name: and groups:")
    if source.lower().endswith(".json"):
        root = _Json(text, tree).root()
    elif text.lstrip().startswith("{"):
        try:
            root = _Json(text, tree).root()
        except SpecError as as_json:
            tree = Tree(source)  # perhaps a YAML mapping in braces, or JSON with a comment
            try:
                root = _Yaml(text, tree).root()
            except SpecError as as_yaml:
                raise max(as_json, as_yaml, key=_how_far) from None
    else:
        root = _Yaml(text, tree).root()
    return Reading(source, root, tuple(tree.problems))


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


class _Yaml:
    """Builds the tree from the parser's events: one event at a time, so that the bounds hold before memory is spent."""

    def __init__(self, text: str, tree: Tree) -> None:
        self.text = text
        self.tree = tree
        self.anchors: dict[str, Node | None] = {}  # None while the anchored value is still being read

    def root(self) -> Node:
        loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            return self._documents(iter(yaml.parse(self.text, Loader=loader)))
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            what = str(error.problem)
            if error.context and error.context_mark:
                what += f" {error.context} (line {error.context_mark.line + 1})"
            if "\t" in self.text and "cannot start any token" in what:
                what += "; YAML is indented with spaces, never with tabs"
            raise self.tree.refuse(f"not readable as YAML: {what}", _place(mark) if mark else None) from None
        except yaml.reader.ReaderError as error:
            index = error.position if isinstance(error.position, int) else 0
            place = Place(self.text.count("\n", 0, index) + 1, index - self.text.rfind("\n", 0, index))
            raise self.tree.refuse(f"not readable as YAML: {error.reason}", place) from None
        except yaml.YAMLError as error:
            raise self.tree.refuse(f"not readable as YAML: {error}") from None

    def _documents(self, events: Iterator[Any]) -> Node:
        root: Node | None = None
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise self.tree.refuse(
                        "a second document begins here; one file holds one spec", _place(event.start_mark)
                    )
                root = self._value(next(events), events, ())
        if root is None or root.value is None:
            raise self.tree.refuse("the spec is empty; it wants at least name: and groups:")
        return root

    def _value(self, event: Any, events: Iterator[Any], loc: Loc) -> Node:
        place = _place(event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, place, loc)
        self.tree.count(place, loc)
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        if isinstance(event, yaml.SequenceStartEvent):
            self._check_tag(event, place, loc, "tag:yaml.org,2002:seq")
            items: list[Node] = []
            while not isinstance(item := next(events), yaml.SequenceEndEvent):
                items.append(self._value(item, events, (*loc, len(items))))
            node = Node.branch(items, place)
        elif isinstance(event, yaml.MappingStartEvent):
            self._check_tag(event, place, loc, "tag:yaml.org,2002:map")
            node = self._mapping(events, place, loc)
        else:
            node = Node(self._scalar(event, place, loc), place)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def _mapping(self, events: Iterator[Any], place: Place, loc: Loc) -> Node:
        values: dict[str, Node] = {}
        keys: dict[str, Place] = {}
        merged: list[Node] = []
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            at = _place(event.start_mark)
            if not isinstance(event, yaml.ScalarEvent):
                raise self.tree.refuse("a key must be text, not a list, a mapping or an alias", at, loc)
            if event.value == "<<" and event.implicit[0]:
                merged.append(self._value(next(events), events, (*loc, "<<")))
                continue
            self._check_tag(event, at, loc, *_TEXT_TAGS)
            key = str(event.value)  # a key is text whatever it looks like, so `on:` and `1:` surprise nobody
            self.tree.take_key(key, at, keys, loc)
            value = self._value(next(events), events, (*loc, key))
            values.setdefault(key, value)
        # What is written here wins over what `<<` brings in; of several, the first wins.
        for base in merged:
            for one in base.value if isinstance(base.value, list) else [base]:
                if isinstance(one.value, dict):
                    for key, value in one.value.items():
                        values.setdefault(key, value)
                else:
                    self.tree.note(
                        f"<< takes a mapping or a list of mappings, not {describe(one.value)}", base.place, loc
                    )
        return Node.branch(values, place, keys)

    def _scalar(self, event: Any, place: Place, loc: Loc) -> Any:
        self._check_tag(event, place, loc, *_TEXT_TAGS)
        text = str(event.value)
        if event.tag is not None or not event.implicit[0]:
            return text
        try:
            return plain_scalar(text)
        except ValueError as error:
            self.tree.note(str(error), place, loc)
            return text

    def _alias(self, event: Any, place: Place, loc: Loc) -> Node:
        if event.anchor not in self.anchors:
            raise self.tree.refuse(f"the alias *{event.anchor} has no anchor &{event.anchor} above it", place, loc)
        node = self.anchors[event.anchor]
        if node is None:
            raise self.tree.refuse(f"the alias *{event.anchor} stands inside what it stands for", place, loc)
        self.tree.count(place, loc, node.size, node.height)
        return replace(node, place=place)

    def _check_tag(self, event: Any, place: Place, loc: Loc, *known: str | None) -> None:
        if event.tag is not None and event.tag not in known:
            tag = str(event.tag).replace("tag:yaml.org,2002:", "!!")
            self.tree.note(f"the tag {shorten(tag, quote='')} is not read here; write the value without it", place, loc)


def _how_far(error: SpecError) -> tuple[int, int]:
    """Where the reading ended: the grammar that got farther is the one that was meant."""
    last = error.problems[-1]
    return (last.line or 0, last.column or 0)


def _place(mark: Any) -> Place:
    return Place(mark.line + 1, mark.column + 1)


class _Json:
    """Builds the tree from JSON. Not through YAML: tabs, ``\\/`` and surrogate pairs are JSON, and are not YAML."""

    def __init__(self, text: str, tree: Tree) -> None:
        self.text = text
        self.tree = tree
        self.lines = [0, *(found.end() for found in re.finditer("\n", text))]
        # Numbers stay text until plain_scalar has looked at their size.
        self.decoder = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)

    def root(self) -> Node:
        try:
            self.decoder.decode(self.text)
        except json.JSONDecodeError as error:
            what = error.msg.replace("Expecting", "expected")
            raise self.tree.refuse(f"not readable as JSON: {what}", Place(error.lineno, error.colno)) from None
        except RecursionError:
            raise self.tree.refuse(f"nested more than {MAX_DEPTH} levels deep") from None
        return self._value(self._skip(0), ())[0]

    def _skip(self, index: int) -> int:
        found = _JSON_SPACE.match(self.text, index)
        return found.end() if found else index

    def _place(self, index: int) -> Place:
        line = bisect.bisect_right(self.lines, index)
        return Place(line, index - self.lines[line - 1] + 1)

    def _value(self, index: int, loc: Loc) -> tuple[Node, int]:
        """The value that begins at ``index``, and where it ends. The syntax has been checked."""
        place = self._place(index)
        self.tree.count(place, loc)
        if self.text[index] == "[":
            items: list[Node] = []
            index = self._skip(index + 1)
            while self.text[index] != "]":
                item, index = self._value(self._skip(index + (self.text[index] == ",")), (*loc, len(items)))
                items.append(item)
                index = self._skip(index)
            return Node.branch(items, place), index + 1
        if self.text[index] == "{":
            return self._mapping(index, place, loc)
        value, end = self.decoder.raw_decode(self.text, index)
        if self.text[index] == '"':
            if _SURROGATE.search(value):
                self.tree.note("not valid Unicode: half of a surrogate pair", place, loc)
                value = ""
        elif isinstance(value, str):
            value = self._number(value, place, loc)
        return Node(value, place), end

    def _mapping(self, index: int, place: Place, loc: Loc) -> tuple[Node, int]:
        values: dict[str, Node] = {}
        keys: dict[str, Place] = {}
        index = self._skip(index + 1)
        while self.text[index] != "}":
            index = self._skip(index + (self.text[index] == ","))
            at = self._place(index)
            key, index = self.decoder.raw_decode(self.text, index)
            if _SURROGATE.search(key):
                self.tree.note("not valid Unicode: half of a surrogate pair", at, loc)
                key = _SURROGATE.sub("?", key)
            self.tree.take_key(key, at, keys, loc)
            value, index = self._value(self._skip(self._skip(index) + 1), (*loc, key))
            values.setdefault(key, value)
            index = self._skip(index)
        return Node.branch(values, place, keys), index + 1

    def _number(self, word: str, place: Place, loc: Loc) -> Any:
        try:
            if word in ("NaN", "Infinity", "-Infinity"):
                raise ValueError(f"{word} is not JSON; put it in quotes if it is text")
            return plain_scalar(word)
        except ValueError as error:
            self.tree.note(str(error), place, loc)
            return word
