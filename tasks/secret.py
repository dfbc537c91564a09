"""``${env:NAME}`` in parameters and conf: resolved in the worker alone, and taken out of all it says.

A secret never stands in a spec, a record, a marker, a report or a log. Resolving happens last and stays in memory;
whatever leaves the runner goes through ``Secrets.clean``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tasks.errors import Unrecoverable

_REFERENCE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
# Shorter values would blot out ordinary text; they are no secrets.
_SHORTEST = 4


class Secrets:
    """Resolves references against one environment, and remembers what it gave out."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._given: dict[str, str] = {}

    def resolve(self, value: Any) -> Any:
        """``value`` with each ``${env:NAME}`` in its strings replaced, at any depth of lists and objects.

        Raises:
            Unrecoverable: the worker has no such variable. Names the variable; there is no value to name.
        """
        if isinstance(value, str):
            return _REFERENCE.sub(lambda match: self._look_up(match[1]), value)
        if isinstance(value, list | tuple):
            return [self.resolve(part) for part in value]
        if isinstance(value, dict):
            return {key: self.resolve(part) for key, part in value.items()}
        return value

    def clean(self, text: str) -> str:
        """``text`` with every value that was given out replaced by its reference."""
        for secret in sorted(self._given, key=len, reverse=True):
            text = text.replace(secret, f"${{env:{self._given[secret]}}}")
        return text

    def clean_all(self, value: Any) -> Any:
        """``clean`` for every string in a JSON value."""
        if isinstance(value, str):
            return self.clean(value)
        if isinstance(value, list):
            return [self.clean_all(part) for part in value]
        if isinstance(value, dict):
            return {self.clean(key): self.clean_all(part) for key, part in value.items()}
        return value

    def _look_up(self, name: str) -> str:
        try:
            value = self._environ[name]
        except KeyError:
            raise Unrecoverable(
                f"the environment variable {name} is not set on this worker, and ${{env:{name}}} asks for it; "
                "set it where the worker starts"
            ) from None
        if len(value) >= _SHORTEST:
            self._given[value] = name
        return value
