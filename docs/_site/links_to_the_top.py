# SPDX-License-Identifier: Apache-2.0
"""Sphinx: pages that stand at the top of the repository are pages of the site, too.

In the repository they are linked as `../CHANGELOG.md`. A page of the site has their text, and links lead there.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_PAGES = {"README": "index", "CHANGELOG": "changelog", "CONTRIBUTING": "contributing"}
_WHOLE = {"changelog": "CHANGELOG.md", "contributing": "CONTRIBUTING.md"}
_FROM_DOCS = re.compile(r"\]\((?:\.\./)+(README|CHANGELOG|CONTRIBUTING)\.md(#[\w-]*)?\)")
_FROM_THE_TOP = re.compile(r"\]\((README|CHANGELOG|CONTRIBUTING)\.md(#[\w-]*)?\)")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the event."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _read(app: Sphinx, page: str, content: list[str]) -> None:
    here = posixpath.dirname(page) or "."
    link = _FROM_DOCS
    if page in _WHOLE:
        path = Path(app.srcdir).parent / _WHOLE[page]
        app.env.note_dependency(str(path))
        content[0] = path.read_text(encoding="utf-8").replace("](docs/", "](")
        link = _FROM_THE_TOP
    content[0] = link.sub(
        lambda match: f"]({posixpath.relpath(_PAGES[match[1]], here)}.md{match[2] or ''})", content[0]
    )
