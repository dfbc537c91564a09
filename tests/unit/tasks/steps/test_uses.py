"""What a function reads and writes is told only where its source leaves no doubt."""

from __future__ import annotations

from typing import Any

from unstuck.tasks.steps.uses import Uses, uses_of


def plain(spark: Any, ctx: Any) -> None:
    first = ctx.input("a")
    with ctx.scratch:
        ctx.output("x").write(first.join(ctx.input(name="b")))


def perhaps(spark: Any, ctx: Any, day: int = 1) -> Any:
    frame = ctx.input("a") if day else ctx.input("b")
    try:
        ctx.input("c")
    except KeyError:
        return None
    ctx.input("d")
    return frame


def open_name(spark: Any, ctx: Any, name: str) -> None:
    ctx.output(name).write(ctx.input("a"))


def gives_away(spark: Any, ctx: Any) -> None:
    perhaps(spark, ctx)
    ctx.output("x").write(ctx.input("a"))


def bound_method(spark: Any, ctx: Any) -> None:
    read = ctx.input
    read("z")


def test_definite_reads_and_possible_writes_of_a_call_are_reported() -> None:
    assert uses_of(plain) == Uses(("a", "b"), ("x",), False)


def test_unreachable_code_of_a_call_is_not_reported() -> None:
    assert uses_of(perhaps) == Uses((), (), True)


def test_a_computed_name_or_a_context_passed_on_leaves_the_outputs_unknown() -> None:
    assert uses_of(open_name) == Uses(("a",), None, False)
    assert uses_of(gives_away) == Uses(("a",), None, False)
    assert uses_of(bound_method) == Uses((), None, False)


def test_a_function_without_source_leaves_everything_unknown() -> None:
    assert uses_of(len) == Uses()
    assert uses_of(eval("lambda spark, ctx: ctx.input('a')")) == Uses()
