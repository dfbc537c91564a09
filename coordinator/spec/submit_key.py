"""The submit key: the word under which submitting the same spec again is the same job."""

from __future__ import annotations

import re

from unstuck.coordinator.errors import BadKey
from unstuck.coordinator.spec.problems import describe, shorten

MAX_KEY = 200  # characters
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def check_key(key: object) -> None:
    """Raises: BadKey."""
    if not isinstance(key, str):
        raise BadKey(f"the key: expected text, not {describe(key)}")
    if not 1 <= len(key) <= MAX_KEY:
        raise BadKey(f"the key {shorten(key)}: expected 1 to {MAX_KEY} characters, not {len(key):,}")
    if found := _UNSEEN.search(key):
        raise BadKey(f"the key {shorten(key)}: expected no control characters, not {found[0]!r}")
