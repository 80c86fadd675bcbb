# SPDX-License-Identifier: Apache-2.0
"""Frames: a length of four bytes, a header, a body. Bytes in, frames out; frames in, bytes out; no socket.

The first length on a connection tells whether the other side speaks Kafka at all: text or a TLS alert there means a
wrong port or a wrong security.protocol, and is worth an error that says so.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.errors import ProtocolError
from penstock.protocol._frames_cy import FrameReader, frame_request, frame_size, split_plain_frame
from penstock.protocol._wire_reader import Cursor, Malformed
from penstock.protocol.schema import ApiSchema, Buffer

__all__ = ["FrameReader", "frame_request", "frame_size", "next_correlation_id", "parse_response_header"]

# Correlation ids from here to 2^31-1 are kept free for re-authentication on a live connection.
FIRST_RESERVED_CORRELATION_ID: Final = 2**31 - 8

_CORRELATION_ID = struct.Struct(">i")


def next_correlation_id(previous: int) -> int:
    """The id after `previous`: one more, or 0 where the reserved range begins."""
    following = previous + 1
    return 0 if following >= FIRST_RESERVED_CORRELATION_ID else following


def parse_response_header(api: ApiSchema, version: int, frame: Buffer) -> tuple[int, memoryview]:
    """Split a frame into correlation id and body; the body refers to the frame.

    Raises:
        ProtocolError: the frame is too short for the header, or its tagged fields are broken.
    """
    plain: tuple[int, memoryview] | None = split_plain_frame(api, version, frame)
    if plain is not None:
        return plain
    cursor = Cursor(memoryview(frame))
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(cursor.data, cursor.advance(_CORRELATION_ID.size))
        if api.response_header_version(version) >= 1:
            cursor.skip_tagged_fields()
    except Malformed as error:
        raise ProtocolError(
            f"cannot decode the header of a {api.name} response v{version}: {error.reason}"
        ) from None
    return correlation_id, cursor.data[cursor.pos :]
