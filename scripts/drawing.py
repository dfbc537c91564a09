"""A few shapes in SVG: boxes, arrows and lines of text.

The diagrams of the docs are drawn from them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from html import escape

Point = tuple[float, float]

INK, SOFT, PAPER = "#1f2933", "#52606d", "#ffffff"
FONT = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"


@dataclass
class Drawing:
    """One picture.

    All measures are pixels, and every point is ``(x, y)`` from the upper left corner.
    """

    width: int
    height: int
    title: str
    shapes: list[str] = field(default_factory=list)

    def box(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        *text: str,
        fill: str = "#e6f0fa",
        round: float = 8,
    ) -> None:
        """A box with lines of text: the first one is bold, the others are small."""
        self.shapes.append(
            f"<rect x='{x}' y='{y}' width='{w}' height='{h}' rx='{round}' fill='{fill}' "
            f"stroke='{SOFT}'/>"
        )
        top = y + h / 2 - (len(text) - 1) * 8.5 + 5
        for n, line in enumerate(text):
            self.text(x + w / 2, top + n * 17, line, bold=n == 0, small=n > 0)

    def frame(self, x: float, y: float, w: float, h: float, text: str) -> None:
        """A dashed frame with its name inside, at the top."""
        self.shapes.append(
            f"<rect x='{x}' y='{y}' width='{w}' height='{h}' rx='10' fill='none' stroke='{SOFT}'"
            " stroke-dasharray='5 4'/>"
        )
        self.text(x + w / 2, y + 19, text, small=True)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        bold: bool = False,
        small: bool = False,
        anchor: str = "middle",
    ) -> None:
        weight = " font-weight='600'" if bold else ""
        size, colour = (12, SOFT) if small else (14, INK)
        self.shapes.append(
            f"<text x='{x:g}' y='{y:g}' font-size='{size}' fill='{colour}' "
            f"text-anchor='{anchor}'{weight}>{escape(text)}</text>"
        )

    def label(self, x: float, y: float, text: str) -> None:
        """A small text in the middle of ``x``, on paper that hides the lines behind it."""
        wide = 6.1 * len(text) + 8
        self.shapes.append(
            f"<rect x='{x - wide / 2:.1f}' y='{y - 12:g}' width='{wide:.1f}' height='15' "
            f"fill='{PAPER}'/>"
        )
        self.text(x, y, text, small=True)

    def arrow(self, start: Point, end: Point, bend: float = 0, dashed: bool = False) -> None:
        """An arrow from ``start`` to ``end``; ``bend`` moves its middle so far to the left of its
        direction.
        """
        (x1, y1), (x2, y2) = start, end
        length = math.dist(start, end)
        mx, my = (
            (x1 + x2) / 2 + bend * (y2 - y1) / length,
            (y1 + y2) / 2 - bend * (x2 - x1) / length,
        )
        line = " stroke-dasharray='6 4'" if dashed else ""
        self.shapes.append(
            f"<path d='M{x1:g} {y1:g} Q{mx:.1f} {my:.1f} {x2:g} {y2:g}' fill='none' "
            f"stroke='{SOFT}' stroke-width='1.5'{line}/>"
        )
        # The tip is a shape of its own: not every program that shows SVG turns markers.
        angle = math.atan2(y2 - my, x2 - mx)
        corners = [end] + [
            (x2 - 11 * math.cos(angle + turn), y2 - 11 * math.sin(angle + turn))
            for turn in (0.4, -0.4)
        ]
        self.shapes.append(
            f"<path d='M{' L'.join(f'{x:.1f} {y:.1f}' for x, y in corners)} z' fill='{SOFT}'/>"
        )

    def line(self, start: Point, end: Point) -> None:
        self.shapes.append(
            f"<path d='M{start[0]:g} {start[1]:g} L{end[0]:g} {end[1]:g}' stroke='{SOFT}' "
            "stroke-dasharray='2 4'/>"
        )

    def svg(self) -> str:
        shapes = "\n".join(self.shapes)
        return f"""<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {self.width} {self.height}' \
width='{self.width}' height='{self.height}' role='img' {FONT}>
<title>{escape(self.title)}</title>
<rect width='{self.width}' height='{self.height}' rx='12' fill='{PAPER}'/>
{shapes}
</svg>
"""
