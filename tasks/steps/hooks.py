"""Hooks: ``fn(ctx, event)`` is told how a group ended. Plain Python, without Spark, inputs and outputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from unstuck.tasks.errors import HookFailed, UnstuckError
from unstuck.tasks.protocol.failure import describe
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.steps.context import Scratch
from unstuck.tasks.steps.execute import ending_forks, find
from unstuck.tasks.steps.params import Params, looked_at


@dataclass(frozen=True, slots=True)
class HookEvent:
    """How a group ended.

    Attributes:
        group: its name; of a member of a fork with its number: ``by_month[3]``.
        attempt: the number of the attempt that succeeded, or failed last.
        code, text: why it failed; empty if it succeeded.
        first_error: code and text of its first error, which may be another one; empty if there was none.
        rows: rows per output that the attempt has made.
        results: what its steps recorded by ``ctx.result``.
    """

    job: str
    group: str
    state: Literal["SUCCEEDED", "FAILED"]
    attempt: int
    code: str = ""
    text: str = ""
    first_error: str = ""
    rows: Mapping[str, int] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, token: Token, state: Literal["SUCCEEDED", "FAILED"], attempt: int = 0, **more: Any) -> HookEvent:
        """The event of the group of ``token``. ``attempt``: if 0, that of the token."""
        return cls(token.job, token.group, state, attempt or token.epoch, **more)


class HookContext:
    """``ctx`` of a hook.

    Attributes:
        params: the job's, the group's and the fork's own parameters, with references resolved; read-only.
        token: ``job/group/epoch/nonce/claimant`` of the attempt that calls the hook.
        log: a standard logger; its lines are in ``unstuck logs``.
    """

    def __init__(
        self,
        params: Mapping[str, Any],
        token: str,
        log: logging.Logger,
        scratch: Scratch,
        is_cancelled: Callable[[], bool],
    ) -> None:
        self.params = Params(params, looked_at(token.partition("/")[0]))
        self.token = token
        self.log = log
        self._scratch = scratch
        self._is_cancelled = is_cancelled

    @property
    def scratch(self) -> Path:
        """A folder of this machine that is removed when the attempt has ended."""
        return self._scratch.folder

    @property
    def cancelled(self) -> bool:
        """True once this attempt should end. Poll it in long loops."""
        return self._is_cancelled()


def run_hook(
    name: str, ctx: HookContext, event: HookEvent, allowed: Sequence[str], imported: Callable[[], None]
) -> None:
    """Call the hook ``module:function``. ``allowed`` and ``imported``: as for `run_step`.

    Raises:
        StepNotFound: it cannot be imported.
        HookFailed: it raised an error.
        BaseException: it ended this process, or was interrupted.
    """
    with ending_forks():
        function = find(name, allowed)
        imported()
        try:
            function(ctx, event)
        except UnstuckError:
            raise
        except Exception as error:
            failed = HookFailed(f"the hook {name} failed: {describe(error)}")
            raise failed.with_traceback(error.__traceback__) from error
