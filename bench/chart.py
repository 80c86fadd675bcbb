# SPDX-License-Identifier: Apache-2.0
"""The charts: bars for contenders with a thin line for the spread, and lines for what changes over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from xml.sax.saxutils import escape

from bench.figures import Row, rows
from bench.model import Results

WIDTH = 760
LABELS = 290  # room for names on the left
VALUES = 170  # room for numbers on the right
BAR = 22
GAP = 6
GROUP_TITLE = 34
PANEL = 170  # height of one line's panel
OURS, OTHERS, SPREAD, TEXT = "#0b6e8f", "#b8bec4", "#30363c", "#30363c"
FIRST_CHOICE = ("throughput", "spark")  # the groups that are drawn when they were measured


def svg(results: Results) -> str:
    """Records per second, as a drawing: of the cases that matter most, or of all when those were not measured."""
    chosen = [case for case in results.cases if case.group in FIRST_CHOICE]
    found = [row for row in rows(results) if not row.latency_ms]
    if not any(row.case == case.name for row in found for case in chosen):
        chosen = [case for case in results.cases if not case.rate]
    names = {case.name for case in chosen}
    full = max((row.rate.high for row in found if row.case in names), default=1.0)
    pieces = [_text(12, 22, "Million records per second, median; the thin line is the spread of the rounds")]
    y = 30
    for case in chosen:
        group = [row for row in found if row.case == case.name]
        if not group:
            continue
        pieces.append(_text(12, y + 20, f"{case.name}: {case.title}", weight="bold"))
        y += GROUP_TITLE
        for row in group:
            pieces.extend(_bar(row, y, full))
            y += BAR + GAP
    return _drawing(y + 16, pieces)


def lines(title: str, series: Mapping[str, Sequence[float]]) -> str:
    """One panel for each series, from zero to its largest value, one below the other."""
    pieces = [_text(12, 22, title)]
    y = 40
    for name, values in series.items():
        pieces.extend(_panel(name, values, y))
        y += PANEL
    return _drawing(y, pieces)


def _panel(name: str, values: Sequence[float], y: int) -> Iterator[str]:
    left, right, top, bottom = 70, WIDTH - 30, y + 28, y + PANEL - 30
    largest = max([*values, 1e-9])
    step = (right - left) / max(1, len(values) - 1)
    points = [
        (left + number * step, bottom - value / largest * (bottom - top))
        for number, value in enumerate(values)
    ]
    yield _text(12, y + 16, name, weight="bold")
    yield f'<line x1="{left}" y1="{bottom}" x2="{right}" y2="{bottom}" stroke="{OTHERS}"/>'
    yield _text(12, top + 5, f"{largest:.3g}") + _text(12, bottom, "0")
    path = " ".join(f"{x:.1f},{height:.1f}" for x, height in points)
    yield f'<polyline points="{path}" fill="none" stroke="{OURS}" stroke-width="2"/>'
    for number, (x, height) in enumerate(points, 1):
        yield f'<circle cx="{x:.1f}" cy="{height:.1f}" r="3" fill="{OURS}"/>'
        yield _text(x - 4, bottom + 16, str(number))


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
    mark = "not valid" if row.lost else f"{row.rate.median / 1e6:.2f}, {row.cpu_us.median:.2f} us CPU each"
    yield _text(x(max(row.rate.high, row.rate.median)) + 8, y + 16, mark)


def _drawing(height: int, pieces: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="13">'
    )
    background = f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    return "\n".join([head, background, *pieces, "</svg>", ""])


def _text(x: float, y: float, words: str, weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{TEXT}" font-weight="{weight}">{escape(words)}</text>'
