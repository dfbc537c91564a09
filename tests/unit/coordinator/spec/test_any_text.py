"""Any text at all is read or refused with a SpecError, and nothing else ever comes out of the
reader.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.jobs.specs import FLIGHTS
from unstuck.coordinator.spec.model import JobSpec, SpecError
from unstuck.tasks.spec.group import GroupSpec


def refuses_or_reads(text: str, source: str) -> None:
    """Anything but a SpecError, or a spec that stores and reads back, fails the test."""
    try:
        spec = JobSpec.from_text(text, source)
    except SpecError as error:
        told = str(error)
    else:
        again = JobSpec.from_text(spec.to_json(), "s.json")
        assert again == spec
        assert again.fingerprint == spec.fingerprint
        return
    assert told.startswith(source)


SOURCES = st.sampled_from(["s.yaml", "s.json", "<text>"])
TOKENS = [
    "- ",
    "? ",
    ": ",
    "[",
    "]",
    "{",
    "}",
    ", ",
    "\n",
    "\n  ",
    "\t",
    "&a ",
    "*a ",
    "<<: ",
    "!!set ",
    "!x ",
    "'",
    '"',
]
TOKENS += [
    "#",
    "|\n",
    ">\n",
    "%YAML 1.1\n",
    "---\n",
    "...\n",
    "\ufeff",
    "\x85",
    "\u2028",
    "\ud800",
    "name",
    "groups",
    "a",
]
TOKENS += [
    "steps",
    "needs",
    "for_each",
    "from",
    "join",
    "at_least",
    "params",
    "python",
    "m:f",
    "1",
    "no",
    "~",
    "1e999",
]
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["a", "m:f", "a.c"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *GroupSpec.model_fields,
                    *JobSpec.model_fields,
                    "python",
                    "sql",
                    "from",
                    "rule",
                    "at_least",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.text() | st.lists(st.sampled_from(TOKENS)).map("".join), SOURCES)
@settings(max_examples=500, deadline=None)
def test_any_text_is_parsed_or_refused_with_a_spec_error(text: str, source: str) -> None:
    refuses_or_reads(text, source)


@given(
    st.integers(0, len(FLIGHTS)),
    st.integers(0, 20),
    st.lists(st.sampled_from(TOKENS), max_size=3).map("".join),
)
@settings(max_examples=300, deadline=None)
def test_a_corrupted_spec_is_parsed_or_refused_with_a_spec_error(
    at: int, length: int, new: str
) -> None:
    refuses_or_reads(FLIGHTS[:at] + new + FLIGHTS[at + length :], "s.yaml")


@given(
    st.fixed_dictionaries(
        {"name": st.just("x"), "groups": VALUES | st.lists(st.just({"name": "a"}) | VALUES)}
    )
    | st.dictionaries(st.sampled_from(list(JobSpec.model_fields)), VALUES)
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_json_value_is_parsed_or_refused_with_a_spec_error(value: Any) -> None:
    refuses_or_reads(json.dumps(value), "s.json")
