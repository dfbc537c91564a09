"""Opens Iceberg tables, and commits only if the table has not changed since it was read."""

from __future__ import annotations

import os
from functools import cache
from typing import Any, cast

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableResponse, Table, Transaction
from pyiceberg.table.update import (
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.transforms import IdentityTransform
from pyiceberg.utils.config import Config

from unstuck.coordinator.errors import TableTrouble


class Overtaken(Exception):
    """Another writer has changed the table since it was read. Nothing was committed."""


class _ExactCatalog:
    """A catalog that commits only to the table as it was read, and tries once.

    pyiceberg repeats a refused commit on the new state of the table. It also removes the manifests
    of a refused commit, although a catalog may refuse the repeat of a request whose reply was lost.
    It does neither for other errors.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """Commit. Raises: Overtaken."""
        as_read = (
            AssertCurrentSchemaId(current_schema_id=table.metadata.current_schema_id),
            AssertDefaultSpecId(default_spec_id=table.metadata.default_spec_id),
        )
        try:
            return self._catalog.commit_table(table, (*requirements, *as_read), updates)
        except CommitFailedException as error:
            raise Overtaken(str(error)) from error


def exact_transaction(table: Table) -> Transaction:
    """Return a transaction whose commit raises `Overtaken` if ``table`` has changed meanwhile."""
    catalog = cast(Catalog, _ExactCatalog(table.catalog))
    return Transaction(
        Table(
            table.name(), table.metadata, table.metadata_location, table.io, catalog, table.config
        )
    )


def open_table(path: str) -> Table | None:
    """Return the table ``CATALOG.NAMESPACE.TABLE``; None if there is none.

    Raises: TableTrouble: this process has no such catalog.
    """
    catalog, identifier = _split(path)
    try:
        return catalog.load_table(identifier)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None


def create_table(path: str, schema: Schema, partition_by: list[str]) -> Table | None:
    """Create a table without rows. Return None if another writer has created it."""
    catalog, identifier = _split(path)
    try:
        return catalog.create_table(identifier, schema, partition_spec=_spec(schema, partition_by))
    except TableAlreadyExistsError:
        return None


def check_creation(path: str, schema: Schema, partition_by: list[str]) -> str:
    """Let the catalog check that a table can be created, without creating it.

    The namespace is created if it is absent. Returns the location that the table would have.
    """
    catalog, identifier = _split(path)
    _create_namespace(catalog, identifier[:-1])
    staged = catalog.create_table_transaction(
        identifier, schema, partition_spec=_spec(schema, partition_by)
    )
    return staged.table_metadata.location


def _create_namespace(catalog: Catalog, namespace: tuple[str, ...]) -> None:
    try:
        catalog.create_namespace_if_not_exists(namespace)
    except Exception:  # a SQL catalog raises an error of its database if another is first
        if not catalog.namespace_exists(namespace):
            raise


def _spec(schema: Schema, partition_by: list[str]) -> PartitionSpec:
    ids = [schema.find_field(column).field_id for column in partition_by]
    fields = (
        PartitionField(id_, 1000 + number, IdentityTransform(), column)
        for number, (id_, column) in enumerate(zip(ids, partition_by, strict=True))
    )
    return PartitionSpec(*fields)


def _split(path: str) -> tuple[Catalog, tuple[str, ...]]:
    name, *identifier = path.split(".")
    return _catalog(name, os.getpid()), tuple(identifier)


@cache
def _catalog(name: str, process: int) -> Catalog:
    """Return the catalog of this process; a fork must not share the connections of its parent."""
    configured = Config().get_catalog_config(name)
    if configured is None:
        raise TableTrouble(
            f"this coordinator has no Iceberg catalog {name}. Configure it in .pyiceberg.yaml or "
            f"by PYICEBERG_CATALOG__{name.upper()}__URI, and restart the coordinator"
        )
    return load_catalog(name, **cast(dict[str, str], configured))
