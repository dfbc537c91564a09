"""Writes SVG that needs no style sheet: escaped text, colors as attributes, classes for a page.

A strict content security policy allows it, because it has no styles and no scripts. Text and lines
have the color of the surrounding text.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from rich.cells import cell_len, set_cell_size

from unstuck.tasks.terminal_text import printable

SANS = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"
CHARACTER = 0.62  # width of a character of MONO, as a share of the font size
INK = "#1f2933"  # color of text and lines in a file of its own
SOFT = 0.7  # opacity of secondary text and lines


class Svg(str):
    """A picture. Templates insert it without escaping."""

    __slots__ = ()

    def __html__(self) -> str:
        return self


def element(name: str, *content: str, **attributes: Any) -> str:
    """Return an element.

    Args:
        content: elements, or escaped text.
        attributes: ``font_size`` is written as ``font-size``, and ``class_`` as ``class``. None and
            empty text are left out.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_written(value)}"'
        for key, value in attributes.items()
        if value is not None and value != ""
    )
    return f"<{name}{written}>{''.join(content)}</{name}>" if content else f"<{name}{written}/>"


def text(x: float, y: float, words: str, **attributes: Any) -> str:
    return element(
        "text", plain(words), x=x, y=y, fill=attributes.pop("fill", "currentColor"), **attributes
    )


def title(words: str) -> str:
    """Return the title of an element: its tooltip, and its text for screen readers."""
    return element("title", plain(words))


def linked(href: str, *content: str) -> str:
    """Return ``content`` within a link, if ``href`` is not empty."""
    return element("a", *content, href=href) if href else "".join(content)


def picture(
    width: float, height: float, label: str, content: Iterable[str], *, role: str = "img"
) -> Svg:
    """Return a whole picture.

    Args:
        label: the text for screen readers.
        role: ``img``, or ``group`` for a picture with links, which readers do not find in an image.
    """
    return Svg(
        element(
            "svg",
            title(label),
            *content,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {_written(width)} {_written(height)}",
            width=width,
            height=height,
            role=role,
            aria_label=label,
            font_family=SANS,
        )
    )


def on_paper(drawn: Svg) -> str:
    """Return a picture as a file of its own, on white paper, because viewers may be dark."""
    head, rest = drawn.split("</title>", 1)
    paper = element("rect", width="100%", height="100%", fill="#ffffff")
    inked = head.replace("<svg ", f'<svg color="{INK}" ', 1)
    return f"{inked}</title>{paper}{rest}\n"


def cut(words: str, width: float, size: float) -> str:
    """Return ``words`` in one line, cut to ``width`` pixels of MONO at this font size."""
    words = " ".join(words.split())
    cells = int(width / (size * CHARACTER) + 0.01)
    return (
        words
        if cell_len(words) <= cells
        else set_cell_size(words, max(cells - 1, 0)).rstrip() + "…"
    )


def width_of(words: str, size: float) -> float:
    """Return the width of ``words`` in pixels of MONO at this font size."""
    return cell_len(words) * size * CHARACTER


def plain(words: str) -> str:
    return escape(printable(words))


def _written(value: Any) -> str:
    return f"{round(value, 2):g}" if isinstance(value, float) else plain(str(value))
