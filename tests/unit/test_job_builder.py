"""A job in Python compiles to the spec of a YAML file; what is wrong is refused on the line that
says it.
"""

from __future__ import annotations

import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from unstuck import Group, Job, JobSpec, Output, Retry, SpecError, Step
from unstuck.job_builder import load_job

YAML = """\
name: sales
publish: [total]
params: {day: {type: date, required: true}, limit: 10}
timeout: 1h
outputs: {total: {mode: append}}
groups:
  - name: orders
    description: Read the orders of a day.
    spark: false
    retry: {max: 2}
    steps: [{python: "MODULE:orders", output: clean}]
  - name: regions
    needs: [orders]
    for_each: {region: [0, 1, 2]}
    steps: [{python: "MODULE:by_region", output: by_region}]
  - name: total
    needs: [regions, orders]
    steps: [{sql: "SELECT count(*) AS n FROM clean WHERE id < :limit", output: total}]
  - name: after
    needs: [total]
    steps: [{python: "MODULE:orders"}, {python: "MODULE:by_region", params: {region: 1}}]
  - {name: all_in, needs: [after, regions], join: all_done}
"""

job = Job(
    "sales",
    params={"day": date, "limit": 10},
    timeout="1h",
    publish=["total"],
    outputs={"total": Output(mode="append")},
)


@job.group(output="clean", spark=False, retry=Retry(max=2))
def orders(spark: Any, ctx: Any, day: str) -> Any:
    """Read the orders of a day.

    They come as text.
    """
    return spark, ctx, day


@job.group("regions", needs=orders, for_each={"region": range(3)}, output="by_region")
def by_region(spark: Any, ctx: Any, *, region: int, limit: int, zone: str = "UTC") -> Any:
    return spark, ctx, region, limit, zone


job.sql(
    "total",
    "SELECT count(*) AS n FROM clean WHERE id < :limit",
    needs=["by_region", orders],
    output="total",
)
job.add(
    Group(
        name="after",
        needs=("total",),
        steps=(
            Step(python=f"{__name__}:orders"),
            Step(python=f"{__name__}:by_region", params={"region": 1}),
        ),
    )
)
job.add({"name": "all_in", "needs": ["after", by_region], "join": "all_done"})


def test_a_python_job_equals_the_spec_of_a_file() -> None:
    assert job.spec().dumped() == JobSpec.from_text(YAML.replace("MODULE", __name__)).dumped()
    assert job.spec({"day": date(2026, 1, 2)}).values["day"] == "2026-01-02"


def test_a_decorated_function_stays_an_ordinary_function() -> None:
    assert orders("s", "c", "d") == ("s", "c", "d")


def test_submit_values_are_required_as_for_a_file() -> None:
    with pytest.raises(SpecError, match="day: a value is required"):
        job.spec({})


def step(spark: Any, ctx: Any) -> None: ...


def needs_day(spark: Any, ctx: Any, day: str) -> None: ...


def only_spark(spark: Any) -> None: ...


def refusal(wrong: Any) -> str:
    """What the job says that ``wrong`` is given, without its place, which is a line of this
    file.
    """
    one = Job("one", params={"dya": date})
    one.group(output="made")(step)
    with pytest.raises(SpecError) as raised:
        wrong(one)
    source, line, text = str(raised.value).split(":", 2)
    assert (source, int(line) > 0) == (__file__, True)
    assert len(one.spec().groups) == 1, "what was refused is no part of the job"
    return text.strip()


