"""Where a server listens, as people write it: the page and the exporter of metrics read it
alike.
"""

from __future__ import annotations

import pytest

from unstuck.cli.options import host_and_port
from unstuck.coordinator.errors import BadRequest


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("127.0.0.1:8620", ("127.0.0.1", 8620)),
        (":0", ("", 0)),
        ("[::1]:80", ("::1", 80)),
        ("a.b:65535", ("a.b", 65535)),
    ],
)
def test_a_host_and_a_port_are_parsed(text: str, read: tuple[str, int]) -> None:
    assert host_and_port(text) == read


@pytest.mark.parametrize(
    "text", ["nowhere", "", ":", ":x", "8620", "127.0.0.1:65536", "a:-1", "a:٣"]
)
def test_an_invalid_address_is_refused_with_the_expected_form(text: str) -> None:
    with pytest.raises(BadRequest, match="is no address to listen at; expected HOST:PORT or :PORT"):
        host_and_port(text)
