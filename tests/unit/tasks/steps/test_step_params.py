"""What a step reads of its parameters is noted, and what cannot be followed counts as a look at all
of them.
"""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from unstuck.tasks.steps.execute import fit
from unstuck.tasks.steps.step_params import MAX_NAMES, Params, Reads, looked_at


def forked(_: Params) -> None:
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)


def no_key(params: Params) -> None:
    with pytest.raises(KeyError):
        params["absent"]


def taking(function: Callable[..., Any]) -> Callable[[Params], object]:
    return lambda params: fit("m:f", function, params, own=set())


@pytest.mark.parametrize(
    ("read", "names"),
    [
        (lambda params: None, set()),
        (lambda params: params["day"], {"day"}),
        (lambda params: params.get("absent", 1), {"absent"}),
        (lambda params: "absent" in params, {"absent"}),
        (lambda params: "day" in params.keys(), {"day"}),  # noqa: SIM118 - the view is tried
        (lambda params: "{day}".format_map(params), {"day"}),
        (no_key, {"absent"}),
        (lambda params: list(params), None),
        (lambda params: len(params), None),
        (lambda params: bool(params), None),
        (lambda params: list(params.items()), None),
        (lambda params: list(params.values()), None),
        (lambda params: {**params}, None),
        (lambda params: params == {"day": 1}, None),
        (lambda params: f"{params}", None),
        (copy.copy, None),
        (copy.deepcopy, None),
        (pickle.dumps, None),
        (lambda params: params.get(1), None),  # type: ignore[call-overload]
        (lambda params: [params.get(f"n{n}") for n in range(MAX_NAMES + 1)], None),
        (forked, None),
        (taking(lambda spark, ctx, day: None), {"day"}),
        (taking(lambda spark, ctx, absent=1: None), {"absent"}),
        (taking(lambda spark, ctx, **more: None), None),
    ],
)
def test_parameter_reads_are_recorded(
    read: Callable[[Params], object], names: set[str] | None, request: pytest.FixtureRequest
) -> None:
    reads = looked_at(request.node.name)
    read(Params({"day": 1, "night": 2}, reads))
    assert reads.names == names


def test_a_copy_of_parameters_is_complete_and_the_original_is_read_only() -> None:
    params = Params({"day": 1, "night": 2}, Reads())
    assert pickle.loads(pickle.dumps(params)) == dict(params) == {"day": 1, "night": 2}
    with pytest.raises(TypeError, match="does not support item assignment"):
        params["day"] = 2  # type: ignore[index]
