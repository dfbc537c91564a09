"""The port of a server that is to come back at its address."""

from __future__ import annotations

import socket
from pathlib import Path

from unstuck.local.home import Home, free_port


def _first_of_outgoing_connections() -> int:
    return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


def test_outgoing_connections_never_use_the_port_of_a_server(tmp_path: Path) -> None:
    for folder in range(20):
        home = Home(tmp_path / str(folder))
        home.valkey.mkdir(parents=True)
        assert home.port() < _first_of_outgoing_connections()


def test_a_free_port_is_unused_and_stable_per_home(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.valkey.mkdir(parents=True)
    first = home.port()
    assert home.port() == first
    with socket.socket() as somebody:
        somebody.bind(("127.0.0.1", first))
        somebody.listen()
        other = home.port()
        assert other != first
    assert home.port() == other
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", free_port()))
