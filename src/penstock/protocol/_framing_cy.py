# SPDX-License-Identifier: Apache-2.0
# cython: boundscheck=False, wraparound=False
"""Frames: a length of four bytes, a header, a body. Bytes in, frames out; frames in, bytes out. Compiled if possible.

The first length on a connection tells whether the other side uses Kafka's protocol at all: text or a TLS alert there
means a wrong port or a wrong security.protocol, and is worth an error that says so.
"""

from __future__ import annotations

import struct
from typing import Any

from penstock.errors import NotKafkaError, ProtocolError
from penstock.protocol._wire_reader import Cursor, Malformed

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.cpython.memoryview import PyMemoryView_GET_BUFFER
    from cython.cimports.cpython.unicode import PyUnicode_AsUTF8AndSize
    from cython.cimports.libc.string import memcpy
    from cython.cimports.penstock._primitives_cy import big_endian_at, put_big_endian

# Correlation ids from here to 2^31-1 are kept free for re-authentication on a live connection.
_FIRST_RESERVED_ID = cython.declare(cython.int, 2**31 - 8)

_PREFIX_SIZE = cython.declare(cython.Py_ssize_t, 4)
_SMALL = cython.declare(cython.Py_ssize_t, 1024)  # bytes of a frame
_ID_SIZE = cython.declare(cython.Py_ssize_t, 4)  # of the correlation id, the smallest frame
_FIXED_HEADER_SIZE = cython.declare(cython.Py_ssize_t, 14)
_MAX_STRING_BYTES = cython.declare(cython.Py_ssize_t, 0x7FFF)
_MAX_SIZE = cython.declare(cython.longlong, 0x7FFFFFFF)
# A body's first piece is copied behind the header when it is smaller than this.
_JOIN_BELOW = cython.declare(cython.Py_ssize_t, 2048)
_NOT_KNOWN = cython.declare(cython.Py_ssize_t, -1)

_PREFIX = struct.Struct(">i")
_FIXED_HEADER = struct.Struct(">ihhih")  # size, api key, version, correlation id, length of the client id

_TLS_ALERT = 21
_TLS_HANDSHAKE = 22
_HTTP = b"HTTP"
_TLS_MAJOR = 3


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.cfunc
@cython.inline
def _length_at(data: bytes, at: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """A signed number of four bytes at a place in others."""
    if not cython.compiled:
        return _PREFIX.unpack_from(data, at)[0]
    return big_endian_at(cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(data)), at, 4)


@cython.cfunc
@cython.inline
def _cut(data: bytes, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> bytes:
    """So many bytes at a place in others, copied."""
    if not cython.compiled:
        return data[at : at + size]
    return PyBytes_FromStringAndSize(PyBytes_AS_STRING(data) + at, size)


@cython.cfunc
@cython.exceptval(-1)
def _size_of(buffer: Any) -> cython.Py_ssize_t:
    """The number of bytes; len() of a memoryview counts elements."""
    if isinstance(buffer, memoryview):
        return PyMemoryView_GET_BUFFER(buffer).len if cython.compiled else buffer.nbytes
    return len(buffer)


def next_correlation_id(previous: cython.int) -> cython.int:
    """The id after `previous`: one more, or 0 where the reserved range begins."""
    return 0 if previous >= _FIRST_RESERVED_ID - 1 else previous + 1


def frame_request(
    api: Any, version: cython.int, correlation_id: cython.int, client_id: Any, body: Any
) -> list:  # type: ignore[type-arg]
    """Put the length and the header before a request body.

    The first buffer holds length and header, and the beginning of the body where that is small; the others are those of
    `body`, not copied.

    Raises:
        ValueError: the client id is longer than the protocol allows.
    """
    # The client id is an old-style string in every header version, so that any broker can read it.
    name_size: cython.Py_ssize_t = 0
    if cython.compiled:
        raw_name: cython.p_const_char = cython.NULL
        if client_id is not None:
            raw_name = PyUnicode_AsUTF8AndSize(client_id, cython.address(name_size))
    else:
        name = b"" if client_id is None else client_id.encode()
        name_size = len(name)
    if name_size > _MAX_STRING_BYTES:
        raise ValueError(f"client id too long: {name_size} bytes")
    flexible_from: Any = api.flexible_from
    tags: cython.int = 1 if flexible_from is not None and version >= flexible_from else 0
    head: cython.Py_ssize_t = _FIXED_HEADER_SIZE + name_size + tags
    joined: cython.Py_ssize_t = 0
    size: cython.longlong = head - _PREFIX_SIZE
    framed: list = list(body)  # type: ignore[type-arg]
    for buffer in framed:
        size += _size_of(buffer)
    if framed and _size_of(framed[0]) < _JOIN_BELOW:
        joined = _size_of(framed[0])
    if size > _MAX_SIZE:
        raise ValueError(f"a request of {size} bytes is too long for the protocol")
    name_length: cython.int = -1 if client_id is None else cython.cast(cython.int, name_size)
    if cython.compiled:
        first: bytes = PyBytes_FromStringAndSize(cython.NULL, head + joined)
        room: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(first))
        at: cython.Py_ssize_t = put_big_endian(room, 0, size, 4)
        at = put_big_endian(room, at, api.key, 2)
        at = put_big_endian(room, at, version, 2)
        at = put_big_endian(room, at, correlation_id, 4)
        at = put_big_endian(room, at, name_length, 2)
        if name_size:
            memcpy(room + at, raw_name, name_size)  # type: ignore[possibly-undefined]
            at += name_size
        if tags:
            at = put_big_endian(room, at, 0, 1)
        if joined:
            view = cython.declare(cython.Py_buffer)
            PyObject_GetBuffer(framed[0], cython.address(view), PyBUF_SIMPLE)
            has_changed: cython.bint = view.len != joined
            if not has_changed:
                memcpy(room + at, view.buf, joined)
            PyBuffer_Release(cython.address(view))
            if has_changed:
                raise ValueError(f"the first buffer of a request has changed its size: it was {joined} bytes")
    else:
        head_bytes = _FIXED_HEADER.pack(size, api.key, version, correlation_id, name_length)
        first = head_bytes + name + bytes(tags)  # type: ignore[possibly-undefined]
        if joined:
            first += bytes(framed[0])
    if framed and _size_of(framed[0]) < _JOIN_BELOW:
        framed[0] = first
    else:
        framed.insert(0, first)
    return framed


