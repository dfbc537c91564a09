"""What somebody who means harm, or another site in the same browser, gets from the page: nothing,
and a sentence.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from urllib.parse import urlencode

import pytest
from starlette.routing import BaseRoute, Mount, Route

from tests.support.page.web_page import ServedPage, page_of
from tests.support.servers import RedisServer
from unstuck import Client, Settings
from unstuck.coordinator.commands.job_commands import INTENTS
from unstuck.web.api.api_app import PREFIX, api_app
from unstuck.web.app import create_app
from unstuck.web.safety import Access

TOKEN = "a-token-of-thirty-two-characters"
SPEC = {
    "name": "sales",
    "groups": [{"name": "load", "spark": False, "steps": [{"python": "steps:load"}]}],
}
HTML = {"Accept": "text/html"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def served(redis_server: RedisServer, home: Path) -> Iterator[ServedPage]:
    """A page without a token, as on somebody's own machine."""
    with page_of(redis_server.url, home) as page:
        yield page


@pytest.fixture(scope="module")
def guarded(redis_server: RedisServer, home: Path) -> Iterator[ServedPage]:
    """A page with a token."""
    (home / "token").write_text(TOKEN + "\n")
    with page_of(
        redis_server.url, home, "--token-file", "token", "--allow-host", "unstuck.example.com"
    ) as page:
        yield page


@pytest.fixture(scope="module")
def store(redis_server: RedisServer, home: Path) -> Iterator[Client]:
    with Client(Settings(redis_url=redis_server.url, warehouse=str(home / "warehouse"))) as client:
        yield client


@pytest.fixture
def job(store: Client) -> str:
    """A job that waits: no worker is there."""
    return store.submit(SPEC).id


class RawResponse:
    def __init__(self, raw: http.client.HTTPResponse) -> None:
        self.status, self.headers, self.body = raw.status, raw.headers, raw.read()

    @property
    def text(self) -> str:
        return self.body.decode()


def ask(
    page: ServedPage, path: str, method: str = "GET", body: str | None = None, **headers: str
) -> RawResponse:
    """One request; ``headers`` with ``_`` for ``-``."""
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=30)
    try:
        connection.request(
            method, path, body, {name.replace("_", "-"): value for name, value in headers.items()}
        )
        return RawResponse(connection.getresponse())
    finally:
        connection.close()


def act(
    page: ServedPage, path: str, fields: dict[str, str] | None = None, **headers: str
) -> RawResponse:
    return ask(
        page,
        path,
        "POST",
        urlencode(fields or {}),
        **{"Content_Type": FORM["Content-Type"], **headers},
    )


def intent(store: Client, job: str) -> str:
    return str(store.show(job).intent)


@cache
def routes() -> list[tuple[str, set[str]]]:
    """Path and methods of all that the page serves, with a value for each parameter."""

    def of(found: Sequence[BaseRoute], below: str) -> Iterator[tuple[str, set[str]]]:
        for one in found:
            if isinstance(one, Route):
                yield below + re.sub(r"{[^}]*}", "x", one.path), set(one.methods or ())
            elif isinstance(one, Mount):
                yield from of(one.routes, below + one.path)

    with Client(Settings(redis_url="redis://127.0.0.1:1/0")) as client:
        app = create_app(client, Access())
    found = dict(of(app.routes, ""))
    for path, operations in api_app(app.state).openapi()["paths"].items():
        found[PREFIX + re.sub(r"{[^}]*}", "x", path)] = {method.upper() for method in operations}
    return sorted(found.items())


# -- another site in the same browser --------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "evil.example.com",
        "evil.example.com:80",
        "127.0.0.1.nip.io",
        "localhost.evil.example",
        "",
        "[",
        "a]:1",
        "localhost:1:evil",
    ],
)
@pytest.mark.parametrize("path", ["/", "/static/style.css", "/api/v1/jobs"])
def test_a_rebound_host_name_reads_nothing(served: ServedPage, host: str, path: str) -> None:
    answer = ask(served, path, Host=host)
    assert answer.status == 421
    assert "sales" not in answer.text


