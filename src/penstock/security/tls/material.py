# SPDX-License-Identifier: Apache-2.0
"""What every kind of key store is read into, and how text is handed to OpenSSL, which wants files."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Literal, NamedTuple

# Whose fault it is: the store's password, the key's, the declared type, or what the file holds.
Blame = Literal["content", "password", "key password", "type"]

# A JVM's roots are 200 KiB, those of a system 250 KiB.
MOST_BYTES: Final = 2 * 1024 * 1024
# The roots of a system are 150.
MOST_CERTIFICATES: Final = 5_000


class StoreError(ValueError):
    """A key store cannot be used. Says what is wrong and where in it; who catches it adds the option and the file.

    Never holds a part of a key or of a password.
    """

    def __init__(self, text: str, blame: Blame = "content") -> None:
        super().__init__(text)
        self.blame = blame


class Certificate(NamedTuple):
    """A certificate, as bytes that were not parsed yet.

    Attributes:
        place: where in the store it is: "block 2 (line 31)", "alias 'ca'".
        der: the certificate.
    """

    place: str
    der: bytes


class Identity(NamedTuple):
    """A private key and the certificates that go with it.

    Attributes:
        key: the key as PEM; it may be encrypted.
        password: of the key; None where it is not encrypted.
        chain: the own certificate first.
    """

    key: str
    password: str | None
    chain: Sequence[Certificate]

    def __repr__(self) -> str:
        return f"<Identity with {len(self.chain)} certificates>"


class ClientContext(ssl.SSLContext):
    """A context that knows whom it stands for: OpenSSL does not tell.

    Attributes:
        own: the client's certificates, its own first; empty where it has none.
    """

    own: Sequence[Certificate] = ()


def pem_of(label: str, base64: str) -> str:
    """A block of PEM, in lines as OpenSSL wants them."""
    lines = [base64[at : at + 64] for at in range(0, len(base64), 64)]
    return "\n".join((f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""))


@contextmanager
def as_file(text: str) -> Iterator[str]:
    """A name under which OpenSSL can read the text. It is in memory, or a file that only this user can read."""
    data = text.encode()
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create("penstock")
        try:
            _write_all(descriptor, data)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    descriptor, name = tempfile.mkstemp(prefix="penstock-")  # readable by this user only
    try:
        try:
            _write_all(descriptor, data)
        finally:
            os.close(descriptor)
        yield name
    finally:
        os.unlink(name)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
