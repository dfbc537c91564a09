"""Outputs that are tables: what does not fit together is an error of the spec."""

from __future__ import annotations

from typing import Any

import pytest

from unstuck import JobSpec, SpecError


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ({"mode": "merge", "keys": ["id"]}, "wants format: delta"),
        ({"mode": "merge", "format": "delta", "path": "/data/t"}, "wants keys:"),
        ({"format": "delta", "path": "/data/t", "keys": ["id"]}, "for mode: merge alone"),
        ({"format": "delta"}, "wants path:"),
        ({"path": "/data/t"}, "for format: delta or iceberg alone"),
        ({"format": "delta", "path": "data/t"}, "must be an absolute path"),
        ({"format": "delta", "path": "file:///"}, "names no table"),
        ({"format": "delta", "path": "//"}, "names no table"),
        ({"format": "delta", "path": "s3://"}, "names no table"),
        ({"format": "delta", "path": "s3://bucket"}, "names no table"),
        ({"format": "delta", "path": "s3://key:secret@bucket/t"}, "holds a user or a key"),
        ({"format": "delta", "path": "/data/../t"}, "must be an absolute path"),
        ({"format": "iceberg"}, "wants path:"),
        ({"format": "iceberg", "path": "/data/t"}, "expected CATALOG.NAMESPACE.TABLE"),
        ({"format": "iceberg", "path": "lake.flights"}, "expected CATALOG.NAMESPACE.TABLE"),
        ({"format": "iceberg", "path": "prod.lake.fl ights"}, "expected CATALOG.NAMESPACE.TABLE"),
    ],
)
def test_incompatible_table_options_are_refused(output: Any, words: str) -> None:
    steps = [{"name": "load", "steps": [{"python": "m:load", "output": "flights"}]}]
    with pytest.raises(SpecError, match=words):
        JobSpec.model_validate({"name": "nightly", "outputs": {"flights": output}, "groups": steps})


def test_two_outputs_with_one_table_are_refused() -> None:
    steps = [
        {
            "name": "load",
            "steps": [{"python": "m:a", "output": "a"}, {"python": "m:b", "output": "b"}],
        }
    ]
    table = {"format": "delta", "path": "/data/t"}
    outputs = {"a": table, "b": {**table, "path": "file:///data//t/"}}
    with pytest.raises(SpecError, match="the same table"):
        JobSpec.model_validate({"name": "nightly", "outputs": outputs, "groups": steps})
