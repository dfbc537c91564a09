"""The link of a notice opens the screen of what it tells of."""

from __future__ import annotations

from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.page.web_page import page_of
from tests.support.servers import RedisServer
from unstuck import Client, Settings
from unstuck.coordinator.model.notice import Notice
from unstuck.coordinator.notices.message import message_of

LOAD = {"name": "load", "spark": False, "steps": [{"python": "steps:load"}]}


@pytest.mark.parametrize("ending", ["", "/"])
def test_the_link_of_a_notice_opens_its_job_or_schedule(
    redis_server: RedisServer, tmp_path: Path, ending: str
) -> None:
    with Client(
        Settings(redis_url=redis_server.url, warehouse=str(tmp_path / "warehouse"))
    ) as client:
        job = client.submit({"name": "sales", "groups": [LOAD]}).id
        client.schedules.set({"name": "nightly-2.0", "groups": [LOAD], "schedule": {"every": "1h"}})
    with page_of(redis_server.url, tmp_path) as page:
        for about in (
            {"kind": "job", "name": "sales", "job": job},
            {"kind": "schedule", "name": "nightly-2.0"},
        ):
            link = message_of(notice(**about), page.origin + ending, 0.0).link
            with urlopen(link) as answer:
                text = answer.read().decode()
            assert f"<h1>{about['name']} " in text


def notice(kind: str, name: str, job: str = "") -> Notice:
    return Notice(
        "n1", ("ops",), "failed", kind, name, job, "p1", at=0.0, since=0.0, status="FAILED", text=""
    )