def frame_size(buffers: Any) -> cython.longlong:
    """The bytes of a framed request, its length included: it says so itself."""
    first: bytes = buffers[0]
    if len(first) < _PREFIX_SIZE:
        raise ValueError(f"a framed request begins with its length, not with {len(first)} bytes")
    return _PREFIX_SIZE + _length_at(first, 0)


def parse_response_header(api: Any, version: cython.int, frame: Any) -> tuple:  # type: ignore[type-arg]
    """Split a frame into correlation id and body; the body refers to the frame, unless it is small.

    Raises:
        ProtocolError: the frame is too short for the header, or its tagged fields are broken.
    """
    flexible_from: Any = api.flexible_from
    is_plain: cython.bint = flexible_from is None or version < flexible_from or api.plain_response_header
    if not is_plain and isinstance(frame, bytes) and _ID_SIZE < len(frame) < _SMALL and not frame[4]:
        # The answer to a lone record: a copy is made sooner than a view.
        return _length_at(frame, 0), frame[5:]
    view: Any = memoryview(frame)
    size: cython.Py_ssize_t = len(view)
    if size < _ID_SIZE:
        raise _broken_header(api, version, f"{_ID_SIZE} bytes expected, {size} left")
    correlation_id: cython.int
    if isinstance(frame, bytes):
        correlation_id = _length_at(frame, 0)
    else:
        (correlation_id,) = _PREFIX.unpack_from(view)
    if is_plain:
        return correlation_id, view[4:]
    if size > _ID_SIZE and not view[4]:
        return correlation_id, view[5:]  # no tagged fields, as nearly always
    cursor = Cursor(view)
    cursor.pos = _ID_SIZE
    try:
        cursor.skip_tagged_fields()
    except Malformed as error:
        raise _broken_header(api, version, error.reason) from None
    return correlation_id, view[cursor.pos :]


def _broken_header(api: Any, version: int, reason: str) -> ProtocolError:
    return ProtocolError(f"cannot decode the header of a {api.name} response v{version}: {reason}")


