"""Another endpoint of an S3 server: it passes requests on, as they are or without their conditions,
and counts them.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.network.s3_server import S3Server


class Gateway:
    """``requests``: the method and path of each, in order. ``ignores_conditions``: as some S3 do;
    may be changed.
    """

    def __init__(self, server: S3Server, port: int, ignores_conditions: bool) -> None:
        self.ignores_conditions = ignores_conditions
        self.environ = {**server.environ, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
        self.requests: list[tuple[str, str]] = []


@contextmanager
def s3_gateway(server: S3Server, *, ignores_conditions: bool) -> Iterator[Gateway]:
    class GatewayHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            made.requests.append((self.command, self.path))
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {
                name: value for name, value in self.headers.items() if name.lower() != "host"
            }
            if made.ignores_conditions:
                headers = {
                    name: value
                    for name, value in headers.items()
                    if not name.lower().startswith("if-")
                }
            passed = http.client.HTTPConnection("127.0.0.1", server.port)
            passed.request(self.command, self.path, body, headers)
            answer = passed.getresponse()
            data = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in (
                    "content-length",
                    "transfer-encoding",
                    "connection",
                    "date",
                    "server",
                ):
                    self.send_header(name, value)
            length = (
                answer.getheader("Content-Length", "0")
                if self.command == "HEAD"
                else str(len(data))
            )
            self.send_header("Content-Length", length)
            self.end_headers()
            self.wfile.write(data)
            passed.close()

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _pass_on

        def log_message(self, *said: object) -> None:
            pass

    at = ThreadingHTTPServer(("127.0.0.1", 0), GatewayHandler)
    at.daemon_threads = True
    made = Gateway(server, int(at.server_address[1]), ignores_conditions)
    thread = threading.Thread(target=at.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        at.shutdown()
        thread.join()
        at.server_close()
