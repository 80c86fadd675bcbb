# SPDX-License-Identifier: Apache-2.0
"""Frames: a length of four bytes, a header, a body. Bytes in, frames out; frames in, bytes out; no socket.

The first length on a connection tells whether the other side speaks Kafka at all: text or a TLS alert there means a
wrong port or a wrong security.protocol, and is worth an error that says so.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from penstock.errors import NotKafkaError, ProtocolError
from penstock.protocol._produce_cy import total_bytes
from penstock.protocol._wire_reader import Cursor, Malformed
from penstock.protocol._wire_writer import byte_length
from penstock.protocol.schema import ApiSchema, Buffer

# Correlation ids from here to 2^31-1 are kept free for re-authentication on a live connection.
FIRST_RESERVED_CORRELATION_ID: Final = 2**31 - 8

_PREFIX_SIZE: Final = 4
_SMALLEST_FRAME: Final = 4  # the correlation id
_JOIN_BELOW: Final = 2048  # a body's first piece is copied behind the header when it is smaller than this

_PREFIX = struct.Struct(">i")
_FIXED_HEADER = struct.Struct(">ihhih")  # size, api key, version, correlation id, length of the client id
_CORRELATION_ID = struct.Struct(">i")

_TLS_ALERT: Final = 21
_TLS_HANDSHAKE: Final = 22


def next_correlation_id(previous: int) -> int:
    """The id after `previous`: one more, or 0 where the reserved range begins."""
    following = previous + 1
    return 0 if following >= FIRST_RESERVED_CORRELATION_ID else following


def frame_request(
    api: ApiSchema, version: int, correlation_id: int, client_id: str | None, body: Sequence[Buffer]
) -> list[Buffer]:
    """Put the length and the header before a request body.

    The first buffer holds length and header, and the beginning of the body where that is small; the others are those of
    `body`, not copied.

    Raises:
        ValueError: the client id is longer than the protocol allows.
    """
    # The client id is an old-style string in every header version, so that any broker can read it.
    name = b"" if client_id is None else client_id.encode()
    if len(name) > 0x7FFF:
        raise ValueError(f"client id too long: {len(name)} bytes")
    tags = b"\0" if api.request_header_version(version) >= 2 else b""
    size = _FIXED_HEADER.size - _PREFIX_SIZE + len(name) + len(tags) + total_bytes(body)
    name_length = -1 if client_id is None else len(name)
    first = bytearray(_FIXED_HEADER.pack(size, api.key, version, correlation_id, name_length))
    first += name + tags
    if body and byte_length(body[0]) < _JOIN_BELOW:
        first += body[0]
        return [first, *body[1:]]
    return [first, *body]


def frame_size(buffers: Sequence[Buffer]) -> int:
    """The bytes of a framed request, its length included: it says so itself."""
    (size,) = _PREFIX.unpack_from(buffers[0])
    return _PREFIX_SIZE + int(size)


def parse_response_header(api: ApiSchema, version: int, frame: Buffer) -> tuple[int, memoryview]:
    """Split a frame into correlation id and body; the body refers to the frame.

    Raises:
        ProtocolError: the frame is too short for the header, or its tagged fields are broken.
    """
    view = memoryview(frame)
    if len(view) > _CORRELATION_ID.size:
        (correlation_id,) = _CORRELATION_ID.unpack_from(view)
        if api.response_header_version(version) == 0:
            return correlation_id, view[_CORRELATION_ID.size :]
        if view[_CORRELATION_ID.size] == 0:  # no tagged fields
            return correlation_id, view[_CORRELATION_ID.size + 1 :]
    cursor = Cursor(view)
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(cursor.data, cursor.advance(_CORRELATION_ID.size))
        if api.response_header_version(version) >= 1:
            cursor.skip_tagged_fields()
    except Malformed as error:
        raise ProtocolError(
            f"cannot decode the header of a {api.name} response v{version}: {error.reason}"
        ) from None
    return correlation_id, cursor.data[cursor.pos :]


class FrameReader:
    """Cuts what a connection receives into frames. One per connection; belongs to the thread that reads it.

    After a length that cannot be one the connection is to be closed: where the next frame begins is not known. The
    frames before it were answers all the same, so they are handed over first.

    Attributes:
        trouble: why no frame can follow those handed over; None while all is well. `feed` raises it from then on.
    """

    __slots__ = ("_frame_size", "_max_frame_bytes", "_partial", "_saw_frame", "trouble")

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._partial = bytearray()  # of the prefix while _frame_size is None, then of the frame
        self._frame_size: int | None = None
        self._saw_frame = False
        self.trouble: ProtocolError | None = None

    def feed(self, data: Buffer) -> list[Buffer]:
        """Take bytes as they came; give the frames they complete, without their lengths.

        The frames are the caller's: they do not change when `data` is used again. When an impossible length follows
        frames that are complete, these are given and the error waits in `trouble`, and for the next call.

        Raises:
            NotKafkaError: the first length on the connection cannot be one.
            ProtocolError: a later length is out of bounds.
        """
        if self.trouble is not None:
            raise self.trouble
        frames: list[Buffer] = []
        view = memoryview(data)
        pos, end = 0, len(view)
        if self._saw_frame and self._frame_size is None and not self._partial:
            pos = self._take_whole(view, frames)
            if pos == end:
                return frames
        while True:
            wanted = _PREFIX_SIZE if self._frame_size is None else self._frame_size
            taken = min(wanted - len(self._partial), end - pos)
            self._partial += view[pos : pos + taken]
            pos += taken
            if len(self._partial) < wanted:
                return frames
            complete, self._partial = self._partial, bytearray()
            if self._frame_size is None:
                try:
                    self._frame_size = self._checked_size(complete)
                except ProtocolError as error:
                    self.trouble = error
                    if frames:
                        return frames
                    raise
            else:
                frames.append(complete)
                self._frame_size = None
                self._saw_frame = True

    def _take_whole(self, view: memoryview, frames: list[Buffer]) -> int:
        """Take the frames that are there from the first byte to the last; where they end. The rest is for the others.

        Nearly all that comes is such: answers are small, and written in one go.
        """
        pos, end = 0, len(view)
        while pos + _PREFIX_SIZE <= end:
            (size,) = _PREFIX.unpack_from(view, pos)
            behind = pos + _PREFIX_SIZE + size
            if behind > end or not _SMALLEST_FRAME <= size <= self._max_frame_bytes:
                break
            frames.append(bytes(view[pos + _PREFIX_SIZE : behind]))
            pos = behind
        return pos

    def _checked_size(self, prefix: bytearray) -> int:
        (size,) = _PREFIX.unpack(prefix)
        if not self._saw_frame:
            guess = _other_protocol(prefix)
            if guess is not None:
                raise NotKafkaError(guess)
        if _SMALLEST_FRAME <= size <= self._max_frame_bytes:
            return int(size)
        reason = (
            f"a response of {size} bytes announced, {_SMALLEST_FRAME} to {self._max_frame_bytes} are possible"
        )
        if self._saw_frame:
            raise ProtocolError(reason)
        raise NotKafkaError(f"the other side does not speak Kafka, or not on this port: {reason}")


def _other_protocol(prefix: bytearray) -> str | None:
    """What the first four bytes look like when they are not a length; None when they may be one."""
    if prefix[0] in (_TLS_ALERT, _TLS_HANDSHAKE) and prefix[1] == 3 and prefix[2] <= 4:
        return "the listener expects TLS: check security.protocol and the port"
    if prefix == b"HTTP":
        return "an HTTP server answered: check the host and the port"
    if all(0x20 <= byte < 0x7F for byte in prefix):
        return (
            f"the other side does not speak Kafka: its answer begins with the text {prefix.decode('ascii')!r}"
        )
    return None
