"""Published data, read with Spark. Plain Python reads the same files with ``warehouse.log.published_files``."""

from __future__ import annotations

import json
from typing import Any

from unstuck.tasks.steps.spark import read_parquet
from unstuck.tasks.warehouse.log import Warehouse


def published(spark: Any, warehouse: Warehouse | str, dataset: str, version: int | None = None) -> Any:
    """``dataset`` as a Spark DataFrame: all of one version, whatever is published while it is read.

    Args:
        spark: a SparkSession, Classic or Connect.
        warehouse: the warehouse, or its URI.
        version: of the log; None for the newest.

    Raises:
        DatasetNotFound: no such dataset, or no such version.
    """
    from pyspark.sql.types import StructType

    place = Warehouse(warehouse) if isinstance(warehouse, str) else warehouse
    state = place.dataset(dataset, version)
    if not state.files:
        return spark.createDataFrame([], StructType.fromJson(json.loads(state.schema)))
    return read_parquet(spark, [(state.schema, [place.storage.uri(file.path) for file in state.files])])
