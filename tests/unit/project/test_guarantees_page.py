"""The page of guarantees lists the claims of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import guarantees_page
from scripts.guarantees_page import Proof


def test_there_are_few_claims_of_one_short_sentence_each() -> None:
    claims = guarantees_page.claims()

    assert 0 < len(claims) <= guarantees_page.MAX_CLAIMS
    assert [claim for claim in claims if not claim.endswith(".") or ". " in claim] == []
    assert [claim for claim in claims if len(claim.split()) > 25 or "|" in claim] == []


def test_every_claim_is_listed_once_under_a_promise() -> None:
    claims, page = guarantees_page.claims(), guarantees_page.page()

    assert [claim for claim in claims if page.count(f"\n| {claim} |") != 1] == []
    assert {guarantees_page.promise_of(tests) for tests in claims.values()} == set(
        guarantees_page.PROMISES
    )


def test_every_promise_has_a_folder_of_tests() -> None:
    guarantees = Path(guarantees_page.ROOT, "tests", "guarantees")
    folders = {path.name for path in guarantees.iterdir() if path.is_dir() and path.name[0] != "_"}

    assert folders == {promise.folders[0].partition("/")[2] for promise in guarantees_page.PROMISES}


def test_every_claim_has_a_test_in_make_test() -> None:
    claims = guarantees_page.claims()

    assert [claim for claim, tests in claims.items() if all(test.variant for test in tests)] == []


@pytest.mark.parametrize(
    "text",
    [
        "pytestmark = pytest.mark.variant\n@pytest.mark.claim('A.')\ndef test_a(): ...\n",
        "@pytest.mark.variant\n@pytest.mark.claim('A.')\ndef test_a(): ...\n",
    ],
)
def test_tests_excluded_from_make_test_are_variants(tmp_path: Path, text: str) -> None:
    module = tmp_path / "tests" / "test_any.py"
    module.parent.mkdir()
    module.write_text(text)

    assert guarantees_page.claims(tmp_path) == {"A.": [Proof("tests/test_any.py", "test_a", True)]}


def test_claims_are_read_without_importing_tests(tmp_path: Path) -> None:
    module = tmp_path / "tests" / "test_any.py"
    module.parent.mkdir()
    module.write_text(
        'raise SystemExit\n@pytest.mark.claim("One." " Two")\n@other\ndef test_a(): ...\n'
    )

    assert guarantees_page.claims(tmp_path) == {"One. Two": [Proof("tests/test_any.py", "test_a")]}


@pytest.mark.parametrize("marker", ["claim", "claim()", "claim(SENTENCE)", 'claim("A.", "B.")'])
def test_a_marker_without_one_literal_sentence_is_refused(tmp_path: Path, marker: str) -> None:
    module = tmp_path / "tests" / "test_any.py"
    module.parent.mkdir()
    module.write_text(f"@pytest.mark.{marker}\ndef test_a(): ...\n")

    with pytest.raises(ValueError, match="a claim is one sentence"):
        guarantees_page.claims(tmp_path)


def test_a_claim_outside_every_promise_is_refused() -> None:
    with pytest.raises(ValueError, match="belongs to no promise"):
        guarantees_page.promise_of([Proof("tests/simulation/test_pass.py", "test_a")])
