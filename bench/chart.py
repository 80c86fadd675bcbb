# SPDX-License-Identifier: Apache-2.0
"""The chart: one bar for each contender, one group for each case, a thin line for the spread."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape

from bench.figures import Row, rows
from bench.model import Results

WIDTH = 720
LABELS = 290  # room for names on the left
VALUES = 70  # room for numbers on the right
BAR = 22
GAP = 6
GROUP_TITLE = 34
OURS, OTHERS, SPREAD, TEXT = "#0b6e8f", "#b8bec4", "#30363c", "#30363c"


def svg(results: Results) -> str:
    """Records per second, as a drawing."""
    found = rows(results)
    full = max(row.rate.high for row in found)
    pieces: list[str] = []
    y = 30
    for case in results.cases:
        pieces.append(_text(12, y + 20, case.name, weight="bold"))
        y += GROUP_TITLE
        for row in (row for row in found if row.case == case.name):
            pieces.extend(_bar(row, y, full))
            y += BAR + GAP
    height = y + 16
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="13">'
    )
    background = f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    title = _text(12, 22, "Million records per second, median; the thin line is the spread of the rounds")
    return "\n".join([head, background, title, *pieces, "</svg>", ""])


def _bar(row: Row, y: int, full: float) -> Iterator[str]:
    def x(rate: float) -> float:
        return LABELS + rate / full * (WIDTH - LABELS - VALUES)

    colour = OURS if row.contender.startswith("penstock") else OTHERS
    middle = y + BAR / 2
    yield _text(24, y + 16, row.title)
    yield f'<rect x="{LABELS}" y="{y}" width="{x(row.rate.median) - LABELS:.1f}" height="{BAR}" fill="{colour}"/>'
    yield (
        f'<line x1="{x(row.rate.low):.1f}" y1="{middle}" x2="{x(row.rate.high):.1f}" y2="{middle}" '
        f'stroke="{SPREAD}" stroke-width="2"/>'
    )
    mark = "not valid" if row.lost else f"{row.rate.median / 1e6:.2f}"
    yield _text(x(max(row.rate.high, row.rate.median)) + 8, y + 16, mark)


def _text(x: float, y: float, words: str, weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{TEXT}" font-weight="{weight}">{escape(words)}</text>'
