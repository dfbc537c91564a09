"""Stores a long text that stands in many places of a job once, with a reference in each place.

A reference is NUL and the digest of the text. A user's text that begins with NUL is stored apart as
well, so nobody can write a reference; ``take.lua`` finds references by the same form.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

LONG = 1000  # characters; a longer text is stored apart
FIELD = "text:"  # before the digest: the field of the job's hash that holds the text
_MARK = "\0"


class Packer:
    """Puts references in place of long texts, and keeps the texts."""

    def __init__(self) -> None:
        self._digests: dict[str, str] = {}

    @property
    def texts(self) -> dict[str, str]:
        """The texts that were replaced, by digest."""
        return {digest: text for text, digest in self._digests.items()}

    def pack(self, value: Any) -> Any:
        """``value``, made of what JSON can say, with references in place of long texts.

        Keys stay as they are.
        """
        return map_texts(value, self._reference)

    def _reference(self, text: str) -> str:
        if len(text) <= LONG and not text.startswith(_MARK):
            return text
        digest = self._digests.get(text)
        if digest is None:
            digest = self._digests[text] = hashlib.sha256(text.encode()).hexdigest()
        return _MARK + digest


def unpack(value: Any, texts: Mapping[str, str]) -> Any:
    """``value`` as it was before `Packer.pack`. Raises: KeyError: a text is missing."""
    return map_texts(value, lambda text: texts[text[1:]] if text.startswith(_MARK) else text)


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """``value``, made of what JSON can say, with every text but the keys of mappings changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: map_texts(child, change) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [map_texts(child, change) for child in value]
    return value


def texts_in(value: Any) -> Iterator[str]:
    """Every text in ``value``, made of what JSON can say; the keys of mappings too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, child in value.items():
            yield key
            yield from texts_in(child)
    elif isinstance(value, list | tuple):
        for child in value:
            yield from texts_in(child)