WRONG = {
    "needs 'stpe': no group and no output above has this name; did you mean 'step'?": (
        lambda one: one.group(needs="stpe")(only_spark)
    ),
    "needs needs_day: this function is no group of job 'one'": lambda one: one.group(
        needs=[needs_day]
    )(only_spark),
    "no parameter 'day' of the job or the group; did you mean 'dya'?": lambda one: one.group()(
        needs_day
    ),
    "only_spark must take spark and ctx first: def only_spark(spark, ctx, …)": lambda one: (
        one.group()(only_spark)
    ),
    "there is a group 'step' already": lambda one: one.group()(step),
    "groups[1].retri: unknown field 'retri'; did you mean 'retry'?": lambda one: one.sql(
        "a", "SELECT 1", retri=1
    ),
    "groups[1].retry.maxx: unknown field 'maxx'; did you mean 'max'?": (
        lambda one: one.sql("a", "SELECT 1", retry={"maxx": 1})
    ),
    "the group 'step' has the output 'made' already": lambda one: one.sql(
        "a", "SELECT 1", output="made"
    ),
    "write @one.group() with parentheses": lambda one: one.group(step),
    "groups[1]: 'name' is missing": lambda one: one.add({"steps": []}),
}


@pytest.mark.parametrize(("words", "wrong"), WRONG.items(), ids=range(len(WRONG)))
def test_an_error_is_raised_on_its_line_and_leaves_the_job_unchanged(
    words: str, wrong: Any
) -> None:
    assert refusal(wrong).startswith(words)


def test_problems_of_the_whole_job_are_reported_with_the_line_of_the_group() -> None:
    one = Job("one")
    one.sql("a", "SELECT 1", output="made", when="nobody.n > 1")
    line = sys._getframe().f_lineno - 1
    with pytest.raises(SpecError, match=rf"^{__file__}:{line}: groups\[0\].when: .*nobody"):
        one.spec()


def test_a_function_used_in_two_groups_must_be_needed_by_group_name() -> None:
    one = Job("one")
    one.group("first")(step)
    one.group("second")(step)
    assert one.group("a", needs="second")(step) is step
    with pytest.raises(
        SpecError, match="needs step: it is the function of first, second, a; name one of them"
    ):
        one.group("b", needs=step)(only_spark)


def test_a_refused_group_has_declared_no_output() -> None:
    one = Job("one")
    one.sql("a", "SELECT 1", output="made")
    steps = [{"sql": "SELECT 1", "output": "fresh"}, {"sql": "SELECT 1", "output": "made"}]
    with pytest.raises(SpecError, match="has the output 'made' already"):
        one.add({"name": "b", "steps": steps})
    assert one.sql("c", "SELECT 1", output="fresh") == "c"


def test_a_type_unsupported_for_parameters_is_refused() -> None:
    with pytest.raises(SpecError, match=r"one of the types str, int, .*, not bytes"):
        Job("one", params={"a": bytes})


def test_a_job_is_found_by_module_and_name_also_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_jobs.py").write_text(
        "from unstuck import Job\nprint('hello')\nnightly = Job('nightly')\n"
    )
    (tmp_path / "my_leaving_jobs.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "my_broken_jobs.py").write_text(
        "import unstuck\nunstuck.Job('a', params={'b': bytes})\nx = 1\n"
    )
    (tmp_path / "my_failing_jobs.py").write_text("import unstuck\n\n1 / 0\n")
    assert load_job("my_jobs:nightly").name == "nightly"
    assert capsys.readouterr() == ("", "hello\n"), (
        "what a command answers on standard output may be JSON"
    )
    with pytest.raises(
        SpecError, match=r"my_leaving_jobs\.py:1: .* cannot be imported: SystemExit: 3"
    ):
        load_job("my_leaving_jobs:a")
    with pytest.raises(SpecError, match="my_jobs has no Job 'nihgtly'; did you mean 'nightly'"):
        load_job("my_jobs:nihgtly")
    with pytest.raises(SpecError, match="one of the types"):
        load_job("my_broken_jobs:a")
    with pytest.raises(
        SpecError, match=r"my_failing_jobs\.py:3: .* cannot be imported: ZeroDivisionError"
    ):
        load_job("my_failing_jobs:a")
    with pytest.raises(
        SpecError,
        match=r"^no_such_module:a: no_such_module cannot be imported: ModuleNotFoundError",
    ):
        load_job("no_such_module:a")
