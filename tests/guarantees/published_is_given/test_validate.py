"""``validate`` finds what it can without Redis and without running a step: each problem once, in
its place.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

STEPS = """
def load(spark, ctx, day):
    return spark.range(1)

def price(spark, ctx, base, rate=1):
    ctx.input("order")
    ctx.output("pricess").write(ctx.input("orders"))

def fine(spark, ctx):
    if ctx.params:
        ctx.input("never")
    return ctx.input("orders")
"""
BAD = """\
name: shop
params: {day: {type: date, required: true}}
groups:
  - {name: orders, steps: [{python: "shop:load", output: orders, params: {dya: 1}}]}
  - {name: prices, needs: [orders], steps: [{python: "shop:price", output: prices}]}
  - {name: gone, steps: [{python: "nowhere:load", output: a}]}
  - {name: lost, steps: [{python: "shop:lod", output: b}]}
  - name: sum
    needs: [prices, unknown]
    steps:
      - sql: |
          SELECT sum(price), :results.prices.n AS n,
                 FROM prices WHERE day = :day AND
        output: sum
      - {sql_file: q.sql, output: q}
      - {sql: "SELECT 1; SELECT 2", output: r}
      - {sql: "SELECT 'a", output: s}
  - {name: fine, needs: [orders], steps: [{python: "shop:fine", output: t}], retry: {max: -1}}
"""
TOLD = [
    (
        "bad.yaml:4:37: groups[0].steps[0].python: BAD_STEP_CALL: shop:load does not take dya, "
        "which the step gives it"
    ),
    "bad.yaml:5:45: groups[1].steps[0]: shop:price reads the input 'order', which no need and no "
    "input gives; did you mean 'orders'?",
    (
        "bad.yaml:5:54: groups[1].steps[0].python: BAD_STEP_CALL: shop:price needs base; the step "
        "has day"
    ),
    "bad.yaml:5:76: groups[1].steps[0].output: shop:price neither returns a value nor writes to "
    "ctx.output('prices'); did you mean 'pricess'?",
    "bad.yaml:6:35: groups[2].steps[0].python: STEP_NOT_FOUND: nowhere:load cannot be imported",
    "bad.yaml:7:35: groups[3].steps[0].python: STEP_NOT_FOUND: shop:lod cannot be imported",
    "bad.yaml:9:21: groups[4].needs[1]: unknown group 'unknown'",
    (
        "bad.yaml:13: groups[4].steps[0].sql: line 2, column 37 of the statement: Syntax error at "
        "or near 'AND'"
    ),
    (
        "bad.yaml:15:20: groups[4].steps[1].sql_file: line 3, column 6 of q.sql: Syntax error at "
        "or near 'a'"
    ),
    "bad.yaml:16:15: groups[4].steps[2].sql: several statements in one step",
    (
        "bad.yaml:17:15: groups[4].steps[3].sql: the text that begins at line 1, column 8 of the statement "
        "is not closed: 'a"
    ),
    "bad.yaml:18:91: groups[5].retry.max: expected 0 or more, not the number -1",
]
SPARK_TAKES = """\
name: good
params: {day: {type: date, required: true}, share: 10, odd: 1}
defaults: {conf: {spark.sql.ansi.enabled: "true"}}
groups:
  - name: words
    inputs: {t: t}
    conf: {spark.sql.ansi.doubleQuotedIdentifiers: "true"}
    steps:
      - {sql: 'SELECT 1 AS "a b", :`odd`, v:field FROM t WHERE day = :day', output: a}
      - {sql: "SELECT * FROM t TABLESAMPLE (:share PERCENT) LIMIT :share;", output: b}
      - {sql: "SELECT * FROM IDENTIFIER(:odd)", output: c}
      - {sql: "SET spark.sql.shuffle.partitions = 2"}
      - {sql: "CREATE TEMPORARY VIEW v AS SELECT 1 AS one"}
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(STEPS)
    (tmp_path / "bad.yaml").write_text(BAD)
    (tmp_path / "q.sql").write_text("SELECT *\nFROM prices\nWERE a b c\n")
    return tmp_path


def validate(folder: Path, *words: str, **more: str) -> Any:
    """What ``validate --json`` answers, in a process without an address of Redis."""
    environ = {
        key: value for key, value in os.environ.items() if not key.startswith("UNSTUCK_")
    } | more
    command = [sys.executable, "-m", "unstuck.cli", "validate", *words, "--json"]
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    answer = json.loads(done.stdout)
    assert done.returncode == (0 if answer["ok"] else 2), done.stderr
    return answer


def shown(problem: dict[str, Any]) -> str:
    place = ":".join(
        str(problem[key]) for key in ("file", "line", "column") if problem[key] is not None
    )
    return f"{place}: {problem['path']}: {problem['message']}"


