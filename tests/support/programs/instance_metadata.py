"""The metadata service of a machine of AWS (IMDSv2), which hands out the keys of the machine's
role.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ROLE = "the-role-of-this-machine"
_TOKEN, _KEYS = "/latest/api/token", "/latest/meta-data/iam/security-credentials/"


class InstanceMetadata:
    """``endpoint``: where it answers. ``handed_out``: how often it gave keys to somebody who had a
    token.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.handed_out = 0


@contextmanager
def instance_metadata(credentials: Mapping[str, str]) -> Iterator[InstanceMetadata]:
    """``credentials``: AccessKeyId, SecretAccessKey and SessionToken, as STS gives them."""

    class MetadataHandler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            asked = self.path == _TOKEN and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
            self._answer(b"a-token" if asked else None)

        def do_GET(self) -> None:
            has_token = self.headers["X-aws-ec2-metadata-token"] == "a-token"
            if has_token and self.path == _KEYS:
                self._answer(ROLE.encode())
            elif has_token and self.path == _KEYS + ROLE:
                made.handed_out += 1
                self._answer(json.dumps(keys).encode())
            else:
                self._answer(None)

        def _answer(self, body: bytes | None) -> None:
            self.send_response(200 if body else 401)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *said: object) -> None:
            pass

    keys = {
        "Code": "Success",
        "Type": "AWS-HMAC",
        "LastUpdated": "2013-01-01T00:00:00Z",
        "Expiration": "2113-01-01T00:00:00Z",
        "AccessKeyId": credentials["AccessKeyId"],
        "SecretAccessKey": credentials["SecretAccessKey"],
        "Token": credentials["SessionToken"],
    }
    server = ThreadingHTTPServer(("127.0.0.1", 0), MetadataHandler)
    made = InstanceMetadata(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
