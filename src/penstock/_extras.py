# SPDX-License-Identifier: Apache-2.0
"""How to install what only some programs need. There is no release on PyPI yet: this is the place to change then."""

from __future__ import annotations


def how_to_install(extra: str, *packages: str) -> str:
    """The command, for the end of an error's text: the packages themselves, or the extra that brings them."""
    return f"pip install {' '.join(packages)}, or in a checkout of Penstock: pip install '.[{extra}]'"
