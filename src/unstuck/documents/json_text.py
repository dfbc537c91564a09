"""The JSON of an answer, for the command line and the API."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Hashable
from dataclasses import is_dataclass
from functools import cache
from typing import Any, cast
from unicodedata import category

from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticSerializationError, to_json

# Other, format and separator characters that json.dumps leaves as they are.
_NOT_IN_JSON = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def plain(answer: Any) -> Any:
    """Return ``answer``, with public types in it, as plain values for `json_text`."""
    if isinstance(answer, BaseModel):
        # In Python's mode, since pydantic's own JSON refuses half of a surrogate pair.
        return answer.model_dump()
    if is_dataclass(answer):
        return _adapter(cast(Hashable, type(answer))).dump_python(answer)
    if isinstance(answer, list | tuple):
        return [plain(element) for element in answer]
    return answer


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


class _Escapes(dict[int, str]):
    """The form of each character in JSON, computed once."""

    def __missing__(self, code: int) -> str:
        shown = chr(code)
        if shown != "\n" and category(shown) in _NOT_IN_JSON:
            shown = json.dumps(shown)[1:-1]
        self[code] = shown
        return shown


_ESCAPES = _Escapes()


def json_text(answer: Any, indent: int | None = None) -> str:
    """Return ``answer`` as JSON.

    Characters that a terminal would obey are escaped; all others stay readable.
    """
    values = plain(answer)
    try:
        text = to_json(values, indent=indent, inf_nan_mode="constants").decode()
    except PydanticSerializationError:  # half of a surrogate pair, in an error of a step
        text = json.dumps(values, indent=indent, ensure_ascii=False)
    return text if text.isascii() and "\x7f" not in text else text.translate(_ESCAPES)


def plain_value(value: Any) -> Any:
    """Return a value of a row for JSON.

    Times are in ISO form, bytes in hexadecimal, and decimals are text.
    """
    if isinstance(value, dict):
        return {name: plain_value(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain_value(element) for element in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | None) else str(value)
