"""Stream Parquet files to a Spark query, and count the files that it reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from unstuck.tasks.frames.file_list import file_list
from unstuck.tasks.frames.parquet_read import as_written
from unstuck.tasks.frames.spark import hadoop_uri
from unstuck.tasks.warehouse.files import Files


def stream_parquet(
    session: Any, schema: str, data_files: Mapping[str, int], files: Files, folder: str
) -> Any:
    """Return a streaming frame of ``data_files`` below ``folder`` of the warehouse.

    ``data_files``: the URIs of Parquet files and their bytes; all are new to the frame.

    Spark gets them as a list: what a task wrote that Spark ran twice lies in the folder as well.
    Raises: OSError.
    """
    from pyspark.sql.types import StructType

    files.write_durable(f"{folder}/_spark_metadata/0", file_list(data_files))
    session.conf.set("spark.sql.streaming.fileStreamSink.ignoreMetadata", "false")
    reader = as_written(session.readStream.schema(StructType.fromJson(json.loads(schema))))
    return reader.option("recursiveFileLookup", "true").parquet(hadoop_uri(files.uri(folder)))


def listed_for_stream(files: Files, folder: str) -> int:
    """How many files below ``folder`` a frame of `stream_parquet` has to read. Raises: OSError."""
    return files.read(f"{folder}/_spark_metadata/0").count(b"\n")


def read_in_batch(query: Any, folder: str) -> list[int]:
    """Return the numbers of files below ``folder`` that the current batch of ``query`` reads.

    Spark passes over a file that is not there when it plans a batch, and counts it as read.
    """
    leaves = query._jsq.streamingQuery().lastExecution().analyzed().collectLeaves()
    nodes = [
        leaf
        for leaf in map(leaves.apply, range(leaves.size()))
        if leaf.nodeName() == "LogicalRelation"
    ]
    of_files = [
        node.relation()
        for node in nodes
        if node.relation().getClass().getSimpleName() == "HadoopFsRelation"
    ]
    places = [relation.location() for relation in of_files]
    return [
        len(place.inputFiles()) for place in places if folder in place.rootPaths().mkString(" ")
    ]
