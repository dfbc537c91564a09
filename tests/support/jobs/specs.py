"""Small job specs, and what is told of a wrong one: for the tests of the spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unstuck import JobSpec, SpecError

FLIGHTS = """\
name: flights
params: {year: 2013}
defaults: {retry: {max: 3, backoff: 10s, max_backoff: 300s}, timeout: 1h}
max_parallel: 4
on_failure: cancel_others
publish: [flights_by_carrier, monthly, report]
groups:
  - name: clean
    steps:
      - python: examples.flights:clean
  - name: by_carrier
    needs: [clean]
    steps:
      - sql: SELECT carrier, count(*) AS flights FROM clean WHERE year = :year GROUP BY carrier
        output: flights_by_carrier
  - name: by_month
    needs: [clean]
    for_each: {month: [1, 2, 3]}
    steps: [{python: examples.flights:month}]
  - name: report
    needs: [by_carrier, by_month]
    join: all_succeeded
    queue: heavy
    steps: [{python: examples.flights:report}]
"""
HEAD = "name: x\ngroups:\n"
A = "  - {name: a, steps: [{python: 'm:f'}]}\n"


def told(text: str, source: str = "s.yaml", folder: Path | None = None) -> list[str]:
    """The problems of ``text``, one line each."""
    with pytest.raises(SpecError) as caught:
        JobSpec.from_text(text, source, folder)
    return str(caught.value).splitlines()


def minimal(**fields: Any) -> dict[str, Any]:
    """The smallest spec there is, with ``fields``."""
    return {"name": "x", "groups": [{"name": "a", "steps": [{"python": "m:f"}]}], **fields}
