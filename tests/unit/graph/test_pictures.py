"""The pictures of jobs: well-formed, escaped, without style or script, and small however much they
stand for.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from unstuck.coordinator.model.past_attempts import AttemptInfo, attempts_of
from unstuck.coordinator.model.status import GroupState, Status
from unstuck.graph.job_graph import GraphGroup, job_graph, worst_of
from unstuck.graph.run_strip import StripRun, run_strip
from unstuck.graph.status_marks import MARKS, mark
from unstuck.graph.svg import Svg, on_paper
from unstuck.graph.timeline import Refusal, Row, timeline

ODD = [
    "<script>alert(1)</script>",
    "\"'&amp;]]>",
    "a\x00b\x1b[31mred\x1b[0m",
    "half \ud800 a pair",
    "\u202eevil",
    "名前" * 40,
    "",
]
NS = "{http://www.w3.org/2000/svg}"


def titles(svg: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(svg).iter(f"{NS}title")]


def everything(text: str) -> list[Svg]:
    """Each picture with ``text`` wherever a job may bring text."""
    attempt = AttemptInfo(1, 0.0, text, 1.0, text, 2.0, "FAILED", text, text)
    return [
        job_graph(
            [
                GraphGroup(text, (), text, note=text, href=f"#{text}"),
                GraphGroup("after", (text,), "FAILED", label=text),
            ],
            text,
        ),
        timeline([Row(text, [attempt], [Refusal(3.0, text)])], 4.0, text, lambda name: f"#{name}"),
        run_strip([StripRun(text, text, f"/jobs/{text}", 3.0)], text),
    ]


@pytest.mark.parametrize("text", ODD)
def test_a_picture_is_valid_xml_for_any_job_name(text: str) -> None:
    for drawn in everything(text):
        for picture in (drawn, on_paper(drawn)):
            root = ElementTree.fromstring(picture)
            assert {one.tag.removeprefix(NS) for one in root.iter()} <= {
                "svg", "title", "g", "a", "rect", "text", "tspan", "path", "circle",
            }  # fmt: skip
            assert re.findall(r"[\x00-\x08\x1b\ud800\u202e]", picture) == []


def test_a_picture_complies_with_a_strict_content_security_policy() -> None:
    for drawn in everything("name"):
        assert re.findall(r"style=|<style|<script| on[a-z]+=|url\(", drawn) == []


def test_every_status_has_a_symbol_unique_in_its_kind() -> None:
    for kind in (GroupState, Status):
        signs = [mark(status).symbol for status in kind]
        assert set(kind) <= set(MARKS)
        calm = {
            Status.PAUSING,
            Status.STOPPING,
            Status.CANCELING,
        }  # on the way to something: one sign
        assert len(set(signs)) == len(signs) - (len(calm) - 1 if kind is Status else 0)


def test_a_fork_of_any_size_is_one_box_with_counts_of_its_members() -> None:
    census = {"SUCCEEDED": 4990, "FAILED": 2, "RUNNING": 8}
    drawn = job_graph([GraphGroup("by_region", (), worst_of(census), True, census)], "job")
    assert drawn.count('class="box"') == 1
    assert titles(drawn)[1] == "by_region: 2 failed, 8 running, 4,990 succeeded"


def test_an_unexpanded_fork_is_an_ordinary_box() -> None:
    drawn = job_graph([GraphGroup("dynamic", (), "WAITING", True, {})], "job")
    assert titles(drawn)[1:] == ["dynamic: waiting"]


def test_a_long_name_is_truncated_and_complete_in_the_title() -> None:
    name = "a_group_with_a_name_" * 3
    drawn = job_graph([GraphGroup(name, (), "RUNNING")], "job")
    (shown,) = [
        one
        for one in ElementTree.fromstring(drawn).iter(f"{NS}text")
        if (one[:] and one[0].tail) or ""
    ]
    assert (shown[0].tail or "").endswith("…")
    assert titles(drawn)[1].startswith(name)


def test_a_click_on_a_group_opens_the_link_of_the_caller() -> None:
    drawn = job_graph([GraphGroup("orders", href="#group-orders")], "job")
    assert 'href="#group-orders"' in drawn
    assert 'role="group"' in drawn, "a reader finds no link within an image"


@pytest.mark.parametrize(
    ("census", "state"),
    [
        ({"SUCCEEDED": 9, "FAILED": 1}, "FAILED"),
        ({"SUCCEEDED": 9, "RUNNING": 1}, "RUNNING"),
        ({"SUCCEEDED": 9, "SKIPPED": 1}, "SUCCEEDED"),
        ({"SKIPPED": 2}, "SKIPPED"),
        ({"SUCCEEDED": 1, "WAITING": 3}, "RUNNING"),
        ({"WAITING": 3}, "WAITING"),
    ],
)
def test_a_fork_shows_its_most_urgent_member(census: dict[str, int], state: str) -> None:
    assert worst_of(census) == state


def test_the_timeline_shows_queued_running_lost_and_refused_attempts() -> None:
    events = [
        {"kind": "QUEUED", "group": "a", "epoch": 1, "at": 0.0, "queue": "q"},
        {"kind": "RUNNING", "group": "a", "epoch": 1, "at": 2.0, "worker": "host:7"},
        {
            "kind": "BACKOFF",
            "group": "a",
            "epoch": 1,
            "at": 5.0,
            "code": "LEASE_LAPSED",
            "text": "not heard of",
            "lost": True,
        },
        {"kind": "QUEUED", "group": "a", "epoch": 2, "at": 6.0},
        {"kind": "RUNNING", "group": "a", "epoch": 2, "at": 6.0, "worker": "host:8"},
    ]
    drawn = timeline(
        [Row("a", list(attempts_of(events)), [Refusal(7.0, "attempt 1 came too late")])],
        10.0,
        "attempts",
    )
    assert titles(drawn)[1:] == [
        "a",
        "attempt 1 queued for 2.0s",
        "attempt 1 lost, 3.0s on host:7: not heard of",
        "attempt 2 running, 4.0s on host:8",
        "attempt 1 came too late",
    ]
    assert "stroke-dasharray" in drawn, "a lost attempt is no plain bar"


def test_the_timeline_of_a_large_fork_stays_small() -> None:
    many = [
        AttemptInfo(1, n / 10, "q", n / 10 + 1, "h", n / 10 + 30, "SUCCEEDED") for n in range(5000)
    ]
    failed = [AttemptInfo(1, 100.0, "q", 101.0, "h", 130.0, "FAILED", "X", "boom")]
    drawn = timeline([Row("by_region", many + failed)], 600.0, "attempts")
    assert len(drawn) < 6000
    assert "5,000 attempts succeeded" in titles(drawn)
    assert "attempt 1 failed, 29s on h: boom" in titles(drawn)


def test_if_rows_do_not_fit_problem_rows_are_drawn() -> None:
    rows = [
        Row(f"g{n}", [AttemptInfo(1, n, "q", n, "h", n + 1, "FAILED" if n == 70 else "SUCCEEDED")])
        for n in range(100)
    ]
    drawn = timeline(rows, 200.0, "attempts", most=10)
    assert "g70" in titles(drawn)
    assert "… 90 more groups" in drawn


def test_a_strip_has_a_bar_with_details_for_each_run() -> None:
    drawn = run_strip(
        [
            StripRun("FINISHED", "on Monday", "/jobs/1", 10.0),
            StripRun("FAILED", "on Tuesday", "/jobs/2"),
        ],
        "runs",
    )
    assert titles(drawn) == ["runs", "on Monday", "on Tuesday"]
    assert 'href="/jobs/2"' in drawn
    assert ElementTree.fromstring(run_strip([], "runs")) is not None