def test_names_of_this_host_and_allowed_names_are_accepted(
    served: ServedPage, guarded: ServedPage
) -> None:
    for host in (
        "localhost",
        f"localhost:{served.port}",
        "127.0.0.1",
        "[::1]:8620",
        socket.gethostname(),
    ):
        assert ask(served, "/", Host=host).status == 200, host
    assert ask(guarded, "/login", Host="unstuck.example.com").status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "none"},
        {"Origin": "https://evil.example.com"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://127.0.0.1:1", "Sec_Fetch_Site": "same-origin"},
    ],
    ids=str,
)
def test_a_form_of_another_site_has_no_effect(
    served: ServedPage, store: Client, job: str, headers: dict[str, str]
) -> None:
    assert act(served, f"/jobs/{job}/pause", **headers).status == 403
    assert intent(store, job) == "run"


@pytest.mark.parametrize(
    "method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"]
)
def test_actions_require_a_post(served: ServedPage, store: Client, job: str, method: str) -> None:
    for headers in ({}, {"X_HTTP_Method_Override": "POST"}):
        assert ask(served, f"/jobs/{job}/pause", method, **headers).status in (400, 404, 405)
    assert intent(store, job) == "run"


def test_programs_require_the_token_to_act(
    served: ServedPage, guarded: ServedPage, store: Client
) -> None:
    """Given a page without a token, then another account of its host submits nothing there."""
    before = len(store.jobs(limit=1000))
    answer = ask(served, "/api/v1/jobs", "POST", json.dumps(SPEC))
    assert answer.status == 403
    assert "--token-file" in answer.text
    assert len(store.jobs(limit=1000)) == before
    assert ask(served, "/api/v1/jobs").status == 200
    assert (
        ask(
            guarded, "/api/v1/jobs", "POST", json.dumps(SPEC), Authorization=f"Bearer {TOKEN}"
        ).status
        == 201
    )


def test_a_form_of_the_page_itself_is_accepted(served: ServedPage, store: Client, job: str) -> None:
    answer = act(served, f"/jobs/{job}/pause", Origin=served.origin, Sec_Fetch_Site="same-origin")
    assert answer.status == 303
    assert intent(store, job) == "pause"


@pytest.mark.parametrize(
    "name", ["Forwarded", "X_Forwarded_For", "X_Forwarded_Host", "X_Real_Ip", "Via"]
)
def test_a_proxy_does_not_make_a_page_without_a_token_public(
    served: ServedPage, guarded: ServedPage, name: str
) -> None:
    """A proxy may call it by a loopback address, whatever the name was by which it was asked
    itself.
    """
    answer = ask(served, "/", **{name: "192.0.2.7"})
    assert answer.status == 403
    assert "--token-file" in answer.text
    assert ask(guarded, "/", Authorization=f"Bearer {TOKEN}", **{name: "192.0.2.7"}).status == 200


# -- who has no token ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "methods"),
    routes(),
    ids=lambda one: one if isinstance(one, str) else "-".join(sorted(one)),
)
def test_every_address_except_login_and_probe_requires_the_token(
    guarded: ServedPage, path: str, methods: set[str]
) -> None:
    for method in methods - {"HEAD"}:
        answer = ask(guarded, path, method)
        assert answer.status == (
            200 if path in ("/healthz", "/login") and method == "GET" else 401
        ), method


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer \xff\xfe"},
        {"Cookie": f"unstuck={TOKEN}"},
        {"Cookie": "unstuck=anna.99999999999."},
        {"Cookie": "unstuck=anna.99999999999." + "0" * 64},
        {"Cookie": "unstuck=anna.9" + "9" * 5000 + ".0"},
        {"Cookie": 'unstuck="\\377'},
    ],
    ids=str,
)
def test_a_wrong_token_is_refused(guarded: ServedPage, headers: dict[str, str]) -> None:
    assert ask(guarded, "/", **headers).status == 401


def test_a_token_in_an_address_is_ignored(guarded: ServedPage) -> None:
    """An address is kept in histories and logs."""
    assert ask(guarded, f"/?token={TOKEN}").status == 401
    assert ask(guarded, f"/login?user=anna&token={TOKEN}").headers["Set-Cookie"] is None


def login(page: ServedPage, to: str = "/", user: str = "anna") -> RawResponse:
    return act(page, "/login", {"user": user, "token": TOKEN, "to": to}, Origin=page.origin)


