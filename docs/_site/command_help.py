# SPDX-License-Identifier: Apache-2.0
"""Sphinx: the help text of a command, as its parser prints it.

```{command-help} broker start
```
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, ClassVar

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_WIDTH = "100"


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("command-help", _CommandHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class _CommandHelp(SphinxDirective):
    optional_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar[dict[str, object]] = {}  # type: ignore[assignment]

    def run(self) -> list[nodes.Node]:
        text = help_of(self.arguments[0].split() if self.arguments else [])
        return [nodes.literal_block(text, text, language="text")]


def help_of(words: list[str]) -> str:
    """What `penstock WORDS --help` prints.

    Raises:
        ValueError: there is no such command.
    """
    from penstock.cli.main import build_parser

    os.environ["COLUMNS"] = _WIDTH
    parser: argparse.ArgumentParser = build_parser()
    for word in words:
        found = [
            action.choices[word]
            for action in parser._actions  # noqa: SLF001  # argparse has no public way to ask
            if isinstance(action, argparse._SubParsersAction) and word in action.choices  # noqa: SLF001
        ]
        if not found:
            raise ValueError(f"penstock has no command {' '.join(words)!r}")
        (parser,) = found
    return parser.format_help()
