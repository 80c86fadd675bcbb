# SPDX-License-Identifier: Apache-2.0
"""CRC-32C, the checksum of Kafka's batches. Compiled if possible.

| this module is | the checksum is computed by |
|---|---|
| compiled | the processor's instruction |
| compiled, on a processor without it | a table in C |
| plain Python | the package google-crc32c |
| plain Python, without that package | a table in Python: the last resort, which is logged |

Message sets, the format before batches, have zlib's CRC-32: `crc32_at` for compiled code, else Python's zlib. The same
checksum of a key is what librdkafka places records by.

The C code is in `_crc_code_cy.pxd`. All forms take the checksum of what goes before, so that bytes in several pieces
have the checksum of the whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.penstock.records._crc_code_cy import (
        by_instruction,
        by_table,
        by_zlib_table,
        prepare,
    )
else:
    import zlib

    def prepare() -> bool:
        """Nothing: plain Python has no instruction to look for."""
        return False


# C variables when compiled, so that their use costs nothing.
_HAS_INSTRUCTION = cython.declare(cython.bint, prepare())
# Bytes from which on other threads may run meanwhile: a few microseconds are less than getting the lock back.
_LONG = cython.declare(cython.Py_ssize_t, 32 * 1024)

_POLYNOMIAL = 0x82F63B78  # the lowest power in the highest bit


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


def method() -> str:
    """What computes the checksum in this process: "instruction", "table", "google-crc32c" or "Python"."""
    if cython.compiled:
        return "instruction" if _HAS_INSTRUCTION else "table"
    return "Python" if _extend() is _extend_by_table else "google-crc32c"


def crc32c(data: Any, before: cython.uint = 0) -> int:
    """The checksum of bytes, or of any object that has its bytes in one piece.

    Args:
        before: the checksum of the bytes that go before these.
    """
    if not cython.compiled:
        return _extend()(before, _as_bytes(data))
    view = cython.declare(cython.Py_buffer)
    PyObject_GetBuffer(data, cython.address(view), PyBUF_SIMPLE)
    memory: cython.p_const_uchar = cython.cast(cython.p_const_uchar, view.buf)
    size: cython.Py_ssize_t = view.len
    if size < _LONG:
        before = crc32c_at(memory, size, before)
    else:
        with cython.nogil:
            before = crc32c_at(memory, size, before)
    PyBuffer_Release(cython.address(view))
    return before


def crc32c_by_table(data: Any, before: cython.uint = 0) -> int:
    """The same by the table, whatever there is that is faster: for tests."""
    if not cython.compiled:
        return _extend_by_table(before, _as_bytes(data))
    view = cython.declare(cython.Py_buffer)
    PyObject_GetBuffer(data, cython.address(view), PyBUF_SIMPLE)
    before = by_table(cython.cast(cython.p_const_uchar, view.buf), view.len, before)
    PyBuffer_Release(cython.address(view))
    return before


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def crc32c_at(data: cython.p_const_uchar, size: cython.Py_ssize_t, before: cython.uint) -> cython.uint:
    """The checksum of so many bytes at an address, without touching the interpreter lock. Compiled code only."""
    if _HAS_INSTRUCTION:
        return by_instruction(data, size, before)
    return by_table(data, size, before)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def crc32_at(data: cython.p_const_uchar, size: cython.Py_ssize_t, before: cython.uint) -> cython.uint:
    """The CRC-32 of zlib, likewise. Compiled code only."""
    return by_zlib_table(data, size, before)


def crc32_partition(key: bytes, partition_count: cython.int) -> cython.int:
    """The partition of a key that is not empty, among all partitions of its topic, as librdkafka places it."""
    if partition_count == 0:
        raise ZeroDivisionError("a topic without partitions")
    return crc32_partition_at(key, len(key), partition_count)


@cython.cdivision(True)
def crc32_partition_at(
    key: cython.p_const_uchar, size: cython.Py_ssize_t, partition_count: cython.int
) -> cython.int:
    """The same for a key at an address in memory."""
    if not cython.compiled:
        return zlib.crc32(key[:size]) % partition_count
    return cython.cast(cython.int, crc32_at(key, size, 0) % cython.cast(cython.uint, partition_count))


def _as_bytes(data: Any) -> bytes:
    # The view refuses what is not bytes; `bytes` would take a number for a size.
    return data if type(data) is bytes else bytes(memoryview(data))


@functools.cache
def _extend() -> Callable[[int, bytes], int]:
    """How plain Python computes it. Looked for when it is first needed: to load the package takes a millisecond."""
    try:
        from google_crc32c import extend, implementation

        if implementation == "c":
            return extend
    except (ImportError, RuntimeWarning):  # it warns where it is slow, and a program may make that an error
        pass
    import logging

    from penstock._events import Event, tell

    tell(
        logging.getLogger("penstock.records"),
        logging.WARNING,
        Event.CHECKSUM_SLOW,
        "Checksums are computed in Python, which is slow: Penstock's compiled modules are not in use, "
        "and the package google-crc32c is not installed, or has no compiled code for this platform. "
        "Install google-crc32c, or install penstock-kafka where there is a C compiler.",
    )
    return _extend_by_table


@functools.cache
def _table() -> tuple[int, ...]:
    """The remainder of each byte."""
    found = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        found.append(value)
    return tuple(found)


def _extend_by_table(before: int, data: bytes) -> int:
    table = _table()
    value = before ^ 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ table[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF
