# SPDX-License-Identifier: Apache-2.0
"""The charts of a pipeline's report, as inline SVG: no script, no font and no picture from elsewhere.

Colours are the page's CSS variables, so that a chart follows light and dark by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from penstock.spark.pipeline.stats import BatchFacts

_WIDTH, _HEIGHT = 760, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 14, 30  # room for the labels
_BINS = 60

_FADE = (
    '<defs><linearGradient id="fade" x1="0" y1="0" x2="0" y2="1"><stop offset="0" class="fade-top"/>'
    '<stop offset="1" class="fade-end"/></linearGradient></defs>'
)


# ---- rate over time


def rates(batches: Sequence[BatchFacts], seconds: float, bins: int = _BINS) -> list[float]:
    """Rows out per second in equal slices of the run; a batch's rows are spread over the time it took."""
    if seconds <= 0:
        return []
    width = seconds / bins
    rows = [0.0] * bins
    for batch in batches:
        end = min(batch.at, seconds)
        begin = max(0.0, min(end - batch.seconds, end - width / 1000))
        density = batch.rows_out / (end - begin) if end > begin else 0.0
        for position in range(int(begin / width), min(bins, int(end / width) + 1)):
            covered = min(end, (position + 1) * width) - max(begin, position * width)
            rows[position] += density * max(0.0, covered)
    return [count / width for count in rows]


def rate_chart(batches: Sequence[BatchFacts], seconds: float) -> str:
    """Rows out per second over the run."""
    values = rates(batches, seconds)
    if not any(values):
        return '<p class="none">No rows were written, so there is no rate to show.</p>'
    top = nice_ceiling(max(values))
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    step = wide / len(values)

    def y(value: float) -> float:
        return _TOP + high * (1 - value / top)

    points: list[str] = []
    for position, value in enumerate(values):
        left = _LEFT + position * step
        points += [f"{left:.1f},{y(value):.1f}", f"{left + step:.1f},{y(value):.1f}"]
    line = "M" + " L".join(points)
    floor = _TOP + high
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Rows per second over time">',
        _FADE,
    ]
    for quarter in range(5):
        value = top * quarter / 4
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        )
        parts.append(f'<text class="tick end" x="{_LEFT - 8}" y="{y(value) + 4:.1f}">{short(value)}</text>')
    for quarter in range(5):
        x = _LEFT + wide * quarter / 4
        anchor = ("start", "mid", "mid", "mid", "end")[quarter]
        parts.append(
            f'<text class="tick {anchor}" x="{x:.1f}" y="{_HEIGHT - 8}">{seconds * quarter / 4:.3g} s</text>'
        )
    parts.append(f'<path class="area" d="{line} L{_LEFT + wide},{floor} L{_LEFT},{floor} Z"/>')
    parts.append(f'<path class="line" d="{line}"/>')
    parts.append("</svg>")
    return "\n".join(parts)


def nice_ceiling(value: float) -> float:
    """The next of 1, 2, 4, 8 times a power of ten, for the top of an axis with four parts."""
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    return next(power * factor for factor in (1, 2, 4, 8, 10, 20) if power * factor >= value * 0.999999)


def short(value: float) -> str:
    """A number for an axis: 1.5k, 2M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


# ---- where rows went


@dataclass(frozen=True)
class Share:
    """One place where rows went."""

    label: str
    rows: int
    style: str  # a class of the page: good, dead, gone, dim


def flow_chart(came: int | None, shares: Sequence[Share]) -> str:
    """Bands from one bar on the left, as thick as the rows that took each way."""
    shares = [share for share in shares if share.rows > 0]
    total = sum(share.rows for share in shares)
    if not total:
        why = "No rows were counted" if came is None else "No rows came, so none went anywhere"
        return f'<p class="none">{why}.</p>'
    gap, bar, left, right = 26, 14, 150, 470
    full = 170.0
    height = full + gap * (len(shares) - 1) + 44
    start = (height - full) / 2
    parts = [f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="Where rows went">']
    parts.append(f'<rect class="node" x="{left}" y="{start:.1f}" width="{bar}" height="{full}" rx="3"/>')
    shown = total if came is None else came
    parts.append(
        _two_lines(
            left - 12, start + full / 2, f"{shown:,}", "rows in" if came is not None else "rows", "end"
        )
    )
    from_y, to_y = start, 22.0
    for share in shares:
        thick = full * share.rows / total
        drawn = max(thick, 1.5)
        middle = (left + bar + right) / 2
        a, b = left + bar, right
        path = (
            f"M{a},{from_y:.1f} C{middle},{from_y:.1f} {middle},{to_y:.1f} {b},{to_y:.1f} "
            f"L{b},{to_y + drawn:.1f} C{middle},{to_y + drawn:.1f} {middle},{from_y + drawn:.1f} "
            f"{a},{from_y + drawn:.1f} Z"
        )
        percent = 100 * share.rows / total
        title = f"<title>{escape(share.label)}: {share.rows:,} rows, {percent:.2f} %</title>"
        parts.append(f'<path class="band {share.style}" d="{path}">{title}</path>')
        parts.append(
            f'<rect class="end {share.style}" x="{b}" y="{to_y:.1f}" width="{bar}" height="{drawn:.1f}" rx="3"/>'
        )
        words = f"{share.rows:,} ({percent:.3g} %)"
        parts.append(_two_lines(b + bar + 12, to_y + drawn / 2, words, share.label, "start"))
        from_y += thick
        to_y += thick + gap
    parts.append("</svg>")
    return "\n".join(parts)


def _two_lines(x: float, y: float, first: str, second: str, anchor: str) -> str:
    second = second if len(second) <= 34 else f"{second[:31]}..."
    return (
        f'<text class="count {anchor}" x="{x}" y="{y - 2:.1f}">{escape(first)}</text>'
        f'<text class="tick {anchor}" x="{x}" y="{y + 14:.1f}">{escape(second)}</text>'
    )
