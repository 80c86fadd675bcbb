# SPDX-License-Identifier: Apache-2.0
"""Sphinx: docstrings are plain text, not reStructuredText.

Those of modules are for people who read the code, and are left out. So are names that a class does not have: they have
a docstring for `help`, which says so. A `*` is a star, and an indented paragraph is code.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from penstock._other_clients import OtherClientsName

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_STAR = re.compile(r"(?<![*\\])\*(?!\*)")
_BEFORE_NAPOLEON = 400


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the events."""
    app.connect("autodoc-process-docstring", _plain, priority=_BEFORE_NAPOLEON)
    app.connect("autodoc-skip-member", skips_member)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _plain(_: Sphinx, what: str, __: str, ___: object, ____: object, lines: list[str]) -> None:
    lines[:] = [] if what == "module" else as_rest(lines)


def skips_member(_: object, __: str, ___: str, member: object, ____: bool, _____: object) -> bool | None:
    """True for what the reference leaves out; None where autodoc decides."""
    return True if isinstance(member, OtherClientsName) else None


def as_rest(lines: list[str]) -> list[str]:
    """The lines of a docstring in reStructuredText."""
    found: list[str] = []
    in_code = False
    for line in lines:
        indented = line.startswith("    ")
        if line and not indented:
            in_code = False
        elif indented and found and not found[-1] and not in_code:
            # A section of a Google docstring begins in the line behind its name, without a gap.
            in_code = not any(before.startswith(" ") for before in found if before)
            if in_code:
                found += ["::", ""]
        found.append(line if in_code else _escaped(line))
    return found


def _escaped(line: str) -> str:
    parts = line.split("`")
    parts[::2] = [_STAR.sub(r"\\*", part) for part in parts[::2]]  # the others are code
    return "`".join(parts)
