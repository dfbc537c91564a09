"""Writes SVG that needs no style sheet: each text escaped, colours as presentation attributes,
classes for a page.

A strict content policy of a page allows it, since it holds no style and no script. Text and lines
take the colour of the text around them.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from rich.cells import cell_len, set_cell_size

from unstuck.tasks.terminal_text import printable

SANS = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"
CHARACTER = 0.62  # of the font size: the width of a character of MONO
INK = "#1f2933"  # of text and lines where there is no text around
SOFT = 0.7  # opacity of text and lines that matter less


class Svg(str):
    """A picture. A template may insert it as it is."""

    __slots__ = ()

    def __html__(self) -> str:
        return self


def element(name: str, *content: str, **attributes: Any) -> str:
    """An element. ``content``: elements, or text that was escaped; of a name like ``font_size``,
    ``_`` stands for ``-``, and ``class_`` is ``class``. An attribute that is None or empty is left
    out."""
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
    """The text of an element that a reader hears, and that is shown when the pointer stands on
    it.
    """
    return element("title", plain(words))


def linked(href: str, *content: str) -> str:
    """``content`` within a link, if there is one."""
    return element("a", *content, href=href) if href else "".join(content)


def picture(
    width: float, height: float, label: str, content: Iterable[str], *, role: str = "img"
) -> Svg:
    """A whole picture.

    Args:
        role: ``img``, or ``group`` where it holds links, which a reader would not find in an image.
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
    """A picture as a file of its own, on white paper: what shows it may be dark."""
    head, rest = drawn.split("</title>", 1)
    paper = element("rect", width="100%", height="100%", fill="#ffffff")
    inked = head.replace("<svg ", f'<svg color="{INK}" ', 1)
    return f"{inked}</title>{paper}{rest}\n"


def cut(words: str, width: float, size: float) -> str:
    """``words`` in one line, cut to so many pixels of MONO at this font size."""
    words = " ".join(words.split())
    cells = int(width / (size * CHARACTER) + 0.01)
    return (
        words
        if cell_len(words) <= cells
        else set_cell_size(words, max(cells - 1, 0)).rstrip() + "…"
    )


def width_of(words: str, size: float) -> float:
    """Pixels that ``words`` take in MONO at this font size."""
    return cell_len(words) * size * CHARACTER


def plain(words: str) -> str:
    return escape(printable(words))


def _written(value: Any) -> str:
    return f"{round(value, 2):g}" if isinstance(value, float) else plain(str(value))
