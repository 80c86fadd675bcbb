# SPDX-License-Identifier: Apache-2.0
"""Checks the links between the pages of the documentation: the file must be there, and the heading in it as well."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
_HEADING = re.compile(r"#{1,6} +(.+)")
_FENCE = re.compile(r"^(`{3,}).*?^\1$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")


def pages(root: Path = ROOT) -> list[Path]:
    """The pages: those at the top, and all below docs."""
    return sorted([*root.glob("*.md"), *root.glob("docs/**/*.md")])


def broken_links(root: Path = ROOT) -> list[str]:
    """One line for each link that leads nowhere."""
    return [
        f"{page.relative_to(root)}: {link} ({problem})"
        for page in pages(root)
        for link in links(page.read_text(encoding="utf-8"))
        if (problem := _problem(page, link)) is not None
    ]


def links(text: str) -> Iterator[str]:
    """The targets of a page's links; what stands in code is none."""
    for match in _LINK.finditer(_CODE.sub("", _FENCE.sub("", text))):
        yield match.group(1)


def anchors(text: str) -> set[str]:
    """The names by which the headings of a page can be linked."""
    headings = (_HEADING.fullmatch(line) for line in _FENCE.sub("", text).splitlines())
    return {_anchor(heading.group(1)) for heading in headings if heading is not None}


def _anchor(heading: str) -> str:
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


def _problem(page: Path, link: str) -> str | None:
    if re.match(r"[a-z][a-z0-9+.-]*:", link):
        return "the documentation refers to itself alone"
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    if not target.exists():
        return "there is no such file"
    if anchor and anchor not in anchors(target.read_text(encoding="utf-8")):
        return "there is no such heading"
    return None


def main() -> None:
    """Report broken links, and fail if there are any."""
    broken = broken_links()
    if broken:
        sys.exit("\n".join(["links that lead nowhere:", *broken]))
    print(f"{len(pages())} pages, all links lead somewhere")


if __name__ == "__main__":
    main()
