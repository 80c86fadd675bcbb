# SPDX-License-Identifier: Apache-2.0
"""Waking the I/O thread out of its selector, from any thread.

The I/O thread waits in a selector that also watches one end of a socket pair; a byte written to the other end ends the
wait. A system call for each record would be dear, so the byte is written only when the I/O thread sleeps.

Why no wake-up is lost. There are two flags, each written before the other is read:

    waker:       publish work;  wanted = True;    read sleeping;  if set, write the byte
    I/O thread:  sleeping = True;  read wanted;   if set, do not wait, else wait in the selector
    afterwards:  sleeping = False;  wanted = False;  look for work

Whatever the order, either the waker reads `sleeping` as True and writes the byte, or it read it before the I/O thread
had set it, and then the I/O thread reads `wanted` as True, because that was written earlier still. The byte stays in
the socket until it is read, so it also ends a wait that begins after it was written. A waker that sets `wanted` just
before it is cleared loses nothing: its work was published before, and the I/O thread looks for work after clearing.

The bytes are taken out just before the next wait is announced. Whoever wrote one of them had read `sleeping` as set by
an earlier wait, so that its work was published before that wait ended, and has been looked for since.

Two wakers may both write a byte, and a byte may arrive after the wait has ended by itself: the next wait then ends at
once, for nothing. That is cheap and rare; a lock here would be neither. A waker does not skip the byte because another
has set `wanted` already: that other one may have been interrupted by Ctrl-C before it wrote its own.
"""

from __future__ import annotations

import socket

from penstock.network._system_calls_cy import can_move, receive_at_once

_DRAINED = 4096  # bytes taken out in one go


class Wakeup:
    """A socket pair and two flags."""

    __slots__ = ("_reader", "_sleeping", "_wanted", "_writer")

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._sleeping = False  # written by the I/O thread, read by all
        self._wanted = False  # set by any thread, cleared by the I/O thread

    def wake(self) -> None:
        """End the present wait, or the next one. From any thread; never blocks."""
        self._wanted = True
        if self._sleeping:
            self._write_byte()

    def before_wait(self) -> bool:
        """Say that the I/O thread is about to wait; False when it must not, as someone wants it awake."""
        self._sleeping = True
        return not self._wanted

    def after_wait(self) -> None:
        """Say that the I/O thread is awake, and is about to look for work."""
        self._sleeping = False
        self._wanted = False

    def drain(self) -> None:
        """Take out the bytes, once the selector has reported them."""
        if can_move():
            # Without giving up the interpreter lock: whoever wrote the byte is likely to hold on to it.
            while len(receive_at_once(self._reader.fileno(), _DRAINED) or b"") == _DRAINED:
                pass
            return
        try:
            while len(self._reader.recv(_DRAINED)) == _DRAINED:
                pass
        except (BlockingIOError, InterruptedError):
            pass

    def fileno(self) -> int:
        """The end to watch for reading."""
        return self._reader.fileno()

    def close(self) -> None:
        """Close both ends; a later `wake` does nothing."""
        # In this order: a byte written to a socket whose other end is closed would be an error of the waker's.
        self._writer.close()
        self._reader.close()

    def _write_byte(self) -> None:
        try:
            self._writer.send(b"\0")
        except (BlockingIOError, InterruptedError):
            pass  # the buffer is full of earlier bytes: the other end is readable as it is
        except OSError:
            if self._writer.fileno() >= 0:
                raise
            # closed: nobody waits any more
