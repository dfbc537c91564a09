"""Reading the text of a spec: every value keeps its place, nothing is guessed, nothing small
becomes large.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.jobs.specs import told
from unstuck.coordinator.spec.problems import SpecError, SpecProblem
from unstuck.coordinator.spec.text import MAX_BYTES, plain_scalar, read_bytes, read_text


def data(text: str, source: str = "s.yaml") -> Any:
    reading = read_text(text, source)
    assert reading.problems == ()
    return reading.root.value


def refusal(text: str, source: str = "s.yaml") -> str:
    with pytest.raises(SpecError) as caught:
        read_text(text, source)
    return str(caught.value)


def notes(text: str, source: str = "s.yaml") -> str:
    return "\n".join(str(problem) for problem in read_text(text, source).problems)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("2013", 2013),
        ("-7", -7),
        ("+7", 7),
        ("0", 0),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("2013-01-01", "2013-01-01"),
        ("2013-01-01 10:00:00", "2013-01-01 10:00:00"),
        ("12:30", "12:30"),
        ("1h30m", "1h30m"),
        ("y", "y"),
        ("n", "n"),
        ("x", "x"),
        ("1.2.3", "1.2.3"),
    ],
)
def test_words_mean_the_same_as_in_json_and_dates_are_text(word: str, value: object) -> None:
    assert plain_scalar(word) == value
    assert type(plain_scalar(word)) is type(value)
    assert data(f"a: {word}") == {"a": value}


@pytest.mark.parametrize(
    "word",
    [
        "no",
        "NO",
        "off",
        "yes",
        "On",
        "010",
        "-007",
        "1_000",
        "0x1F",
        "0o17",
        "0b11",
        ".inf",
        "-.INF",
        ".nan",
    ],
)
def test_an_ambiguous_yaml_word_is_refused_with_its_place_and_advice(
    word: str,
) -> None:
    told = notes(f"params:\n  country: {word}")
    assert told.startswith(f"s.yaml:2:12: params.country: {word} ")
    assert "quotes" in told or f'"{word}"' in told
    assert data(f'params: {{country: "{word}"}}') == {"params": {"country": word}}


@pytest.mark.parametrize("word", [str(2**63), str(-(2**63) - 1), "9" * 5000, "1e999", "-1e999"])
def test_a_number_beyond_64_bits_is_refused(word: str) -> None:
    assert "s.yaml:1:4: a: the number" in notes(f"a: {word}")
    assert "s.json:1:7: a: the number" in notes(f'{{"a": {word}}}', "s.json")


def test_the_largest_64_bit_numbers_are_accepted() -> None:
    assert data(f"[{2**63 - 1}, {-(2**63)}]") == [2**63 - 1, -(2**63)]


def test_keys_are_always_text() -> None:
    assert data("on: 1\n2: 3\ntrue: 4\nno: 5") == {"on": 1, "2": 3, "true": 4, "no": 5}


def test_a_duplicate_key_is_reported_with_both_lines() -> None:
    assert notes("a:\n  b: 1\n  c: 2\n  b: 3") == (
        "s.yaml:4:3: a.b: 'b' is written twice in one mapping, first on line 2; keep one"
    )
    assert notes('{"a": 1,\n "a": 2}', "s.json").startswith(
        "s.json:2:2: a: 'a' is written twice in one mapping, first on line 1"
    )


def test_merged_mappings_are_overridden_by_written_keys() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {<<: [*a, *b], x: 3}\nd:\n  y: 4\n  <<: *a"
    assert data(text) == {
        "a": {"x": 1, "y": 1},
        "b": {"y": 2, "z": 2},
        "c": {"x": 3, "y": 1, "z": 2},
        "d": {"y": 4, "x": 1},
    }
    assert "<< takes a mapping or a list of mappings, not the number 3" in notes("a: {<<: 3}")


def test_an_alias_bomb_is_refused_before_it_is_expanded() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    assert "more than 500,000 values, with the value of an alias counted each time" in refusal(
        "\n".join(lines)
    )


def test_merged_mappings_do_not_multiply() -> None:
    lines = ["a0: &a0 {x: 1, y: 2}"]
    lines += [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}" for i in range(1, 30)]
    assert data("\n".join(lines))["a29"] == {"x": 1, "y": 2}


def test_a_chain_of_aliases_respects_the_nesting_limit() -> None:
    lines = ["a0: &a0 [x]", *(f"a{i}: &a{i} [[[[*a{i - 1}]]]]" for i in range(1, 2000))]
    assert "nested more than 40 levels deep" in refusal("\n".join(lines))


@pytest.mark.parametrize("text", ["[" * 100_000, "- " * 100_000, '{"a":' * 100_000])
def test_deep_nesting_is_refused_without_a_crash(text: str) -> None:
    assert "nested more than 40 levels deep" in refusal(text)


def test_deep_json_is_refused_without_a_crash() -> None:
    assert "nested more than 40 levels deep" in refusal("[" * 50 + "]" * 50, "s.json")
    assert "nested more than 40 levels deep" in refusal("[" * 200_000, "s.json")


def test_self_referencing_and_undefined_aliases_are_refused() -> None:
    assert (
        refusal("a: &x [*x]")
        == "s.yaml:1:8: a[0]: the alias *x has no anchor &x whose value ends above it"
    )
    assert (
        refusal("a: *x") == "s.yaml:1:4: a: the alias *x has no anchor &x whose value ends above it"
    )


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system", "!!binary", "!!set", "!!int", "!mine"]
)
def test_no_yaml_tag_constructs_an_object(tag: str) -> None:
    assert f"the tag {tag} is not read here" in notes(f"a: {tag} 'x'")


def test_text_can_be_tagged_as_text() -> None:
    assert data("a: !!str 010") == {"a": "010"}


@pytest.mark.parametrize("text", ["", " \n\t\n", "# only a comment\n", "---\n", "~", "\ufeff"])
def test_an_empty_text_reports_the_expected_content(text: str) -> None:
    assert refusal(text) == "s.yaml: the spec is empty; it needs at least name: and groups:"


def test_a_second_document_is_refused_at_its_start() -> None:
    assert (
        refusal("a: 1\n---\nb: 2")
        == "s.yaml:2:1: a second document begins here; one file holds one spec"
    )


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: [1", "s.yaml:2:1: "),
        ("a:\n\tb: 1", "s.yaml:2:1: "),
        ("a: b: c", "s.yaml:1:5: "),
        ("a: \x00", "s.yaml:1:4: "),
    ],
)
def test_invalid_yaml_is_reported_with_its_place(text: str, place: str) -> None:
    told = refusal(text + ("\n" if text == "a: [1" else ""))
    assert told.startswith(f"{place}not readable as YAML: ")
    assert ("not with tabs" in told) == ("\t" in text)


def test_invalid_json_is_reported_with_its_place_and_not_parsed_as_yaml() -> None:
    assert (
        refusal('{"a": 1,\n "b": }', "s.JSON") == "s.JSON:2:7: not readable as JSON: expected value"
    )
    assert "not readable as JSON" in refusal("a: 1", "s.json")
    assert "NaN is not JSON" in notes('{"a": NaN}', "s.json")


def test_json_is_parsed_as_json_even_if_invalid_in_yaml() -> None:
    value = {"a": ["/", "😀", 1e5, -1, None, True, {}, []], "b\t": {"c": "no"}}
    text = json.dumps(value, indent="\t").replace('"/"', '"\\/"')
    assert data(text) == value
    assert data(text, "s.json") == value


def test_a_yaml_mapping_in_braces_is_parsed_as_yaml() -> None:
    assert data("{a: 1, b: [x, y]} # yes") == {"a": 1, "b": ["x", "y"]}


def test_a_lone_surrogate_is_refused() -> None:
    assert "half of a surrogate pair" in refusal("a: '\ud800'")
    rest = ', "groups": [{"name": "a", "steps": [{"python": "m:f"}]}]}'
    for written, place in [
        ('{"name": "\\ud800"', "s.json:1:10: name: expected valid Unicode text, not "),
        ('{"name": "x", "\\ud800": 1', "s.json:1:1: expected valid Unicode text, not "),
        (
            '{"name": "x", "params": {"p": "\\ud800"}',
            "s.json:1:31: params.p: not valid Unicode text",
        ),
        (
            '{"name": "x", "params": {"p": {"\\ud800": 1}}',
            's.json:1:32: params.p["\\ud800"]: not valid Unicode text',
        ),
        (
            '{"name": "x", "defaults": {"conf": {"k": "\\ud800"}}',
            "s.json:1:42: defaults.conf.k: not valid Unicode",
        ),
    ]:
        (line,) = told(written + rest, "s.json")
        assert line.startswith(place)


def test_more_than_ten_megabytes_are_refused_before_parsing() -> None:
    assert refusal("[" + " " * MAX_BYTES) == "s.yaml: larger than 10 MB"
    assert refusal("é" * (MAX_BYTES // 2 + 1)) == "s.yaml: larger than 10 MB"
    with pytest.raises(SpecError, match="larger than 10 MB"):
        read_bytes(b"x" * (MAX_BYTES + 1), "s.yaml")


def test_encodings_other_than_utf8_are_refused_with_the_place() -> None:
    with pytest.raises(SpecError) as caught:
        read_bytes("a: 1\nbé: 2".encode("latin-1"), "s.yaml")
    assert str(caught.value) == "s.yaml:2:2: not UTF-8 text: byte 0xe9"
    with pytest.raises(SpecError, match="looks like UTF-16"):
        read_bytes("a: 1".encode("utf-16"), "s.yaml")


@pytest.mark.parametrize("source", ["s.yaml", "s.json"])
def test_reported_places_point_to_the_right_text(source: str) -> None:
    text = '{"a": [1,\n  {"b":\n  "x"}]}'
    reading = read_text(text, source)

    def place(*loc: str | int, on_key: bool = False) -> tuple[int | None, int | None]:
        problem = reading.located(SpecProblem("wrong", loc, on_key))
        return problem.line, problem.column

    assert place() == (1, 1)
    assert place("a") == (1, 7)
    assert place("a", on_key=True) == (1, 2)
    assert place("a", 1, "b") == (3, 3)
    assert place("a", 1, "b", on_key=True) == (2, 4)
    # Where nothing is written, the nearest place around it.
    assert place("a", 1, "missing") == (2, 3)
    assert place("a", 7) == (1, 7)
    assert place("nowhere", 3) == (1, 1)


def test_parsing_a_text_full_of_problems_terminates() -> None:
    told = refusal("{" + "a, " * 5000 + "}")
    assert "more problems follow" in told or "more problems" in told
    assert told.count("\n") == 50
