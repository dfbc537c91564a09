"""The style sheet of the page against the signs and colours of statuses, which the terminal and the
pictures share.
"""

from __future__ import annotations

import re

from unstuck.graph.status_marks import MARKS, css_class
from unstuck.web.rendering import HERE, status

STYLE = (HERE / "static" / "style.css").read_text()


def test_each_status_has_the_color_of_its_mark_and_no_other_word_has_one() -> None:
    coloured = {
        name: colour
        for names, colour in re.findall(
            r"^((?:\.s-[\w-]+(?:, )?)+) \{ color: var\(--(\w+)\); \}$", STYLE, re.MULTILINE
        )
        for name in names.split(", ")
    }
    assert coloured == {f".{css_class(name)}": one.colour for name, one in MARKS.items()}
    assert all(STYLE.count(f"--{one.colour}: ") == 2 for one in MARKS.values()), (
        "on light and on dark ground"
    )


def test_a_status_has_a_symbol_beside_its_name() -> None:
    assert str(status("FAILED")) == '<span class="status s-failed" data-sign="✗">FAILED</span>'
    assert str(status("<b>")) == '<span class="status s-&lt;b&gt;" data-sign="·">&lt;b&gt;</span>'