@pytest.mark.claim(
    "`unstuck validate` reports all problems of a spec, its SQL and its code at once."
)
def test_problems_of_spec_sql_and_code_are_reported_together_with_their_places(
    shop: Path,
) -> None:
    found = [shown(problem) for problem in validate(shop, "bad.yaml", "--imports")["problems"]]
    assert [line[: len(told)] for line, told in zip(found, TOLD, strict=True)] == TOLD


@pytest.mark.claim(
    "`unstuck validate` reports all problems of a spec, its SQL and its code at once."
)
@pytest.mark.variant
def test_sql_valid_for_spark_passes_with_its_conf_and_without_parameter_values(
    shop: Path,
) -> None:
    (shop / "good.yaml").write_text(SPARK_TAKES)
    answer = validate(shop, "good.yaml")
    assert (answer["ok"], answer["warnings"]) == (True, [])
    assert answer["sql_parsed_by"].startswith("Spark ")
    # A parser that Spark is given may take more.
    (shop / "good.yaml").write_text(SPARK_TAKES.replace("SELECT 1 AS one", "+"))
    conf = json.dumps({"spark.sql.extensions": "some.Extensions"})
    (warning,) = validate(shop, "good.yaml", UNSTUCK_SPARK_CONF=conf)["warnings"]
    assert "groups[0].steps[4].sql: line 1, column 28 of the statement: " in warning
    assert warning.endswith("an extension may take it")


@pytest.mark.claim(
    "`unstuck validate` reports all problems of a spec, its SQL and its code at once."
)
@pytest.mark.variant
def test_without_spark_the_other_sql_parser_only_warns(shop: Path) -> None:
    text = "name: a\ngroups: [{name: a, steps: [{sql: SELECT (1, output: o}]}]\n"
    (shop / "doubt.yaml").write_text(text)
    answer = validate(shop, "doubt.yaml", JAVA_HOME=str(shop))
    assert (answer["ok"], answer["sql_parsed_by"][:7]) == (True, "sqlglot")
    (warning,) = answer["warnings"]
    assert warning.startswith("doubt.yaml:2:34: groups[0].steps[0].sql: line 1, column "), warning
    assert warning.endswith("; Spark may take it")


NO_STEPS = """
import functools

async def later(spark, ctx): ...

later_too = functools.partial(later)

def parts(spark, ctx):
    yield 1

def swapped(ctx, spark): ...

def day_first(day, ctx): ...

class Daily:
    @classmethod
    def load(cls, spark, ctx):
        ctx.output("e").write(ctx.input("orders"))
"""


@pytest.mark.variant
def test_functions_that_cannot_be_steps_are_reported_before_they_run(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text(NO_STEPS)
    names = ["later", "later_too", "parts", "swapped", "day_first", "Daily.load"]
    groups = [
        {"name": chr(97 + i), "steps": [{"python": f"steps:{name}"}]}
        for i, name in enumerate(names)
    ]
    groups[-1] |= {
        "inputs": {"orders": "orders"},
        "steps": [{"python": "steps:Daily.load", "output": "e"}],
    }
    (tmp_path / "bad.yaml").write_text(
        json.dumps({"name": "bad", "params": {"day": "x"}, "groups": groups})
    )
    found = [
        problem["message"] for problem in validate(tmp_path, "bad.yaml", "--imports")["problems"]
    ]
    causes = [
        "BAD_STEP_CALL: steps:later is an async def",
        "BAD_STEP_CALL: steps:later_too is an async def",
        "BAD_STEP_CALL: steps:parts has a yield",
        "BAD_STEP_CALL: steps:swapped must take spark and ctx first, and would get spark as ctx",
        "BAD_STEP_CALL: steps:day_first must take spark and ctx first, and would get spark as day",
    ]
    assert [text[: len(cause)] for text, cause in zip(found, causes, strict=True)] == causes


def test_an_unknown_table_is_a_warning_if_python_could_provide_it_and_else_an_error(
    tmp_path: Path,
) -> None:
    (tmp_path / "steps.py").write_text("def load(spark, ctx): return spark.range(3)\n")
    load = "{name: load, steps: [{python: steps:load, output: orders}]}"
    report = "{name: report, needs: [load], steps: [{sql: SELECT * FROM oders, output: report}]}"
    (tmp_path / "typo.yaml").write_text(f"name: typo\ngroups:\n- {load}\n- {report}\n")
    place = "typo.yaml:4:47: groups[1].steps[0].sql: group report cannot read a table oders"
    answers = [validate(tmp_path, "typo.yaml"), validate(tmp_path, "typo.yaml", "--imports")]
    (warning,), (error,) = answers[0]["warnings"], answers[1]["problems"]
    assert [text[: len(place)] for text in (warning, shown(error))] == [place, place]
    assert warning.endswith("did you mean 'orders'?")
