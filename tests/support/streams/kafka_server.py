"""A real Kafka broker (KRaft, one node) for tests that are ``long``: killed and started again in
the same folder.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.servers import wait_until
from tests.support.spark.jars import FOLDER
from tests.support.streams.kafka import KafkaBroker

_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},SASL://127.0.0.1:{sasl},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT
listener.name.sasl.sasl.enabled.mechanisms=PLAIN
listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
  user_reader="{word}";
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={home}/logs
num.partitions=3
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.cleaner.backoff.ms=500
log.cleaner.min.cleanable.ratio=0.01
log.retention.check.interval.ms=1000
file.delete.delay.ms=100
auto.create.topics.enable=false
"""


class KafkaServer:
    """One broker, with the same ``address`` at each start; at ``sasl`` it wants the user ``reader``
    and a password.
    """

    WORD = "the word of the reader"

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port, sasl, controller = _free_ports(3)
        self.address, self.sasl = f"127.0.0.1:{self.port}", f"127.0.0.1:{sasl}"
        self._process: subprocess.Popen[bytes] | None = None
        (home / "server.properties").write_text(
            _PROPERTIES.format(
                port=self.port, sasl=sasl, controller=controller, home=home, word=self.WORD
            )
        )
        subprocess.run(
            [
                *self._java("kafka.tools.StorageTool"),
                "format",
                "--cluster-id",
                _uuid(),
                "--config",
                str(home / "server.properties"),
            ],
            check=True,
            capture_output=True,
        )

    def _java(self, main: str) -> list[str]:
        assert (FOLDER / "kafka").exists(), "no jars of Kafka: make jars SPARKS=kafka"
        memory = ["-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        return ["java", *memory, "-cp", str(FOLDER / "kafka" / "*"), main]

    def start(self) -> None:
        """Start it, and return when it answers."""
        command = [*self._java("kafka.Kafka"), str(self.home / "server.properties")]
        with (self.home / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self._answers, 120, "Kafka to answer")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.home / "server.log").read_text()[-3000:]
        client = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        try:
            found = client.list_topics(timeout=2)
        except KafkaException:
            return False
        return found.controller_id in found.brokers

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it at once."""
        assert self._process is not None
        os.kill(self._process.pid, how)
        self._process.wait()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def broker(self, **conf: Any) -> KafkaBroker:
        """It, with a producer of its own."""
        given = {
            "bootstrap.servers": self.address,
            "log_level": 0,
            "enable.idempotence": True,
            **conf,
        }
        return KafkaBroker(self.address, Producer(given))

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def make(self, topic: str, partitions: int = 3, **config: str) -> None:
        """A new topic."""
        named = {name.replace("_", "."): value for name, value in config.items()}
        admin = self.admin()
        for made in admin.create_topics([NewTopic(topic, partitions, 1, config=named)]).values():
            made.result(30)

    def delete(self, topic: str) -> None:
        admin = self.admin()
        for done in admin.delete_topics([topic]).values():
            done.result(30)
        wait_until(
            lambda: topic not in admin.list_topics(timeout=10).topics, 60, f"{topic} to be gone"
        )


@contextmanager
def kafka_server(home: Path) -> Iterator[KafkaServer]:
    """A broker that runs, in the folder ``home``."""
    server = KafkaServer(home)
    try:
        server.start()
        yield server
    finally:
        server.close()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _uuid() -> str:
    import base64

    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