@cython.final
@cython.cclass
class FrameReader:
    """Cuts what a connection receives into frames. One per connection; belongs to the thread that reads it.

    After a length that cannot be one the connection is to be closed: where the next frame begins is not known. The
    frames before it were answers all the same, so they are handed over first.

    Attributes:
        trouble: why no frame can follow those handed over; None while all is well. `feed` raises it from then on.
    """

    def __init__(self, max_frame_bytes: cython.Py_ssize_t) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._min_frame_bytes = _ID_SIZE
        self._partial = bytearray()  # of the prefix while _frame_size is not known, then of the frame
        self._frame_size = _NOT_KNOWN
        self._saw_frame = False
        self.trouble: ProtocolError | None = None

    def allow(self, max_frame_bytes: cython.Py_ssize_t) -> None:
        """Take frames of this size from now on, all of which have a header; between two frames."""
        self._max_frame_bytes = max_frame_bytes
        self._min_frame_bytes = _ID_SIZE

    def allow_bare(self) -> None:
        """Take frames without a header as well, which may be empty; until the next `allow`."""
        self._min_frame_bytes = 0

    def feed(self, data: Any) -> list:  # type: ignore[type-arg]
        """Take bytes as they came; give the frames they complete, without their lengths.

        The frames are the caller's: they do not change when `data` is used again. When an impossible length follows
        frames that are complete, these are given and the error waits in `trouble`, and for the next call.

        Raises:
            NotKafkaError: the first length on the connection cannot be one.
            ProtocolError: a later length is out of bounds.
        """
        if self.trouble is not None:
            raise self.trouble
        frames: list = []  # type: ignore[type-arg]
        pos: cython.Py_ssize_t = 0
        whole: cython.bint = self._saw_frame and self._frame_size == _NOT_KNOWN and not self._partial
        if whole and isinstance(data, bytes):
            pos = self._take_whole(data, frames)
            if pos == len(data):
                return frames
        view: Any = memoryview(data)
        end: cython.Py_ssize_t = len(view)
        wanted: cython.Py_ssize_t
        taken: cython.Py_ssize_t
        while True:
            wanted = _PREFIX_SIZE if self._frame_size == _NOT_KNOWN else self._frame_size
            taken = min(wanted - len(self._partial), end - pos)
            self._partial += view[pos : pos + taken]
            pos += taken
            if len(self._partial) < wanted:
                return frames
            complete: bytearray = self._partial
            self._partial = bytearray()
            if self._frame_size == _NOT_KNOWN:
                try:
                    self._frame_size = self._checked_size(complete)
                except ProtocolError as error:
                    self.trouble = error
                    if frames:
                        return frames
                    raise
            else:
                frames.append(complete)
                self._frame_size = _NOT_KNOWN
                self._saw_frame = True

    def _take_whole(self, data: bytes, frames: list) -> cython.Py_ssize_t:  # type: ignore[type-arg]
        """Take the frames that are there from the first byte to the last; where they end. The rest is for the others.

        Nearly all that comes is such: answers are small, and written in one go.
        """
        pos: cython.Py_ssize_t = 0
        end: cython.Py_ssize_t = len(data)
        size: cython.Py_ssize_t
        while pos + _PREFIX_SIZE <= end:
            size = _length_at(data, pos)
            if not _ID_SIZE <= size <= self._max_frame_bytes or size > end - pos - _PREFIX_SIZE:
                break
            pos += _PREFIX_SIZE
            frames.append(_cut(data, pos, size))
            pos += size
        return pos

    def _checked_size(self, prefix: bytearray) -> cython.Py_ssize_t:
        size: cython.Py_ssize_t = _PREFIX.unpack(prefix)[0]
        if not self._saw_frame:
            guess = _other_protocol(prefix)
            if guess is not None:
                error = NotKafkaError(guess)
                error.advice = _advice_of(prefix)
                error.wants_tls = prefix[0] == _TLS_ALERT and prefix[1] == _TLS_MAJOR
                raise error
        lowest: cython.Py_ssize_t = self._min_frame_bytes
        if lowest <= size <= self._max_frame_bytes:
            return size
        reason = f"a response of {size} bytes announced, {lowest} to {self._max_frame_bytes} are possible"
        if self._saw_frame:
            raise ProtocolError(reason)
        raise NotKafkaError(reason)


def _other_protocol(prefix: bytearray) -> str | None:
    """What the first four bytes look like when they are not a length; None when they may be one."""
    if prefix[0] in (_TLS_ALERT, _TLS_HANDSHAKE) and prefix[1] == _TLS_MAJOR and prefix[2] <= 4:
        return "the listener expects TLS"
    if prefix == _HTTP:
        return "an HTTP server answered"
    if all(0x20 <= byte < 0x7F for byte in prefix):
        return f"its answer begins with the text {prefix.decode('ascii')!r}"
    return None


def _advice_of(prefix: bytearray) -> str:
    """What to do about an answer of another protocol, where that is known."""
    if prefix == _HTTP:
        return "Check the host and the port"
    if prefix[0] in (_TLS_ALERT, _TLS_HANDSHAKE):
        return "Check security.protocol and the port"
    return ""
