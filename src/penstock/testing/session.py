# SPDX-License-Identifier: Apache-2.0
"""One connection to one broker: bytes in, bytes out, in virtual or real time.

As in Kafka, a connection has at most one request at work: the next one is looked at when the answer to the one before
has been given. So answers come in order, and a Produce that waits for its replicas holds up what is behind it.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from penstock.error_codes import ErrorCode
from penstock.errors import ProtocolError
from penstock.protocol._framing_cy import FrameReader
from penstock.protocol._wire_reader import Cursor, Malformed
from penstock.protocol.codec import decode_request_body, encode_response_body
from penstock.protocol.messages import API_BY_KEY, API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from penstock.protocol.schema import Buffer
from penstock.testing.apis import HANDLERS
from penstock.testing.apis.cluster import TELEMETRY, unknown_version_answer
from penstock.testing.apis.context import ApiRequest, Body, NoAnswer, Pending
from penstock.testing.faults import Fault
from penstock.testing.security.authentication import Admission, Authentication

if TYPE_CHECKING:
    from penstock.testing.cluster import FakeCluster

_HEADER = struct.Struct(">hhih")  # api key, version, correlation id, length of the client id
_INT32 = struct.Struct(">i")


class _Exchange(NamedTuple):
    """A request at work: what its answer needs."""

    request: ApiRequest
    correlation_id: int
    fault: Fault


class _Held(NamedTuple):
    """An answer that is complete and waits for its time."""

    ready_at: float
    frame: bytes
    close_reason: str  # "" leaves the connection open


class Session:
    """A connection, seen from the broker.

    Attributes:
        authentication: who is at the other end.
        closed: no more bytes are taken; `output` still gives what was said before.
        close_reason: why, for the reader of a failing test.
    """

    def __init__(self, cluster: FakeCluster, broker_id: int, authentication: Authentication) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.authentication = authentication
        self.closed = False
        self.close_reason = ""
        self._reader = FrameReader(cluster.settings.max_request_bytes)
        self._requests: deque[Buffer] = deque()
        self._pending: tuple[_Exchange, Pending] | None = None
        self._held: _Held | None = None
        self._muted_until = -math.inf
        self._out: list[bytes] = []

    def feed(self, data: bytes, now: float) -> None:
        """Take bytes from the client, and do what they ask as far as it can be done now."""
        if self.closed:
            return
        try:
            self._requests.extend(self._reader.feed(data))
        except ProtocolError as error:
            self.close(f"not a Kafka request: {error}")
        self._advance(now)
        if self._reader.trouble is not None:
            self.close(f"not a Kafka request: {self._reader.trouble}")

    def output(self, now: float) -> list[bytes]:
        """The answers that may be sent by now, a frame each; they are given once."""
        self._advance(now)
        out, self._out = self._out, []
        return out

    def next_output_at(self) -> float:
        """When `output` may have something; other connections and the cluster's own events may bring it earlier."""
        if self._out:
            return -math.inf
        if self._held is not None:
            return self._held.ready_at
        if self._pending is not None:
            return self._pending[1].deadline
        return self._muted_until if self._requests and not self.closed else math.inf

    def close(self, reason: str) -> None:
        """Read no more requests, and send no more answers."""
        if not self.closed:
            self.closed = True
            self.close_reason = reason
        self._requests.clear()
        self._pending = self._held = None

    # ------------------------------------------------------------------------------------------ one at a time

    def _advance(self, now: float) -> None:
        while not self.closed:
            if self._held is not None:
                if self._held.ready_at > now:
                    return
                self._release(self._held)
            elif self._pending is not None:
                exchange, pending = self._pending
                self.cluster.tick(now)
                body = pending.try_answer(now)
                if body is None:
                    return
                self._pending = None
                self._answer(exchange, body, now)
            elif self._requests and now >= self._muted_until:
                self._serve(self._requests.popleft(), now)
            else:
                return

    def _release(self, held: _Held) -> None:
        self._held = None
        self._out.append(held.frame)
        if held.close_reason:
            self.close(held.close_reason)

    def _serve(self, frame: Buffer, now: float) -> None:
        if self.authentication.expects_bare_token:
            self._serve_bare_token(bytes(frame), now)
            return
        exchange = self._read(frame, now)
        if exchange is None:
            return
        request, _, fault = exchange
        handler = HANDLERS[request.api.key]
        if fault.cut == "before":
            self.close("a fault cut the connection before the request")
            return
        if fault.error is not None and fault.partitions is None and not fault.took_effect:
            self._answer(exchange, handler.refuse(request, fault.error), now)
            return
        admission = self.authentication.admit(request.api.key, now)
        if admission is Admission.CLOSED:
            self.close(f"{request.api.name} before the client has said who it is, or after that has expired")
            return
        if admission is Admission.ILLEGAL:
            self._answer(
                exchange, handler.refuse(request, ErrorCode.ILLEGAL_SASL_STATE), now, close_after=True
            )
            return
        answer = handler.handle(request)
        if answer is NoAnswer.CLOSE:
            self.close("the request failed, and its client wants no answer")
        elif isinstance(answer, Pending):
            self._pending = (exchange, answer)
        elif not isinstance(answer, NoAnswer):
            self._answer(exchange, answer, now, close_after=_is_refusal(request, answer))
        elif fault.cut == "after":
            self.close("a fault cut the connection after the request")

    def _serve_bare_token(self, token: bytes, now: float) -> None:
        answer = self.authentication.token(token, now)
        if answer.error:
            self.close(f"a token was refused: {answer.error}")
        else:
            self._out.append(_INT32.pack(len(answer.token)) + answer.token)

    # ------------------------------------------------------------------------------------------ in

    def _read(self, frame: Buffer, now: float) -> _Exchange | None:
        """Parse a request; None when the connection was closed or the answer is there already."""
        try:
            key, version, correlation_id, name_size = _HEADER.unpack_from(frame)
            api = API_BY_KEY.get(key)
            release = self.cluster.release_of(self.broker_id)
            accepted = api is not None and (
                release.accepts(api, version) or (self.cluster.telemetry is not None and api in TELEMETRY)
            )
            if not accepted and release.drops_unknown:
                return None  # an exception in the broker's log is all that happens
            if key == API_VERSIONS.key and not accepted:
                # A request in an unknown version is answered in version 0, which every client can read.
                self._out.append(_frame(correlation_id, b"", unknown_version_answer(release)))
                return None
            if api is None or not accepted or key not in HANDLERS:
                self.close(f"API {key} version {version} is not supported")
                return None
            cursor = Cursor(memoryview(frame))
            cursor.advance(_HEADER.size)
            start = cursor.advance(max(0, name_size))
            client_id = None if name_size < 0 else str(cursor.data[start : cursor.pos], "utf-8")
            if api.request_header_version(version) >= 2:
                cursor.skip_tagged_fields()
            body = decode_request_body(api, version, cursor.data[cursor.pos :])
        except (ProtocolError, Malformed, struct.error, UnicodeDecodeError) as error:
            self.close(f"a request that cannot be read: {error}")
            return None
        self.cluster.tick(now)
        request = ApiRequest(
            self.cluster, self.broker_id, api, version, client_id, body, now, self.authentication
        )
        self.cluster.received.append(request)
        fault = self.cluster.faults.take(request)
        if fault.error is not None and fault.partitions is not None:
            request = replace(
                request,
                forced_errors=dict.fromkeys(fault.partitions, fault.error),
                forced_after_effect=fault.took_effect,
            )
        return _Exchange(request, correlation_id, fault)

    # ------------------------------------------------------------------------------------------ out

    def _answer(self, exchange: _Exchange, body: Body, now: float, *, close_after: bool = False) -> None:
        request, correlation_id, fault = exchange
        if fault.cut == "after":
            self.close("a fault cut the connection after the request")
            return
        if fault.error is not None and fault.partitions is None and fault.took_effect:
            body = HANDLERS[request.api.key].refuse(request, fault.error)
        answer_at = now + fault.delay
        if fault.throttle_ms:
            body = body | {"throttle_time_ms": fault.throttle_ms}
            if request.api.client_throttles(request.version):
                self._muted_until = answer_at + fault.throttle_ms / 1000
            else:
                answer_at += fault.throttle_ms / 1000  # a broker of that time waits itself
        raw = b"".join(encode_response_body(request.api, request.version, body))
        if fault.garbage:
            raw = self.cluster.rng.randbytes(max(len(raw), 16))
        tags = b"\0" if request.api.response_header_version(request.version) >= 1 else b""
        frame = _frame(correlation_id, tags, raw)
        if fault.truncate is not None:
            frame = frame[: fault.truncate]
        reason = "a fault cut the answer short" if fault.truncate is not None else ""
        if close_after:
            reason = "the client was refused"
        self._held = _Held(answer_at, frame, reason)


def _is_refusal(request: ApiRequest, answer: Body) -> bool:
    """Whether a broker closes the connection after this answer."""
    if request.api is SASL_HANDSHAKE:
        return bool(answer["error_code"] == ErrorCode.UNSUPPORTED_SASL_MECHANISM)
    return bool(
        request.api is SASL_AUTHENTICATE and answer["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
    )


def _frame(correlation_id: int, tags: bytes, body: bytes) -> bytes:
    content = _INT32.pack(correlation_id) + tags + body
    return _INT32.pack(len(content)) + content
