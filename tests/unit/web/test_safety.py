"""Who is let in, which requests may act, and what a browser is told never to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import anyio
import pytest
from starlette.testclient import TestClient
from starlette.types import Message

from tests.cli.conftest import ByHand
from tests.unit.web.conftest import HOST
from unstuck.coordinator.errors import BadRequest
from unstuck.web.safety import COOKIE, FORWARDED, MOST_BODY, Access, AccessGuard

TOKEN = "a token that nobody guesses"
BROWSER = {"Accept": "text/html"}
Site = Callable[..., TestClient]


@pytest.mark.claim("Without a token, the web page listens on loopback addresses only.")
@pytest.mark.parametrize("host", ["0.0.0.0", "", "::", "10.0.0.7", "example.com"])
def test_without_a_token_the_page_listens_only_on_loopback_addresses(host: str) -> None:
    with pytest.raises(BadRequest, match="--token-file"):
        Access.of(host, "")
    assert Access.of(host, TOKEN).token == TOKEN


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.3.4.5"])
def test_loopback_addresses_need_no_token(host: str) -> None:
    assert Access.of(host, "").token == ""


@pytest.mark.claim("Without a token, the web page listens on loopback addresses only.")
@pytest.mark.parametrize("name", FORWARDED)
def test_without_a_token_requests_through_a_proxy_are_refused(site: Site, name: str) -> None:
    """A proxy of this host connects from a loopback address, and may call the page by one."""
    answer = site().get("/", headers={name: "203.0.113.7"})
    assert (answer.status_code, "--token-file" in answer.text) == (403, True)
    assert (
        site(TOKEN)
        .get("/", headers={name: "203.0.113.7", "Authorization": f"Bearer {TOKEN}"})
        .status_code
        == 200
    )


def test_proxy_host_names_require_a_token() -> None:
    with pytest.raises(BadRequest, match=r"--allow-host page\.example"):
        Access.of("127.0.0.1", "", ("page.example",))


def test_a_short_token_is_refused() -> None:
    with pytest.raises(BadRequest, match="has 6 characters"):
        Access.of("127.0.0.1", "secret")


@pytest.mark.claim(
    "Another web site can neither act through the browser of a user nor read the page."
)
@pytest.mark.parametrize(
    ("host", "code"),
    [
        (HOST, 200),
        ("localhost:8620", 200),
        ("[::1]:8620", 200),
        ("10.0.0.7", 200),
        ("evil.example", 421),
        ("evil.example:8620", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
        ("page.example", 200),
        ("PAGE.example.:443", 200),
    ],
)
def test_an_unknown_host_name_is_refused_against_dns_rebinding(
    site: Site, host: str, code: int
) -> None:
    known = {"Host": host, "Authorization": f"Bearer {TOKEN}"}
    assert site(TOKEN, ("page.example",)).get("/", headers=known).status_code == code
    if code == 421:
        assert site().get("/", headers={"Host": host}).status_code == code


def test_every_response_has_restrictive_security_headers(browser: TestClient) -> None:
    for path in ("/", "/jobs/none", "/static/style.css", "/nowhere", "/healthz"):
        headers = browser.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"


def test_a_page_has_no_inline_script_or_style(browser: TestClient, hand: ByHand) -> None:
    job = hand.submit({"name": "load"})
    for path in ("/", "/jobs", f"/jobs/{job}", "/schedules", "/datasets", "/fleet", "/login"):
        text = browser.get(path).text
        assert "<style" not in text
        assert " style=" not in text
        assert " onclick=" not in text
        assert text.count("<script") == text.count('<script src="/static/')


@pytest.mark.claim(
    "Another web site can neither act through the browser of a user nor read the page."
)
@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "http://evil.example"},
    ],
)
def test_an_action_sent_by_another_site_is_refused(
    browser: TestClient, headers: dict[str, str]
) -> None:
    answer = browser.post("/login", data={"user": "x"}, headers=headers)
    assert answer.status_code == 403
    assert "must come from the page itself" in answer.text


def test_other_methods_and_long_bodies_are_refused(browser: TestClient) -> None:
    assert browser.put("/jobs").status_code == 405
    assert browser.post("/login", content=b"x" * (MOST_BODY + 1)).status_code == 413
    for length in ("1000000000000", "9" * 5000, "-1", "²"):
        assert (
            browser.post(
                "/login", content=b"", headers={"Content-Length": length.encode()}
            ).status_code
            == 413
        )


@pytest.mark.parametrize("parts", [[b"x" * MOST_BODY] * 2, [b"x"]])
def test_a_body_without_a_length_is_limited_in_bytes_and_time(
    parts: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body that comes in parts may be endless, or never come to its end."""
    monkeypatch.setattr("unstuck.web.safety.BODY_WITHIN", 0.1)
    left, told = list(parts), list[Message]()

    async def receive() -> Message:
        if not left:
            await anyio.sleep_forever()
        return {"type": "http.request", "body": left.pop(), "more_body": True}

    async def send(message: Message) -> None:
        told.append(message)

    async def never(*_: object) -> None:
        raise AssertionError("the body was not refused")

    scope = {
        "type": "http", "method": "POST", "path": "/login", "query_string": b"", "scheme": "http",
        "headers": [(b"host", HOST.encode()), (b"transfer-encoding", b"chunked")],
    }  # fmt: skip
    anyio.run(AccessGuard(never, Access()), scope, receive, send)
    assert told[0]["status"] == 413


