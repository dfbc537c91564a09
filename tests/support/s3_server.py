"""An S3 server of our own, moto's, with buckets of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
import uuid

from tests.support.paths import ROOT
from tests.support.servers import free_port, wait_until

KEY = "a-test-key"
SECRET = "a-test-secret-which-nobody-is-shown"


class S3Server:
    """The server in a process of its own, which other processes reach as well."""

    def __init__(self) -> None:
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environ(self) -> dict[str, str]:
        """By which the clients of a process find it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    def start(self) -> None:
        # Moto's own command prints every request.
        self.process = process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(self.port)], cwd=ROOT, stderr=subprocess.DEVNULL
        )

        def up() -> bool:
            assert process.poll() is None, "the test S3 did not start"
            try:
                return bool(urllib.request.urlopen(self.endpoint, timeout=5).status)
            except urllib.error.HTTPError:
                return True
            except OSError:
                return False

        try:
            wait_until(up, 20, "the test S3 to answer")
        except BaseException:
            self.stop()
            raise

    def make_bucket(self) -> str:
        """A new bucket: its URI."""
        import boto3

        name = f"bucket-{uuid.uuid4().hex}"
        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )
        client.create_bucket(Bucket=name)
        client.close()
        return f"s3://{name}"

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def _serve(port: int) -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    # One request at a time: moto looks for an object and stores it in two steps, between which S3 lets nobody.
    os.environ["MOTO_S3_CUSTOM_ENDPOINTS"] = f"http://127.0.0.1:{port}"
    run_simple("127.0.0.1", port, DomainDispatcherApplication(create_backend_app), threaded=False)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
