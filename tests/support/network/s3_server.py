"""S3 servers of our own with buckets of the tests: moto's, and SeaweedFS, which answers many
requests at a time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT
from tests.support.servers import free_port, wait_until

KEY = "a-test-key"
SECRET = "a-test-secret-which-nobody-is-shown"


class S3Server:
    """Moto's server in a process of its own, which other processes reach as well."""

    def __init__(self) -> None:
        self.port = free_port()
        self._keys = KEY, SECRET
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
            "AWS_ACCESS_KEY_ID": self._keys[0],
            "AWS_SECRET_ACCESS_KEY": self._keys[1],
            "AWS_REGION": "us-east-1",
        }

    def start(self) -> None:
        self.process = process = self._program()

        def up() -> bool:
            assert process.poll() is None, "the test S3 did not start"
            return self._answers()

        try:
            wait_until(up, 60, "the test S3 to answer")
        except BaseException:
            self.stop()
            raise

    def _program(self) -> subprocess.Popen[bytes]:
        # Moto's own command prints every request.
        return subprocess.Popen(
            [sys.executable, "-m", __name__, str(self.port)], cwd=ROOT, stderr=subprocess.DEVNULL
        )

    def _answers(self) -> bool:
        try:
            return bool(urllib.request.urlopen(self.endpoint, timeout=5).status)
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False

    def make_bucket(self) -> str:
        """A new bucket: its URI."""
        name = f"bucket-{uuid.uuid4().hex}"
        with closing(self.client("s3")) as client:
            client.create_bucket(Bucket=name)
        return f"s3://{name}"

    def client(self, service: str) -> Any:
        """A client that may do everything."""
        import boto3

        key, secret = self._keys
        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            region_name="us-east-1",
        )

    def check_access(self) -> None:
        """From now on signatures are checked, and users may do what their policies allow;
        ``environ`` may do all.
        """
        self._keys = self.make_user("root", {"Effect": "Allow", "Action": "*", "Resource": "*"})
        # The body is the number of requests that are still answered unchecked.
        said = {"data": b"0", "headers": {"Content-Type": "text/plain"}, "method": "POST"}
        urllib.request.urlopen(
            urllib.request.Request(f"{self.endpoint}/moto-api/reset-auth", **said)
        ).close()

    def make_user(self, name: str, *statements: dict[str, str]) -> tuple[str, str]:
        """A user with a policy: the key and the secret."""
        with closing(self.client("iam")) as client:
            client.create_user(UserName=name)
            key = client.create_access_key(UserName=name)["AccessKey"]
        self.allow(name, *statements)
        return key["AccessKeyId"], key["SecretAccessKey"]

    def assume_role(self, name: str, *statements: dict[str, str]) -> dict[str, str]:
        """The keys of a new role with a policy, as STS gives them: AccessKeyId, SecretAccessKey and
        SessionToken.
        """
        everybody = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}
        with closing(self.client("iam")) as iam, closing(self.client("sts")) as sts:
            trust = json.dumps({"Version": "2012-10-17", "Statement": [everybody]})
            arn = iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust)["Role"]["Arn"]
            policy = json.dumps({"Version": "2012-10-17", "Statement": [*statements]})
            iam.put_role_policy(RoleName=name, PolicyName="only", PolicyDocument=policy)
            keys: dict[str, str] = sts.assume_role(RoleArn=arn, RoleSessionName="a-machine")[
                "Credentials"
            ]
            return keys

    def allow(self, name: str, *statements: dict[str, str]) -> None:
        """Let a user do what ``statements`` say, and nothing else."""
        nothing = {"Effect": "Deny", "Action": "*", "Resource": "*"}
        policy = {"Version": "2012-10-17", "Statement": [*statements] or [nothing]}
        with closing(self.client("iam")) as client:
            client.put_user_policy(
                UserName=name, PolicyName="only", PolicyDocument=json.dumps(policy)
            )

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class SeaweedFS(S3Server):
    """SeaweedFS, for readers that poll often, with a REST catalog of Iceberg. ``make test-long``
    installs it; it knows no users but one.
    """

    def __init__(self, home: Path) -> None:
        super().__init__()
        self._home = home
        self._program_path = Path(sys.executable).with_name("weed")
        self._catalog_port = free_port()
        parts = (
            "master.port",
            "master.port.grpc",
            "volume.port",
            "volume.port.grpc",
            "filer.port",
            "filer.port.grpc",
        )
        self._ports = {part: free_port() for part in (*parts, "s3.port.grpc")}

    def _program(self) -> subprocess.Popen[bytes]:
        user = {
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin"],
            "name": "root",
        }
        users = self._home / "users.json"
        users.write_text(json.dumps({"identities": [user]}))
        program = self._program_path
        assert program.exists(), (
            f"{program} is missing: pip install -r tests/requirements-seaweedfs.txt"
        )
        # Each bucket takes several volumes; with 20 of them the third bucket that is written to got
        # 500.
        return subprocess.Popen(
            [
                *(
                    program,
                    "server",
                    "-filer",
                    "-s3",
                    "-ip=127.0.0.1",
                    f"-dir={self._home}",
                    "-volume.max=200",
                ),
                *(
                    f"-s3.port={self.port}",
                    f"-s3.config={users}",
                    f"-s3.port.iceberg={self._catalog_port}",
                    "-s3.port.lance=0",
                    "-master.volumeSizeLimitMB=64",
                ),
                *(f"-{part}={port}" for part, port in self._ports.items()),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def make_catalog(self) -> dict[str, str]:
        """Make a bucket of tables. Returns the settings of its REST catalog, for pyiceberg.

        Like S3 Tables, it takes no files but those of tables.
        """
        bucket = f"tables-{uuid.uuid4().hex[:12]}"
        places = {
            part: f"127.0.0.1:{self._ports[f'{part}.port']}.{self._ports[f'{part}.port.grpc']}"
            for part in ("master", "filer")
        }
        subprocess.run(
            [self._program_path, "shell", *(f"-{part}={at}" for part, at in places.items())],
            input=f"s3tables.bucket -create -name {bucket} -account tests\n".encode(),
            check=True,
            capture_output=True,
        )
        keys = {"access-key-id": KEY, "secret-access-key": SECRET}
        return {
            "type": "rest",
            "uri": f"http://127.0.0.1:{self._catalog_port}",
            "warehouse": f"s3://{bucket}",
            "s3.endpoint": self.endpoint,
            "s3.region": "us-east-1",
            "rest.sigv4-enabled": "true",
            "rest.signing-region": "us-east-1",
            "rest.signing-name": "s3tables",
            **{f"{part}.{name}": key for part in ("s3", "client") for name, key in keys.items()},
        }

    def _answers(self) -> bool:
        """True once a file can be written: the part that speaks S3 answers before the others are
        there.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            with closing(self.client("s3")) as client:
                client.create_bucket(Bucket=(name := f"bucket-{uuid.uuid4().hex}"))
                client.put_object(Bucket=name, Key="first", Body=b"1")
        except (BotoCoreError, ClientError):
            return False
        return True


def _serve(port: int) -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    # One request at a time: moto looks for an object and stores it in two steps, between which S3
    # lets nobody.
    os.environ["MOTO_S3_CUSTOM_ENDPOINTS"] = f"http://127.0.0.1:{port}"
    run_simple("127.0.0.1", port, DomainDispatcherApplication(create_backend_app), threaded=False)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