def test_with_a_token_other_callers_get_no_information(site: Site, hand: ByHand) -> None:
    job, page = hand.submit({"name": "load"}), site(TOKEN)
    for path in ("/", "/jobs", f"/jobs/{job}", "/metrics", "/api/v1/jobs", "/nowhere"):
        for headers in (
            {},
            BROWSER,
            {"Authorization": "Bearer wrong"},
            {"Cookie": f"{COOKIE}=ann.9999999999.00"},
        ):
            answer = page.get(path, headers=headers)
            assert answer.status_code in (303, 401)
            assert job not in answer.text
    assert page.get("/healthz").status_code == 200
    assert page.get("/static/style.css").status_code == 200


def test_a_caller_with_the_bearer_token_is_admitted(site: Site) -> None:
    assert site(TOKEN).get("/jobs", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_a_login_cookie_is_hidden_from_scripts_and_other_sites(site: Site) -> None:
    page = site(TOKEN)
    asked = page.get("/jobs?status=FAILED", headers=BROWSER)
    assert asked.status_code == 303
    to = parse_qs(urlsplit(asked.headers["location"]).query)["to"][0]
    assert to == "/jobs?status=FAILED"
    wrong = page.post("/login", data={"user": "ann", "token": "wrong", "to": to})
    assert (wrong.status_code, wrong.headers.get("set-cookie")) == (401, None)
    right = page.post("/login", data={"user": "ann é.", "token": TOKEN, "to": to})
    assert (right.status_code, right.headers["location"]) == (303, to)
    cookie = right.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert "ann é." in page.get("/jobs").text


def test_a_login_redirects_only_to_this_page(site: Site) -> None:
    page = site(TOKEN)
    for to in ("https://evil.example/", "//evil.example", "/\\evil.example", ""):
        answer = page.post("/login", data={"user": "ann", "token": TOKEN, "to": to})
        assert answer.headers["location"] == "/"


def test_a_forged_or_expired_cookie_is_invalid() -> None:
    access, other = Access(TOKEN), Access(TOKEN + "!")
    good = access.session("ann", 9_999_999_999)
    assert access.user_of(good) == "ann"
    assert other.user_of(good) is None
    assert access.user_of(good.replace("ann", "bob")) is None
    assert access.user_of(access.session("ann", 1)) is None
    for odd in ("", ".", "..", "ann..", "ann.²." + "0" * 64, "a." + "9" * 5000 + ".0", good + "0"):
        assert access.user_of(odd) is None


def test_a_link_from_a_mail_is_reloaded_from_the_page_itself(site: Site) -> None:
    """Browsers hold a SameSite=Strict cookie back from the first request of such a link."""
    answer = site(TOKEN).get("/jobs/x", headers={**BROWSER, "Sec-Fetch-Site": "cross-site"})
    assert (answer.status_code, 'http-equiv="refresh"' in answer.text) == (200, True)


def test_a_static_file_is_cached_under_the_hash_of_its_content(browser: TestClient) -> None:
    (address,) = re.findall(r'href="(/static/style\.css\?v=\w+)"', browser.get("/").text)
    assert "immutable" in browser.get(address).headers["cache-control"]
    assert browser.get("/static/style.css").headers["cache-control"] == "no-store"
    assert browser.get("/static/none.css?v=1").headers["cache-control"] == "no-store"
