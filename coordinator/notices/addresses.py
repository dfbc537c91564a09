"""Restricts the hosts to which notices may be sent.

The address of the connection itself is checked, so a name that resolves to another address later is
rejected.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

# Metadata services of clouds outside the link-local networks.
METADATA = ("fd00:ec2::254", "100.100.100.200")


class NotAllowed(OSError):
    """Notices must not be sent to this address."""


class Allowed:
    """The hosts and networks of ``allow:``; by default all but link-local and cloud metadata ones.

    Only the operator of the fleet configures targets, so private addresses are allowed.
    """

    def __init__(self, entries: Sequence[str] | None = None) -> None:
        """Parse ``entries``: networks, and host names in which ``*`` matches anything."""
        self._open = entries is None
        self._names: list[str] = []
        self._networks = []
        for entry in entries or ():
            try:
                self._networks.append(ip_network(entry, strict=False))
            except ValueError:
                self._names.append(entry.lower())

    def names(self, host: str) -> bool:
        """Return whether ``host`` is allowed by its name, whatever its address is."""
        return any(fnmatchcase(host.lower(), name) for name in self._names)

    def may_be_allowed(self, host: str) -> bool:
        """Return whether an address that ``host`` may have is allowed."""
        try:
            ip_address(host)
        except ValueError:
            return self._open or self.names(host) or bool(self._networks)
        return False

    def check_host(self, host: str) -> None:
        """Check a host whose address another program resolves. Raises: NotAllowed."""
        if not (self._open or self.names(host)):
            self.check(host, host)

    def check(self, host: str, address: str) -> None:
        """Check a host and its address.

        Raises: NotAllowed: neither ``host`` nor a network of ``address`` is allowed.
        """
        if self.names(host):
            return
        try:
            ip = ip_address(address.partition("%")[0])
        except ValueError:
            raise NotAllowed(f"{host} is not among the hosts of allow: in UNSTUCK_NOTIFY") from None
        if isinstance(ip, IPv6Address) and ip.ipv4_mapped:
            ip = ip.ipv4_mapped
        if any(ip in network for network in self._networks):
            return
        if not self._open:
            raise NotAllowed(
                f"{host} has the address {ip}, which is not in allow: of UNSTUCK_NOTIFY"
            )
        if _is_local_to_the_machine(ip):
            raise NotAllowed(
                f"{host} has the address {ip}, where clouds keep the keys of their machines; "
                "if notices really go there, name it in allow: of UNSTUCK_NOTIFY"
            )


def _is_local_to_the_machine(ip: IPv4Address | IPv6Address) -> bool:
    return ip.is_link_local or ip.is_multicast or ip.is_unspecified or str(ip) in METADATA


class Connecting:
    """A deadline for a whole exchange: connecting, and all reads and writes on the socket.

    The timeout of a socket restarts with each read, so a receiver that sends one byte at a time
    would hold it for ever.
    """

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> Connecting:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    @property
    def over(self) -> bool:
        return time.monotonic() >= self._ends

    def connect(self, host: str, port: int, allowed: Allowed | None) -> socket.socket:
        """Connect to the first address of ``host`` that answers. Raises: OSError, NotAllowed."""
        failed: OSError = OSError(f"{host} has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            try:
                if allowed is not None:
                    allowed.check(host, str(address[0]))
                return self._connect(family, kind, protocol, address)
            except OSError as error:
                failed = error
        raise failed

    def _connect(
        self, family: int, kind: int, protocol: int, address: tuple[object, ...]
    ) -> socket.socket:
        sock = socket.socket(family, kind, protocol)
        try:
            if self.over:  # its name took so long
                raise TimeoutError
            sock.settimeout(max(0.001, self._ends - time.monotonic()))
            sock.connect(address)
        except OSError:
            sock.close()
            raise
        self.watch(sock)
        return sock

    def with_tls(self, sock: socket.socket, context: ssl.SSLContext, host: str) -> ssl.SSLSocket:
        """Wrap ``sock`` in TLS, and return the socket that replaces it."""
        wrapped = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
        self.watch(wrapped)
        try:
            wrapped.do_handshake()
        except OSError:
            wrapped.close()
            raise
        return wrapped

    def watch(self, sock: socket.socket) -> None:
        self._sockets.append(sock)

    def _cut(self) -> None:
        for sock in self._sockets:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # closed, or wrapped in another that stands in the list too