def test_a_login_admits_and_its_cookie_is_valid_only_for_the_page(guarded: ServedPage) -> None:
    answer = login(guarded, "/jobs")
    assert (answer.status, answer.headers["Location"]) == (303, "/jobs")
    cookie = answer.headers["Set-Cookie"]
    assert "httponly" in cookie.lower()
    assert "samesite=strict" in cookie.lower()
    assert TOKEN not in cookie
    assert ask(guarded, "/jobs", Cookie=cookie.partition(";")[0]).status == 200


def test_a_cookie_with_another_time_or_name_is_invalid(guarded: ServedPage) -> None:
    name, until, signature = (
        login(guarded).headers["Set-Cookie"].partition(";")[0].removeprefix("unstuck=").split(".")
    )
    for forged in (
        f"bert.{until}.{signature}",
        f"{name}.{int(until) + 1}.{signature}",
        f"{name}.{until}.",
        f"{name}.{until}",
    ):
        assert ask(guarded, "/", Cookie=f"unstuck={forged}").status == 401


@pytest.mark.parametrize(
    "to",
    [
        "https://evil.example.com",
        "//evil.example.com",
        "/\\evil.example.com",
        "\\\\evil.example.com",
        "/\t/evil.example.com",
        "/\r\nSet-Cookie: a=b",
        "javascript:alert(1)",
        "/%2f/evil.example.com",
        " //evil.example.com",
    ],
    ids=repr,
)
def test_a_login_redirects_to_no_other_site(guarded: ServedPage, to: str) -> None:
    answer = login(guarded, to)
    assert answer.status == 303
    assert re.match(r"/(?![/\\\t\r\n])", answer.headers["Location"])
    assert len(answer.headers.get_all("Set-Cookie")) == 1
    form = ask(guarded, "/login?" + urlencode({"to": to})).text
    assert "evil.example.com" not in re.sub(r'(value|hx-get)="[^"]*"', "", form)


@pytest.mark.parametrize(
    "user",
    [
        "a\r\nSet-Cookie: x=y",
        "anna; Path=/; Domain=x",
        '"><script>',
        "\x1b[31m\u202eanna",
        "я" * 3000,
    ],
)
def test_a_login_name_is_treated_as_plain_text(guarded: ServedPage, user: str) -> None:
    answer = login(guarded, user=user)
    assert answer.status == 303
    (cookie,) = answer.headers.get_all("Set-Cookie")
    assert cookie.count(";") == 4
    assert ask(guarded, "/", Cookie=cookie.partition(";")[0], **HTML).text.count("<script>") == 0


def test_the_log_of_the_page_contains_no_token(guarded: ServedPage) -> None:
    ask(guarded, f"/?token={TOKEN}")
    login(guarded)
    act(guarded, "/login", {"user": "anna", "token": TOKEN + "x"}, Origin=guarded.origin)
    assert TOKEN not in guarded.log.read_text()


# -- a page that only shows ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shown(redis_server: RedisServer, home: Path) -> Iterator[ServedPage]:
    """A page that only shows."""
    with page_of(redis_server.url, home, "--read-only") as page:
        yield page


@pytest.mark.variant
@pytest.mark.parametrize(
    "path", [path for path, methods in routes() if "POST" in methods and path != "/login"]
)
def test_a_read_only_page_accepts_no_action(
    shown: ServedPage, store: Client, job: str, path: str
) -> None:
    paths = {path, path.replace("/x", f"/{job}", 1)} | {
        f"/jobs/{job}/{command}" for command in INTENTS
    }
    for target in paths:
        answer = act(shown, target, Origin=shown.origin, Sec_Fetch_Site="same-origin")
        assert answer.status == 403, (target, answer.text)
    assert intent(store, job) == "run"


