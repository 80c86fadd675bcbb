# SPDX-License-Identifier: Apache-2.0
"""Sphinx: a Mermaid state diagram as a table of transitions.

Repository browsers draw these diagrams. The site would need a large script for it, so it shows their text as a table.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.transforms import SphinxTransform

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_TRANSITION = re.compile(r"(\S+) --> (\S+?)(?:: (.*))?")
_HEADINGS = ("from", "to", "when")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the transform."""
    app.add_transform(_AsTables)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class _AsTables(SphinxTransform):
    default_priority = 400

    def apply(self) -> None:
        for block in list(self.document.findall(nodes.literal_block)):
            if block.get("language") == "mermaid":
                block.replace_self(_table(transitions(block.astext())))


def transitions(text: str) -> list[tuple[str, str, str]]:
    """The transitions of a diagram.

    Raises:
        ValueError: a line is not understood.
    """
    first, *lines = text.strip().splitlines()
    if first != "stateDiagram-v2":
        raise ValueError(f"only state diagrams can be shown, not {first!r}")
    found = []
    for line in lines:
        match = _TRANSITION.fullmatch(line.strip())
        if match is None:
            raise ValueError(f"this line of a state diagram is not a transition: {line!r}")
        before, after, when = match.groups("")
        found.append((*("start or end" if state == "[*]" else state for state in (before, after)), when))
    return found


def _table(rows: list[tuple[str, str, str]]) -> nodes.table:
    group = nodes.tgroup(cols=len(_HEADINGS))
    group += [nodes.colspec(colwidth=width) for width in (30, 30, 40)]
    group += nodes.thead("", _row(_HEADINGS, nodes.Text))
    group += nodes.tbody("", *(_row(row, _code) for row in rows))
    return nodes.table("", group)


def _code(text: str) -> nodes.Node:
    return nodes.literal(text, text) if text.isupper() else nodes.Text(text)


def _row(cells: tuple[str, ...], show: object) -> nodes.row:
    assert callable(show)
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", show(cell))) for cell in cells))
