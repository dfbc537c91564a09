"""Lakes by the word of a test's parameter."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from tests.support.network.rest_catalog import rest_catalog
from tests.support.tables.delta_lake import DeltaLake
from tests.support.tables.iceberg_lake import IcebergLake
from tests.support.tables.lake import Lake


@contextmanager
def lake_of(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """Return a lake that lasts as long as the block.

    Args:
        kind: ``delta``, ``iceberg`` (in a SQLite catalog) or ``iceberg over REST``.
    """
    if kind == "delta":
        yield DeltaLake(str(folder / "warehouse"), str(folder / "lake/flights"))
        return
    with iceberg_lake(folder, monkeypatch) as lake:
        if kind == "iceberg":
            yield lake
            return
        with rest_catalog(lake.catalog) as server:
            configure(monkeypatch, lake.path.split(".")[0], type="rest", uri=server.uri)
            yield lake


@contextmanager
def iceberg_lake(
    folder: Path, monkeypatch: pytest.MonkeyPatch, below: str = "lake"
) -> Iterator[IcebergLake]:
    """Return a lake in a SQLite catalog of its own, whose tables are in the folder ``below``."""
    name = f"c{uuid.uuid4().hex}"
    settings = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/{below}",
    }
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    configure(monkeypatch, name, **settings)
    catalog = load_catalog(name, **settings)
    try:
        yield IcebergLake(str(folder / "warehouse"), f"{name}.lake.flights", catalog=catalog)
    finally:
        catalog.close()


def configure(monkeypatch: pytest.MonkeyPatch, catalog: str, **settings: str) -> None:
    """Configure a catalog for publishers of this process."""
    for name, value in settings_in_environ(catalog, settings).items():
        monkeypatch.setenv(name, value)


def settings_in_environ(catalog: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a catalog as variables of the environment."""
    return {
        f"PYICEBERG_CATALOG__{catalog}__{name}".upper().replace(".", "__").replace("-", "_"): value
        for name, value in settings.items()
    }
