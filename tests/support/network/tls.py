"""TLS in front of a Redis, with a CA of our own: the embedded server is built without it."""

from __future__ import annotations

import asyncio
import datetime
import ssl
import threading
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Authority:
    """A CA. Attributes: file: its certificate."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        made = self._builder(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), True
        )
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self._sign(made))

    def certify(self, *hosts: str) -> tuple[Path, Path]:
        """A certificate for the names ``hosts``, and its key, each in a file."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, hosts[0])])
        names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
        made = self._builder(subject, key).add_extension(names, False)
        files = [self._folder / f"{self.file.stem}-{hosts[0]}.{end}" for end in ("pem", "key")]
        files[0].write_bytes(self._sign(made))
        plain = (
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        files[1].write_bytes(key.private_bytes(*plain))
        return files[0], files[1]

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=30))
        )

    def _sign(self, builder: x509.CertificateBuilder) -> bytes:
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


class TlsServer:
    """Passes on what comes to a Redis on this machine; without one, it answers nothing: a
    stranger's server.

    Attributes:
        heard: all that clients said, after their handshakes.
        handshakes: how many connections began, also those whose handshake failed.
    """

    def __init__(
        self,
        certificate: tuple[Path, Path],
        to: int | None = None,
        clients_of: Authority | None = None,
    ) -> None:
        """``to``: the port of the Redis; ``clients_of``: clients must have a certificate of this
        CA.
        """
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*certificate)
        if clients_of is not None:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(clients_of.file)
        self._context.sni_callback = self._count
        self._to = to
        self.heard, self.handshakes = b"", 0
        self._writers: list[asyncio.StreamWriter] = []
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(
            lambda *_: None
        )  # failed handshakes are what some tests want
        self._thread = threading.Thread(target=self._loop.run_forever, name="tls", daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)

    def _count(self, *_: object) -> None:
        self.handshakes += 1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        if self._to is None:
            while said := await reader.read(1 << 16):
                self.heard += said
            return
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers.append(up_writer)
        await asyncio.gather(
            self._pass(reader, up_writer, True), self._pass(up_reader, writer, False)
        )

    async def _pass(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, asking: bool
    ) -> None:
        with suppress(OSError):
            while said := await source.read(1 << 16):
                if asking:
                    self.heard += said
                target.write(said)
                await target.drain()
        target.close()

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            for writer in self._writers:
                writer.transport.abort()
            for _ in range(10):  # turns of the loop in which the sockets are closed
                await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
