# SPDX-License-Identifier: Apache-2.0
"""TLS over another transport, without blocking: OpenSSL works on two buffers in memory, and the bytes are moved here.

Compiled if possible: a single record passes it twice, and its code is not in the processor's cache.

Rules:
1. Few large calls. Each call into OpenSSL gives up the interpreter lock, and beside a busy thread may wait milliseconds
   to get it back. So all that is given to `send_some` is encrypted by one call and written by one more, and a read
   ends when the buffer is empty (an attribute), not when OpenSSL says so (a call).
2. `send_some` reports bytes when their ciphertext is with the operating system, and not before: who calls it asks for
   room to write only while something is left by this count. Until then it reports 0, and the same buffers are
   given again; they are not encrypted a second time.
3. Bytes that were read count. An error met behind them is raised by the next read.
4. An alert before the first byte of the application is a refusal: in TLS 1.3 the client's handshake has ended when the
   broker looks at its certificate. It may show as a failed write, so that is followed by a read.
5. A peer that closes without saying so (no close_notify) has closed: Kafka's frames have lengths, so that nothing can
   be cut off unseen.
6. A listener without TLS closes when a client begins TLS; so does one that is going down, but not again and again.
   So a peer that has never answered in TLS, and closes for the third time in place of an answer, refuses it.

Owned by the I/O thread.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.network.transport import NOTHING, READ, WRITE, Transport
from penstock.protocol.schema import Buffer
from penstock.security.tls.errors import (
    DELAYED,
    TlsLostError,
    TlsRefusedError,
    alert_error,
    handshake_error,
    hung_up_error,
    is_alert,
    lost_error,
    record_error,
)

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

# One read of the inner transport.
_READ_SIZE = cython.declare(cython.Py_ssize_t, 65_536)
# The longest record; OpenSSL hands out one at a time.
_RECORD = cython.declare(cython.Py_ssize_t, 16_384)
# One call encrypts at most this much: a request has a second and a third copy while it is written. Most are smaller.
_WRITE_SIZE = cython.declare(cython.Py_ssize_t, 8 * 1024 * 1024)
# What a handshake may take. OpenSSL takes 100 KiB of certificates, real ones are a few KiB.
_HANDSHAKE_BYTES: Final = 1024 * 1024
# Rule 6.
_TIMES_TO_BELIEVE: Final = 3


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


class Listener:
    """What is remembered of a peer from one connection to the next. Owned by the I/O thread.

    Attributes:
        speaks_tls: a handshake with it was done.
        hang_ups: how often it closed the connection in place of an answer.
    """

    __slots__ = ("hang_ups", "speaks_tls")

    def __init__(self) -> None:
        self.speaks_tls = False
        self.hang_ups = 0


@cython.final
@cython.cclass
class TlsTransport:
    """A TLS connection.

    Args:
        inner: moves the ciphertext: TCP, or what goes through a proxy.
        context: trust and identity.
        host: the name that the connection goes to, for SNI and for the check of the certificate; or an address, which
            is checked and not sent.
        listener: what is known of the peer; what is learned is noted there.

    Raises:
        TlsRefusedError: no certificate can be for such a host.
    """

    _inner = cython.declare(object)
    _listener = cython.declare(object)
    _host = cython.declare(object)
    _incoming = cython.declare(object)
    _outgoing = cython.declare(object, visibility="readonly")
    _object = cython.declare(object)
    _engine = cython.declare(object, visibility="public")
    _inner_connected: cython.bint
    _connected: cython.bint
    _allowance: cython.Py_ssize_t
    _heard: cython.bint
    _held: cython.bint
    _encrypted: cython.Py_ssize_t
    _ciphertext = cython.declare(object)
    _early = cython.declare(object)
    _ended: cython.bint
    _trouble = cython.declare(object)

    def __init__(
        self, inner: Transport, context: ssl.SSLContext, host: str, listener: Listener | None = None
    ) -> None:
        self._inner = inner
        self._listener = listener or Listener()
        self._host = _name_to_check(host)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        try:
            self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=self._host)
        except (ValueError, TypeError) as error:
            # The name may be what a broker told us, in its metadata.
            raise TlsRefusedError(
                f"no certificate can be for the host name {host!r}",
                "Check advertised.listeners of the broker.",
            ) from error
        # What is behind it does the same, without a function of Python around each call.
        self._engine = getattr(self._object, "_sslobj", self._object)
        self._inner_connected = False
        self._connected = False
        self._allowance = _HANDSHAKE_BYTES  # bytes that the peer may still send in the handshake
        self._heard = False  # the application has been given a byte
        self._held = False  # OpenSSL may have more of the record that was read last
        self._encrypted = 0  # plain bytes that were encrypted and are not reported yet
        self._ciphertext = b""  # what of it has still to be written
        self._early = b""  # what was read while an alert was looked for
        self._ended = False  # nothing more can be read
        self._trouble = None  # why, where the peer has not just closed

    # ---- connecting

    def finish_connect(self) -> int:
        """See Transport."""
        if self._connected:
            return NOTHING
        if not self._inner_connected:
            waits_for = self._inner.finish_connect()
            if waits_for != NOTHING:
                return waits_for
            self._inner_connected = True
        while True:
            done = self._handshake()
            try:
                if not self._flush():
                    return WRITE
                if done:
                    self._connected = self._listener.speaks_tls = True
                    return NOTHING
                data = self._inner.recv_some(_READ_SIZE)
            except ConnectionError as error:
                raise self._why_lost(error, done) from error
            if data is None:
                return READ
            self._feed(data)
            self._allowance -= len(data)
            if self._allowance < 0:
                raise TlsRefusedError(
                    f"the peer sent more than {_HANDSHAKE_BYTES} bytes in the TLS handshake",
                    "Is it a Kafka broker? Check host and port.",
                )

    @property
    def delay(self) -> str:
        """What a connection that takes too long waits for."""
        if not self._inner_connected:
            return getattr(self._inner, "delay", "")
        return "" if self._connected else DELAYED

    def _handshake(self) -> bool:
        """Go on with what has arrived; whether the handshake is done."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            self._try_flush()  # our alert: it tells the broker's log why
            chain = _peer_chain(self._object)
            raise self._judged(handshake_error(error, chain, self._host, self._object.context)) from error
        return True

    def _why_lost(self, error: ConnectionError, done: bool) -> OSError:
        """Why the handshake cannot go on: the alert that the peer has sent before it closed, if there is one."""
        try:
            self._feed(self._inner.recv_some(_READ_SIZE) or b"")
            if done:
                self._object.read(_RECORD)
            else:
                self._object.do_handshake()
        except ssl.SSLError as other:
            if is_alert(other):
                return alert_error(other, self._object.context)
        except OSError:
            pass  # there is no more to learn
        return self._judged(lost_error(error))

    def _judged(self, error: OSError) -> OSError:
        """Why a handshake ended, in the light of what is known of the peer (rule 6)."""
        was_mute = self._allowance == _HANDSHAKE_BYTES and not self._listener.speaks_tls
        if not was_mute or not isinstance(error, TlsLostError):
            return error
        self._listener.hang_ups += 1
        times = self._listener.hang_ups
        return error if times < _TIMES_TO_BELIEVE else hung_up_error(times)

    def _feed(self, data: bytes) -> None:
        """Ciphertext has arrived, or the end of it."""
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    # ---- writing

    def send_some(self, buffers: Sequence[Buffer]) -> int:
        """See Transport."""
        try:
            if not self._encrypted:
                plain = _joined(buffers)
                if not plain:
                    return 0
                self._engine.write(plain)
                self._encrypted = _size(plain)
            if not self._flush():
                return 0
        except ssl.SSLError as error:
            raise self._why_unwritable(record_error(error)) from error
        except OSError as error:
            found = self._why_unwritable(error)
            if found is error:
                raise
            raise found from error
        sent = self._encrypted
        self._encrypted = 0
        return sent

    @cython.cfunc
    def _flush(self) -> cython.bint:
        """Pass ciphertext to the inner transport; return whether all of it was written."""
        sent: cython.Py_ssize_t
        while True:
            if not self._ciphertext:
                if not self._outgoing.pending:
                    return True
                self._ciphertext = self._outgoing.read()
            sent = self._inner.send_some((self._ciphertext,))
            if not sent:
                return False
            self._ciphertext = memoryview(self._ciphertext)[sent:] if sent < len(self._ciphertext) else b""

    @cython.cfunc
    def _try_flush(self) -> Any:
        """Write what fits, where it does not matter whether the peer gets it."""
        try:
            self._flush()
        except OSError:
            pass  # it will show when it matters

    def _why_unwritable(self, error: OSError) -> OSError:
        """The alert that a peer has sent before it closed, if there is one."""
        if self._heard:
            return error
        try:
            self._early = self.recv_some(_READ_SIZE) or b""
        except OSError as other:
            return other if isinstance(other, TlsRefusedError) else error
        return error

    # ---- reading

    def recv_some(self, max_bytes: cython.Py_ssize_t) -> bytes | None:
        """See Transport."""
        if self._early:
            data, self._early = self._early[:max_bytes], self._early[max_bytes:]
            return data
        if not self._ended:
            if not self._held and not self._incoming.pending:
                arrived = self._inner.recv_some(max(max_bytes, _READ_SIZE))
                if arrived is None:
                    return None
                self._feed(arrived)
            data = self._decrypt(max_bytes)
            if self._outgoing.pending:
                self._try_flush()  # the answer to a change of keys, or our alert
            if data:
                self._heard = True
                return data
            if not self._ended:
                return None  # the beginning of a record, or a session ticket
        if self._trouble is not None:
            raise self._trouble
        return b""

    @cython.cfunc
    def _decrypt(self, room: cython.Py_ssize_t) -> Any:
        """The plain bytes of what has arrived. Where it has come to an end, that is noted."""
        parts: list = []  # type: ignore[type-arg]
        asked: cython.Py_ssize_t
        while room and (self._held or not parts or self._incoming.pending):
            asked = min(room, _RECORD)
            try:
                part: Any = self._engine.read(asked)
            except ssl.SSLWantReadError:
                self._held = False
                break
            except ssl.SSLError as error:
                self._end(error, heard=self._heard or bool(parts))
                break
            if not part:
                self._end(None, heard=True)
                break
            # A record longer than what was asked for goes on where the selector cannot see it.
            self._held = len(part) == asked < _RECORD
            parts.append(part)
            room -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _end(self, error: ssl.SSLError | None, *, heard: bool) -> None:
        """Nothing more can be read."""
        self._held = False
        self._ended = True
        if error is None or isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return
        refused = is_alert(error) and not heard
        self._trouble = alert_error(error, self._object.context) if refused else record_error(error)
        self._trouble.__cause__ = error

    def has_pending(self) -> bool:
        """Whether bytes, or the end of them, wait here, where the selector cannot see them."""
        held = self._held or self._early or self._ended or self._incoming.pending
        return bool(held) or self._inner.has_pending()

    # ---- the rest

    def fileno(self) -> int:
        """See Transport."""
        return self._inner.fileno()

    def close(self) -> None:
        """Send close_notify, if that can be done at once, and close."""
        if self._connected and not self._ciphertext:
            self._connected = False
            try:
                self._object.unwrap()  # writes close_notify; the answer is not waited for
            except OSError:
                pass  # close_notify is sent, or the peer has gone
            self._try_flush()
        self._inner.close()

    def __repr__(self) -> str:
        return (
            f"<TlsTransport to {self._host!r}{'' if self._connected else ' connecting'} over {self._inner!r}>"
        )


