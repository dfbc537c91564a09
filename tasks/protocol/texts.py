"""Stores a long text that stands in many places of a job once, with a reference in each place.

A reference is NUL and the digest of the text. A user's text that begins with NUL is stored apart as well, so nobody can
write a reference; ``claim.lua`` finds references by the same form.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
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
        """``value``, made of what JSON can say, with references in place of long texts. Keys stay as they are."""
        if isinstance(value, str):
            return self._reference(value) if len(value) > LONG or value.startswith(_MARK) else value
        if isinstance(value, dict):
            return {key: self.pack(child) for key, child in value.items()}
        if isinstance(value, list | tuple):
            return [self.pack(child) for child in value]
        return value

    def _reference(self, text: str) -> str:
        digest = self._digests.get(text)
        if digest is None:
            digest = self._digests[text] = hashlib.sha256(text.encode()).hexdigest()
        return _MARK + digest


def unpack(value: Any, texts: Mapping[str, str]) -> Any:
    """``value`` as it was before `Packer.pack`.

    Raises:
        KeyError: a text is missing.
    """
    if isinstance(value, str):
        return texts[value[1:]] if value.startswith(_MARK) else value
    if isinstance(value, dict):
        return {key: unpack(child, texts) for key, child in value.items()}
    if isinstance(value, list):
        return [unpack(child, texts) for child in value]
    return value
