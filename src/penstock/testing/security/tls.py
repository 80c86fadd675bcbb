# SPDX-License-Identifier: Apache-2.0
"""The broker's end of a TLS connection: bytes of the network on one side, bytes of Kafka on the other."""

from __future__ import annotations

import ssl
from typing import Any

_READ_BYTES = 1 << 16
# What a Kafka broker says to a client whose bytes are no TLS: a fatal alert, internal_error.
_NO_TLS = bytes.fromhex("15030300020250")


class TlsEnd:
    """Decrypts what comes and encrypts what goes. Does no I/O.

    Attributes:
        failure: why the connection cannot go on; None while it can.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self.failure: str | None = None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._shaken = False
        self._waiting: list[bytes] = []  # said before the handshake has ended

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the network; what they mean."""
        self._incoming.write(data)
        if not self._go_on():
            return b""
        read: list[bytes] = []
        try:
            while chunk := self._tls.read(_READ_BYTES):
                read.append(chunk)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.failure = "the client said goodbye"
        except ssl.SSLError as error:
            self.failure = f"TLS: {error}"
        return b"".join(read)

    @property
    def client_name(self) -> str:
        """The common name of the client's certificate; "" where it has shown none."""
        shown = (self._tls.getpeercert() if self._shaken else None) or {}
        subject: Any = shown.get("subject", ())
        return next((str(value) for part in subject for key, value in part if key == "commonName"), "")

    def write(self, data: bytes) -> None:
        """Encrypt bytes, now or after the handshake."""
        self._waiting.append(data)
        self._flush()

    def take_output(self) -> bytes:
        return self._outgoing.read()

    def _go_on(self) -> bool:
        """Go on with the handshake; whether it has ended well."""
        if self._shaken or self.failure is not None:
            return self.failure is None
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            self.failure = f"TLS: {error}"
            if not self._outgoing.pending:
                self._outgoing.write(_NO_TLS)
            return False
        self._shaken = True
        self._flush()
        return True

    def _flush(self) -> None:
        if self._shaken and self.failure is None and self._waiting:
            data = b"".join(self._waiting)
            self._waiting.clear()
            if data:
                self._tls.write(data)
