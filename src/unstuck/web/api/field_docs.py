"""Documents the fields of the schemas of OpenAPI, from the docstrings of the public types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from textwrap import dedent
from typing import Any

ATTRIBUTES = "\n\nAttributes:\n"


def document_fields(schemas: Mapping[str, dict[str, Any]]) -> None:
    """Move the ``Attributes`` of each description into the descriptions of the fields."""
    for schema in schemas.values():
        lead, _, attributes = schema.get("description", "").partition(ATTRIBUTES)
        if attributes:
            schema["description"] = lead
        texts = _texts(attributes)
        for name, field_schema in schema.get("properties", {}).items():
            text = field_schema.get("description") or texts.get(name, "")
            if text:
                field_schema["description"] = text.replace("``", "`")


def _texts(attributes: str) -> dict[str, str]:
    """Return the text of each attribute, as a sentence."""
    items = re.findall(r"^(\w+): (.*(?:\n .*)*)", dedent(attributes), re.MULTILINE)
    return {name: _sentence(" ".join(text.split())) for name, text in items}


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
