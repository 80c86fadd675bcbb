# SPDX-License-Identifier: Apache-2.0
# cython: boundscheck=False, wraparound=False
"""Calls of the operating system that return at once, made without giving up the interpreter lock. Compiled if possible.

Python gives the lock up around every system call. While another thread computes, getting it back takes until that one
waits for something, or 5 ms: several times for each request, and each time two threads are woken. A call that moves
some kilobytes to or from the kernel takes less than that; so the I/O thread keeps the lock, until it has to wait.

Where this module is not compiled, or the system lacks the call, `can_move` and `can_wait` say so, and Python's own
calls do the same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.cpython.exc import PyErr_CheckSignals
    from cython.cimports.libc.errno import errno
    from cython.cimports.penstock.network._system_calls_cy import (
        INTERRUPTED,
        MOST_RECEIVED,
        is_not_now,
        received_bytes,
        system_can_send,
        system_can_wait,
        system_receive,
        system_send,
        system_wait,
    )

# As in the C code, and as the array below. A request has about two buffers for each partition.
_MOST_PARTS = cython.declare(cython.Py_ssize_t, 64)
# Of more than this the copy takes long enough to let others run meanwhile.
_MOST_BYTES = cython.declare(cython.Py_ssize_t, 256 * 1024)
# What epoll says, as in its header.
_IN = cython.declare(cython.uint, 0x001)
_OUT = cython.declare(cython.uint, 0x004)

NOT_HERE = -1


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


def can_move() -> bool:
    """Whether `send_at_once` and `receive_at_once` do anything."""
    if cython.compiled:
        return bool(system_can_send())
    return False


def can_wait() -> bool:
    """Whether `wait_for_owners` does anything."""
    if cython.compiled:
        return bool(system_can_wait())
    return False


def send_at_once(fd: cython.int, buffers: Sequence[Any]) -> cython.Py_ssize_t:
    """Write to a socket that does not block; how many bytes, 0 when none fits now.

    NOT_HERE: nothing was done, since there are so many bytes or buffers that others should run meanwhile.

    Raises:
        OSError: the connection is broken.
    """
    if not cython.compiled:
        return NOT_HERE
    views = cython.declare(cython.Py_buffer[64])
    count: cython.int = 0
    at: cython.int
    total: cython.Py_ssize_t = 0
    sent: cython.Py_ssize_t = -1
    code: cython.int = 0
    if len(buffers) > _MOST_PARTS:
        return NOT_HERE
    try:
        for buffer in buffers:
            PyObject_GetBuffer(buffer, cython.address(views[count]), PyBUF_SIMPLE)
            total += views[count].len
            count += 1
        if total <= _MOST_BYTES:
            sent = system_send(fd, views, count)
            code = errno
    finally:
        for at in range(count):
            PyBuffer_Release(cython.address(views[at]))
    if total > _MOST_BYTES:
        return NOT_HERE
    if sent < 0:
        if is_not_now(code):
            return 0
        raise OSError(code, os.strerror(code))
    return sent


def receive_at_once(fd: cython.int, max_bytes: cython.Py_ssize_t) -> bytes | None:
    """Read what has arrived, at most that much and MOST_RECEIVED; b"" if the peer has closed, None if nothing is there.

    Raises:
        OSError: the connection is broken.
    """
    if not cython.compiled:
        return None
    if max_bytes < 0:
        raise ValueError(f"{max_bytes} bytes cannot be read")
    received: cython.Py_ssize_t = system_receive(fd, min(max_bytes, MOST_RECEIVED))
    code: cython.int = errno
    if received >= 0:
        return PyBytes_FromStringAndSize(received_bytes, received)
    if is_not_now(code):
        return None
    raise OSError(code, os.strerror(code))


def wait_for_owners(
    epoll_fd: cython.int,
    seconds: cython.double,
    watched: dict,  # type: ignore[type-arg]
    ready: list,  # type: ignore[type-arg]
) -> cython.bint:
    """Wait until an epoll has something to tell, for those who know whose each file is.

    The interpreter lock is given up only where this may wait: not for 0 seconds. A signal ends the wait.

    Args:
        epoll_fd: whom to ask.
        seconds: how long to wait at most.
        watched: by file number, its owner and what that waits for. A file that is not there is passed over.
        ready: gets the owners, each with what its file is ready for.

    Returns:
        Whether a file without an owner is ready.

    Raises:
        OSError: there is no such epoll.
    """
    without_owner: cython.bint = False
    if not cython.compiled:
        return without_owner
    fds = cython.declare(cython.int[64])  # PENSTOCK_MOST_EVENTS of the C code
    masks = cython.declare(cython.uint[64])
    at: cython.int
    count: cython.int
    code: cython.int
    milliseconds: cython.int = 0
    if seconds > 0:
        milliseconds = cython.cast(cython.int, seconds * 1000)
        if milliseconds < seconds * 1000:
            milliseconds += 1  # rather a little late than to ask again and again
        with cython.nogil:
            count = system_wait(epoll_fd, fds, masks, milliseconds)
            code = errno
    else:
        count = system_wait(epoll_fd, fds, masks, 0)
        code = errno
    if count < 0:
        if code != INTERRUPTED:
            raise OSError(code, os.strerror(code))
        PyErr_CheckSignals()
    for at in range(count):
        found: Any = watched.get(fds[at])
        if found is None:
            continue
        if found[0] is None:
            without_owner = True
        else:
            ready.append((found[0], _ready_for(masks[at]) & cython.cast(cython.int, found[1])))
    return without_owner


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _ready_for(mask: cython.uint) -> cython.int:
    ready: cython.int = 0
    if mask & ~_IN:
        ready |= 2
    if mask & ~_OUT:
        ready |= 1
    return ready
