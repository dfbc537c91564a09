"""Check in the attempt whether outputs fit the published datasets, and type untyped columns.

The publisher checks again: others may have published other columns by then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from unstuck.tasks.errors import SchemaMismatch
from unstuck.tasks.spec.outputs import Publishing
from unstuck.tasks.spec.schemas import VOID, Fields, fields_of, schema_after
from unstuck.tasks.steps.step_inputs import PublishedDatasets
from unstuck.tasks.warehouse.marker import StagedOutput


@dataclass(frozen=True, slots=True)
class BesidePublished:
    """The datasets beside which, or in the place of which, one attempt's outputs will be published.

    Attributes:
        publishing_of: how an output is published, by its name; None: it is not.
        is_member: whether the attempt is of a member of a fork.
    """

    published: PublishedDatasets
    publishing_of: Callable[[str], Publishing | None]
    is_member: bool

    def types_of(self, name: str) -> Fields | None:
        """The columns that give their types to those of the output ``name`` that have none.

        A member of a fork that replaces the dataset leaves them open, since other members may give
        other types.
        """
        how = self.publishing_of(name)
        if how is None or (self.is_member and how.takes_any):
            return None
        state = self.published.standing(name)
        return None if state is None else fields_of(state.schema)

    def check(self, name: str, staged: StagedOutput) -> None:
        """Check that the columns of an output fit the dataset that is published.

        Raises: SchemaMismatch.
        """
        how = self.publishing_of(name)
        if how is None or not staged.rows:
            return
        if how.table:
            self._check_table(name, staged)
        elif not how.takes_any and not self._fits(name, staged, how):
            # Somebody may have published other columns since the job was submitted.
            self._fits(name, staged, how, newest=True)

    def _check_table(self, name: str, staged: StagedOutput) -> None:
        """Check that each column has a type; others may have changed the columns of the table.

        Raises: SchemaMismatch.
        """
        untyped = [column["name"] for column in fields_of(staged.schema) if column["type"] == VOID]
        if untyped and not self.is_member:
            raise SchemaMismatch(
                f"the output {name} goes into a table, which has no columns without a type, and "
                f"{', '.join(untyped)} has nulls only. Declare its type under columns:"
            )

    def _fits(
        self, name: str, staged: StagedOutput, how: Publishing, *, newest: bool = False
    ) -> bool:
        """Whether the columns fit the published ones.

        Raises: SchemaMismatch: the newest ones are different.
        """
        state = self.published.standing(name, newest=newest)
        if state is None or state.table is not None or not state.rows:
            return True
        try:
            schema_after(
                name, staged.schema, how.mode, how.on_schema_change, state.schema, state.job
            )
        except SchemaMismatch:
            if newest:
                raise
            return False
        return True
