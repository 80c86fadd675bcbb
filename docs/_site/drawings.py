# SPDX-License-Identifier: Apache-2.0
"""Sphinx: our drawings become part of the page, so that they have the colours of its theme, light or dark.

As a file a drawing asks the system which of the two it is; as a part of the page its lines have the colour of the text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.transforms import SphinxTransform

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_STYLE = re.compile(r"<style>.*?</style>\n?", re.DOTALL)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the transform."""
    app.add_transform(_Inline)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class _Inline(SphinxTransform):
    default_priority = 400  # before images are collected

    def apply(self) -> None:
        folder = Path(self.document["source"]).parent
        for image in list(self.document.findall(nodes.image)):
            path = folder / image["uri"]
            if path.suffix != ".svg" or 'class="drawing"' not in (text := path.read_text(encoding="utf-8")):
                continue
            self.env.note_dependency(str(path))
            inline = f'<div class="drawing-frame">{_STYLE.sub("", text)}</div>'
            image.replace_self(nodes.raw("", inline, format="html"))
