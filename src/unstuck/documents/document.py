"""A JSON document that the command line and the API both answer, and its text; its fields are a
promise to programs.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import is_dataclass
from functools import cache
from typing import Annotated, Any, Self, cast
from unicodedata import category

from pydantic import BaseModel, BeforeValidator, ConfigDict, TypeAdapter, WithJsonSchema
from pydantic_core import PydanticSerializationError, to_json

from unstuck.tasks.errors import UnstuckError
from unstuck.tasks.json_fields import iso

# Other, format and separator characters that json.dumps leaves as they are.
_NOT_IN_JSON = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def _iso(at: Any) -> Any:
    return iso(at) if isinstance(at, int | float) else at or None


Time = Annotated[
    str | None,
    BeforeValidator(_iso),
    WithJsonSchema({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]}),
]
Word = Annotated[str | None, BeforeValidator(lambda text: text or None)]
"""Null where it is empty."""


class Document(BaseModel):
    """The fields of a document, in their order.

    A nested document is read from the attributes of its record.
    """

    # Most commands answer few of the documents, and a model takes about a millisecond to build.
    model_config = ConfigDict(from_attributes=True, defer_build=True)

    @classmethod
    def of(cls, record: Any, **overrides: Any) -> Self:
        """Return the document of ``record``: each field is the attribute of the same name.

        ``overrides``: values that replace attributes, or that ``record`` does not have.
        """
        return cls.model_validate(
            {
                name: overrides[name] if name in overrides else getattr(record, name)
                for name in cls.model_fields
            }
        )


class AnswerDocument(Document):
    """The answer of a command to one target. ``answer``: DONE, ALREADY, REFUSED, or the code of an
    error.
    """

    answer: str
    text: str

    @property
    def page(self) -> str:
        """The name of the target whose page shows what the command has changed; empty if it is
        removed.
        """
        return ""

    @classmethod
    def of_error(cls, target: str, error: UnstuckError) -> Self:
        """Return the answer for a target that could not be asked."""
        key = next(name for name in cls.model_fields if name not in AnswerDocument.model_fields)
        return cls.model_validate({key: target, "answer": error.code, "text": str(error)})


class OutcomeDocument(AnswerDocument):
    """The answer of a command of which there is no more to say."""

    name: str


def plain(answer: Any) -> Any:
    """``answer``, documents among it, as plain values for `json_text`."""
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
    """By character, how it stands in JSON; each is worked out once."""

    def __missing__(self, code: int) -> str:
        shown = chr(code)
        if shown != "\n" and category(shown) in _NOT_IN_JSON:
            shown = json.dumps(shown)[1:-1]
        self[code] = shown
        return shown


_ESCAPES = _Escapes()


def json_text(answer: Any, indent: int | None = None) -> str:
    """``answer`` as JSON in which characters that a terminal would obey are escaped, and others can
    be read.
    """
    values = plain(answer)
    try:
        text = to_json(values, indent=indent, inf_nan_mode="constants").decode()
    except PydanticSerializationError:  # half of a surrogate pair, in an error of a step
        text = json.dumps(values, indent=indent, ensure_ascii=False)
    return text if text.isascii() and "\x7f" not in text else text.translate(_ESCAPES)
