"""The browser that the tests of the page drive: what it reports, and that it ends."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.page.browser import overflow, violations, watched

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HEAD = "<!doctype html><html lang=en><title>t</title><main>"
PAGES = {
    "/fine": HEAD + "<h1>Fine</h1></main>",
    "/inline": HEAD + "<h1 onclick='x()'>Inline</h1></main><script>1</script>",
    "/dialog": HEAD + "<h1>Dialog</h1></main><script src=/alert></script>",
    "/alert": "alert('inside')",
    "/elsewhere": HEAD + "<img alt='' src=http://127.0.0.1:1/x></main>",
    "/unreadable": HEAD + "<button></button><h1>No name</h1></main>",
    "/wide": HEAD + "<h1>" + "W" * 999,
}


class Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header(
            "content-type", "text/javascript" if self.path == "/alert" else "text/html"
        )
        if self.path != "/elsewhere":
            self.send_header("content-security-policy", "default-src 'self'")
        self.end_headers()
        self.wfile.write(PAGES.get(self.path, "").encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_faultless_page_has_no_findings(browser: Browser, origin: str) -> None:
    with watched(browser, origin) as seen:
        seen.page.goto("/fine")
        assert violations(seen.page) == []
        assert overflow(seen.page) == 0


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("/inline", "Content Security Policy"),
        ("/dialog", "a dialog: inside"),
        ("/elsewhere", "a request to elsewhere"),
    ],
)
def test_a_forbidden_behavior_of_a_page_fails_its_test(
    browser: Browser, origin: str, path: str, complaint: str
) -> None:
    with pytest.raises(AssertionError, match=complaint), watched(browser, origin) as seen:
        seen.page.goto(path)


def test_a_button_without_a_name_and_a_too_wide_page_are_reported(
    browser: Browser, origin: str
) -> None:
    with watched(browser, origin) as seen:
        seen.page.goto("/unreadable")
        assert "button-name" in "".join(violations(seen.page))
        seen.page.goto("/wide")
        assert overflow(seen.page) > 1000