def _name_to_check(host: str) -> str:
    """The host as a certificate has it: no trailing dot of a full name, no zone of an address."""
    name, percent, _ = host.partition("%")
    if percent and ":" in name:
        return name
    return host[:-1] if host.endswith(".") else host


def _joined(buffers: Sequence[Buffer]) -> Buffer:
    """What one call encrypts: all of it, or as much as one call should take."""
    if len(buffers) == 1 and _size(buffers[0]) <= _WRITE_SIZE:
        return buffers[0]
    parts: list[Buffer] = []
    room = _WRITE_SIZE
    for buffer in buffers:
        size = _size(buffer)
        if size > room:
            parts.append(memoryview(buffer).cast("B")[:room])
            break
        parts.append(buffer)
        room -= size
    return b"".join(parts)


def _size(buffer: Buffer) -> int:
    return buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)


def _peer_chain(connection: ssl.SSLObject) -> Sequence[Mapping[str, Any]]:
    """The certificates that the peer has shown, also where they were refused; empty where Python does not tell."""
    # Python 3.13 has a method for it that gives bytes, which nothing in the standard library reads. The object behind
    # it has given parsed certificates since 3.10. It serves for the text of an error only.
    inside = getattr(connection, "_sslobj", None)
    try:
        chain = inside.get_unverified_chain() if inside is not None else None
        return [certificate.get_info() for certificate in chain or ()]
    except (AttributeError, ValueError, ssl.SSLError):
        return ()
