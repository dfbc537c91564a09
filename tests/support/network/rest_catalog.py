"""A REST catalog of Iceberg in this process, which stores its tables in a SQL catalog.

It answers what pyiceberg's client asks to create, load and change tables, as the OpenAPI document
of Iceberg says. It can commit and lose the reply.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest, Table

_PATH = re.compile(
    r"/v1/namespaces(?:/(?P<namespace>[^/?]+)(?P<tables>/tables(?:/(?P<table>[^/?]+))?)?)?"
)
_CODES = {
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
}


class RestCatalogServer(ThreadingHTTPServer):
    """Serves ``catalog``.

    Attributes:
        lost_replies: commits that are made, and whose connection is closed without a reply.
        repeated_requests: commits that are made twice, as if a proxy had repeated the request.
    """

    daemon_threads = False

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.catalog = catalog
        self.lost_replies = 0
        self.repeated_requests = 0
        self.lock = threading.Lock()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: RestCatalogServer

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            with self.server.lock:
                code, answer = 200, self._call(body)
        except tuple(_CODES) as error:
            code = _CODES[type(error)]
            answer = {"error": {"message": str(error), "type": type(error).__name__, "code": code}}
        if answer is None:
            self.close_connection = True
            return
        data = b"" if self.command == "HEAD" else json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _call(self, body: bytes) -> dict[str, Any] | None:
        """Return the answer; None: it is lost."""
        catalog = self.server.catalog
        if self.path.startswith("/v1/config"):
            return {"defaults": {}, "overrides": {}}
        match = _PATH.match(self.path)
        assert match is not None, self.path
        namespace, table = match["namespace"], match["table"]
        if namespace is None:
            request = json.loads(body)
            catalog.create_namespace(tuple(request["namespace"]))
            return {"namespace": request["namespace"], "properties": {}}
        if match["tables"] is None:
            return {
                "namespace": [namespace],
                "properties": dict(catalog.load_namespace_properties(namespace)),
            }
        if table is None:
            return self._create(namespace, json.loads(body))
        if self.command != "POST":
            return _loaded(catalog.load_table((namespace, table)))
        return self._commit(CommitTableRequest.model_validate_json(body), (namespace, table))

    def _create(self, namespace: str, request: dict[str, Any]) -> dict[str, Any]:
        catalog, identifier = self.server.catalog, (namespace, request["name"])
        catalog.load_namespace_properties(namespace)
        spec = request.get("partition-spec")
        arguments: dict[str, Any] = {
            "schema": Schema.model_validate(request["schema"]),
            "partition_spec": UNPARTITIONED_PARTITION_SPEC
            if spec is None
            else PartitionSpec.model_validate(spec),
            "properties": request.get("properties", {}),
        }
        if request.get("stage-create"):
            staged = catalog.create_table_transaction(identifier, **arguments)
            return {"metadata": json.loads(staged.table_metadata.model_dump_json()), "config": {}}
        return _loaded(catalog.create_table(identifier, **arguments))

    def _commit(
        self, request: CommitTableRequest, identifier: tuple[str, str]
    ) -> dict[str, Any] | None:
        table = self.server.catalog.load_table(identifier)
        made = self.server.catalog.commit_table(table, request.requirements, request.updates)
        if self.server.repeated_requests:
            self.server.repeated_requests -= 1
            self.server.catalog.commit_table(table, request.requirements, request.updates)
        if self.server.lost_replies:
            self.server.lost_replies -= 1
            return None
        return {
            "metadata-location": made.metadata_location,
            "metadata": json.loads(made.metadata.model_dump_json()),
        }


def _loaded(table: Table) -> dict[str, Any]:
    metadata = json.loads(table.metadata.model_dump_json())
    return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}


@contextmanager
def rest_catalog(catalog: Catalog) -> Iterator[RestCatalogServer]:
    """Serve ``catalog`` until the block ends."""
    with RestCatalogServer(catalog) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
