"""A Chromium of this machine that tests drive, one for each file, and what a page did that it must
not do.
"""

# Playwright's driver comes from its wheel, and the browser from the system: nothing is downloaded.

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
from playwright.sync_api import Browser, Error, Page, sync_playwright

from tests.support.programs.processes import lives
from tests.support.servers import wait_until

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WITHOUT = (
    f"no browser on this machine (looked for {', '.join(NAMES)}): make setup installs "
    "Chromium where it can"
)


def chromium() -> str | None:
    """The path of a Chromium on the PATH."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def browser() -> Iterator[Browser]:
    """One browser, ended with its driver when the block is left, also where neither answers any
    more.
    """
    me = psutil.Process()
    before = set(me.children(recursive=True))
    # Root has no sandbox; a container has little of /dev/shm.
    options = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.getuid() == 0 else [])]
    try:
        with sync_playwright() as playwright:
            started = playwright.chromium.launch(executable_path=chromium(), args=options)
            try:
                yield started
            finally:
                started.close()
    finally:
        left = [one for one in set(me.children(recursive=True)) - before if _of_a_browser(one)]
        for one in left:
            one.kill()
        wait_until(lambda: not [one for one in left if lives(one)], 10, "the browser to be gone")


def _of_a_browser(process: psutil.Process) -> bool:
    try:
        line = " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False
    return "playwright" in line or "chrom" in line


class Watched:
    """One page, and the complaints that it gave rise to: errors, refused contents, dialogs,
    requests to elsewhere.
    """

    def __init__(self, page: Page, origin: str) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on(
            "dialog",
            lambda dialog: (
                self.complaints.append(f"a dialog: {dialog.message}"),
                dialog.dismiss(),
            ),
        )
        page.on("pageerror", lambda error: self.complaints.append(f"an error of a script: {error}"))
        page.on("console", self._said)
        page.on("request", lambda request: self._asked(request.url, origin))

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def _asked(self, url: str, origin: str) -> None:
        if not url.startswith((origin, "about:", "data:")):
            self.complaints.append(f"a request to elsewhere: {url}")

    def forgive(self, *texts: str) -> None:
        """Forget the complaints that hold one of the texts: the test provoked them."""
        self.complaints = [one for one in self.complaints if not any(text in one for text in texts)]


@contextmanager
def watched(started: Browser, origin: str, **options: Any) -> Iterator[Watched]:
    """A new page of a new profile at ``origin``; the block fails if anything is left of its
    complaints.
    """
    context = started.new_context(base_url=origin, **options)
    context.set_default_timeout(30_000)
    try:
        made = Watched(context.new_page(), origin)
        yield made
        if options.get("java_script_enabled", True):
            made.page.wait_for_load_state()
            made.page.evaluate(
                "new Promise(requestAnimationFrame)"
            )  # what the page did until now is heard before it
        assert made.complaints == [], "\n".join(made.complaints)
    finally:
        try:
            context.close()
        except Error:
            if started.is_connected():
                raise


def violations(page: Page) -> list[str]:
    """Serious faults for people with a keyboard, a screen reader or weak eyes, as axe-core finds
    them.
    """
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        (
            f"{one['id']} ({one['impact']}): {one['help']}: {node['html'][:200]}: "
            f"{node.get('failureSummary', '')}"
        )
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def overflow(page: Page) -> int:
    """By how many pixels the page is wider than its window."""
    return page.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