# -- odd requests ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static/..%5capp.py",
        "/static//etc/passwd",
        "/static/%2fetc/passwd",
        "/static/....//app.py",
        "/static/%00",
        "/static/vendor",
        "/static/",
        "/static/templates/base.html",
    ],
)
def test_only_files_of_the_page_can_be_read(served: ServedPage, path: str) -> None:
    answer = ask(served, path)
    assert answer.status in (400, 404, 405), answer.body[:200]


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/..",
        "/jobs/%2e%2e%2f",
        "/jobs/%00",
        "/jobs/%0d%0aX: y",
        "/jobs/" + "a" * 5000,
        "/jobs/%ff%fe",
        "/jobs/last%1b[31m",
        "/schedules/%2e%2e",
        "/schedules/%00",
        "/schedules/%ff",
        "/datasets/%2e%2e%2f%2e%2e",
        "/datasets/%00",
        "/datasets/%ff",
        "/datasets/_log",
        "/jobs?limit=-1",
        "/jobs?limit=999999999999",
        "/jobs?limit=x",
        "/jobs?status=%00",
        "/jobs?status=x&name=[",
        "/jobs?since=x",
        "/jobs?before=%ff",
        "/?said=%ff",
        "/?said=x",
        "/fleet?x=%ff",
        "/api/v1/jobs?limit=x",
        "/api/v1/jobs/%00",
        "/api/v1/nothing",
    ],
)
def test_an_odd_address_is_answered_with_a_message_and_no_traceback(
    served: ServedPage, path: str
) -> None:
    answer = ask(served, path.replace(" ", "%20"))
    assert answer.status in (200, 307, 400, 404, 409, 422), answer.text
    assert "Traceback" not in answer.text
    assert "X" not in answer.headers


def test_every_response_has_restrictive_security_headers(
    served: ServedPage, guarded: ServedPage, job: str
) -> None:
    paths = ("/", f"/jobs/{job}", "/nothing", "/static/style.css", "/api/v1/nothing")
    answers = [
        *(ask(served, path) for path in paths),
        ask(served, "/", Host="another.name"),
        ask(guarded, "/"),
        ask(guarded, "/", **HTML),
        act(served, f"/jobs/{job}/pause", Origin="null"),
    ]
    for answer in answers:
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "Server" not in answer.headers
    assert "no-store" in answers[0].headers["Cache-Control"]


def test_an_endless_body_is_cut_off(served: ServedPage, job: str) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as link:
        link.sendall(
            (
                f"POST /jobs/{job}/pause HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
                "chunked\r\n\r\n"
            ).encode()
        )
        sent, answered = 0, b""
        link.setblocking(False)
        while sent < 200 * 2**20 and not answered:
            try:
                sent += link.send(b"10000\r\n" + b"a" * 65536 + b"\r\n")
            except BlockingIOError:
                pass
            except ConnectionError:
                break
            try:
                answered = link.recv(65536)
            except BlockingIOError:
                pass
            except ConnectionError:
                break
    assert sent < 50 * 2**20
    assert ask(served, "/healthz").status == 200


@pytest.mark.parametrize("length", [10**12, 70_000])
def test_a_body_with_a_large_declared_length_is_refused_before_it_is_sent(
    served: ServedPage, length: int
) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as link:
        link.sendall(
            f"POST /jobs/x/pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode()
        )
        assert b" 413 " in link.recv(65536)


def test_oversized_and_malformed_forms_have_no_effect(
    served: ServedPage, store: Client, job: str
) -> None:
    many = "&".join(f"f{number}=1" for number in range(1000))
    for body, kind in (
        (many, FORM["Content-Type"]),
        ("{}", "application/json"),
        ("\x00\xff", "multipart/form-data; boundary=x"),
    ):
        assert ask(
            served, f"/jobs/{job}/nothing", "POST", body, Content_Type=kind, Origin=served.origin
        ).status in (
            400,
            404,
            405,
            415,
        )
    assert intent(store, job) == "run"


def test_idle_clients_block_no_other_client(served: ServedPage) -> None:
    """Given a thousand connections that are idle or stop in the middle of a request; then another
    one is answered.
    """
    with ExitStack() as ends:
        for number in range(1000):
            link = ends.enter_context(
                socket.create_connection(("127.0.0.1", served.port), timeout=60)
            )
            if number % 3 == 1:
                link.sendall(
                    b"POST /jobs/x/pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\na"
                )
            elif number % 3 == 2:
                link.sendall(b"GET / HTTP/1.1\r\nHost: loc")
        assert ask(served, "/healthz").status == 200
        assert ask(served, "/").status == 200
    assert ask(served, "/").status == 200
