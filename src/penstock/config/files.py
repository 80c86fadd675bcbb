# SPDX-License-Identifier: Apache-2.0
"""Reads files that an option names, without waiting for ever and without filling the memory.

A name may be that of a pipe that nobody writes to, a device without an end, or a file that is not the one meant.
Each would hold the client, so only regular files are read, and only so many bytes of them.
"""

from __future__ import annotations

import errno
import os
import stat


class UnreadableError(Exception):
    """A file cannot be read. The text follows its name: "is not a file". Never holds what is in it."""


def read_file(path: str, most: int) -> bytes:
    """The bytes of a regular file.

    Args:
        path: where it is.
        most: how many bytes it may have.

    Raises:
        UnreadableError: it is not there, not readable, not a regular file, or larger.
    """
    try:
        # A pipe without a writer must not be waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        who = f" by user {os.geteuid()}" if error.errno == errno.EACCES else ""
        raise UnreadableError(f"cannot be read{who}: {error.strerror}") from None
    except ValueError:
        raise UnreadableError("cannot be read: no such path can be") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnreadableError("is not a file")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(most + 1)
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)
    if len(data) > most:
        raise UnreadableError(f"has more than {most} bytes; is it the right one?")
    return data
