"""Write the pages of the documentation that are made from the code; they are not committed.

``make docs`` calls ``python -m scripts.generated_pages`` before it builds the site.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scripts import api_page, commands_page, guarantees_page, http_api_page, problems_page

DOCS = Path(__file__).parents[1] / "docs"
PAGES: dict[Path, Callable[[], str]] = {
    DOCS / "api.md": api_page.page,
    DOCS / "commands.md": commands_page.page,
    DOCS / "guarantees.md": guarantees_page.page,
    DOCS / "http-api.md": http_api_page.page,
    DOCS / "problems.md": problems_page.page,
}


def main() -> None:
    for path, page in PAGES.items():
        path.write_text(page())


if __name__ == "__main__":
    main()
