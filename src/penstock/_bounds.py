# SPDX-License-Identifier: Apache-2.0
"""How much memory may be made of what a peer sent: a small frame must not fill the machine."""

from __future__ import annotations

from typing import Final

DECODED_PER_BYTE: Final = 20
DECODED_ANYWAY: Final = 1024 * 1024


def most_decoded_bytes(wire_bytes: int) -> int:
    """The bytes of memory that so many bytes from the wire may become, decompressed or decoded."""
    return DECODED_PER_BYTE * wire_bytes + DECODED_ANYWAY
