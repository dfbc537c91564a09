"""The codes of problems."""

from __future__ import annotations

from pydantic import TypeAdapter

from scripts import problems_page
from unstuck.coordinator.problems.problem import ProblemCode


def test_each_code_equals_its_name_and_has_a_sentence_in_the_reference() -> None:
    rows = problems_page.page().splitlines()
    assert [code.value for code in ProblemCode] == [*ProblemCode.__members__]
    for code in ProblemCode:
        assert f"| `{code.value}` | {code.subjects} | {code.meaning} |" in rows
        assert code.meaning.endswith(".")


def test_json_contains_the_value_of_a_code() -> None:
    adapter = TypeAdapter(ProblemCode)
    assert adapter.validate_python("LATE") is ProblemCode.LATE
    assert adapter.dump_json(ProblemCode.LATE) == b'"LATE"'
