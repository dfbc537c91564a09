"""The site of the documentation, for Sphinx: ``make docs`` builds it into build/docs.

The source folder is the repository, so that a page may link to any file of it. The pages stay plain
Markdown, which reads as well on a code host; the navigation stands here.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from sphinx.application import Sphinx

project = "Unstuck"
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**.md"]
exclude_patterns = [".*", "build", "tests", "tasks", "coordinator", "src", "examples", "scripts"]
nitpicky = True
myst_heading_anchors = 4
highlight_language = "none"

html_theme = "furo"
html_title = "Unstuck"
html_copy_source = False
html_show_sphinx = False

NAVIGATION = {
    "Start": ["docs/first-hour", "docs/tutorial", "docs/from-airflow-and-dbt", "docs/README"],
    "Write jobs": [
        *(
            "docs/run",
            "docs/write-jobs",
            "docs/test-your-jobs",
            "docs/spec",
            "docs/schedules",
            "docs/notices",
        ),
    ],
    "Operate": [
        "docs/operate",
        "docs/web",
        "docs/http-api",
        "docs/metrics",
        "docs/security",
        "docs/troubleshooting",
        "docs/problems",
    ],
    "Why it holds": ["docs/guarantees", "docs/performance"],
    "Reference": [
        "docs/cli",
        "docs/commands",
        "docs/api",
        "docs/settings",
        "docs/glossary",
        "CHANGELOG",
    ],
    "Internals": [
        "docs/internals/how-it-works",
        "docs/internals/protocol",
        "docs/internals/keys",
        "docs/internals/failpoints",
        "docs/internals/simulation",
        "docs/internals/glossary",
        "CONTRIBUTING",
    ],
    "Decisions": [
        "docs/decisions/README",
        *(
            f"docs/decisions/{path.stem}"
            for path in sorted(Path(__file__).parent.glob("decisions/[0-9]*.md"))
        ),
    ],
}


def add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """Append the navigation to the first page; on the code host nobody needs to see it."""
    if docname == root_doc:
        for caption, pages in NAVIGATION.items():
            entries = "\n".join(pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n"


def add_index(app: Sphinx, exception: Exception | None) -> None:
    """Give the first page the name under which a web server looks for it."""
    if exception is None:
        shutil.copy(Path(app.outdir) / f"{root_doc}.html", Path(app.outdir) / "index.html")


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_navigation)
    app.connect("build-finished", add_index)
