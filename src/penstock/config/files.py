# SPDX-License-Identifier: Apache-2.0
"""Reads files that somebody else has written: no more of them than is wanted, and nothing that could block."""

from __future__ import annotations

import errno
import os
import stat


def read_regular(path: str, most: int) -> bytes:
    """At most so many bytes of a file, and one more where it has more.

    A pipe is refused before it is waited for, and a device before it gives bytes without end. Besides, what is named in
    options is read more than once.

    Raises:
        OSError: it cannot be read, or is not a regular file.
        ValueError: no file can have that name.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most + 1)
    finally:
        os.close(descriptor)
