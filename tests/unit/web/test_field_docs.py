"""Each field of an answer has a description in OpenAPI, from the docstring of its type."""

from __future__ import annotations

from scripts import http_api_page
from unstuck.web.api.field_docs import document_fields


def test_each_field_of_api_answers_and_requests_has_a_description() -> None:
    schemas = http_api_page.document()["components"]["schemas"]
    fields = [
        (name, field, schema)
        for name, each in schemas.items()
        for field, schema in each.get("properties", {}).items()
    ]
    assert [(name, field) for name, field, schema in fields if not schema.get("description")] == []
    assert len(fields) > 400


def test_field_descriptions_are_complete_and_not_repeated_in_types() -> None:
    schema = {
        "description": "A pool.\n\nAttributes:\n    name: of the\n        ``pool``.\n    slots: 1.",
        "properties": {"name": {}, "slots": {"description": "Its own."}},
    }
    document_fields({"Pool": schema})
    assert schema == {
        "description": "A pool.",
        "properties": {
            "name": {"description": "Of the `pool`."},
            "slots": {"description": "Its own."},
        },
    }
