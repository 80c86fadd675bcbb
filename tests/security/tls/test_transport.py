# SPDX-License-Identifier: Apache-2.0
"""TLS over a wire: whatever the wire takes and gives, the bytes are the same, and waiting is for the right thing."""

from __future__ import annotations

import random
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st
from security.tls.certificates import (
    broker,
    client,
    client_context,
    other_ca,
    server_context,
    the_ca,
)
from security.tls.wires import TlsPeer, Wire, cycle, shake

from penstock.network.transport import NOTHING, READ, WRITE
from penstock.security.tls import _transport_cy as transport_module
from penstock.security.tls._transport_cy import Listener, TlsTransport
from penstock.security.tls.errors import TlsLostError, TlsRefusedError

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


def pair(
    version: ssl.TLSVersion | None = None, context: ssl.SSLContext | None = None
) -> tuple[Wire, TlsTransport, TlsPeer]:
    wire = Wire()
    return (
        wire,
        TlsTransport(wire, context or client_context(), "localhost"),
        TlsPeer(wire, server_context(version=version)),
    )


def connected(version: ssl.TLSVersion | None = None) -> tuple[Wire, TlsTransport, TlsPeer]:
    wire, transport, peer = pair(version)
    shake(transport, peer)
    peer.turn()
    return wire, transport, peer


def send_all(transport: TlsTransport, peer: TlsPeer, buffers: list[bytes], turns: int = 1_000_000) -> int:
    """What a connection does: go on with the rest until nothing is left; the number of calls that took something."""
    rest = b"".join(buffers)
    given, takes = list(buffers), 0
    for _ in range(turns):
        if not rest:
            return takes
        sent = transport.send_some(given)
        peer.turn()
        if sent:
            takes += 1
            rest = rest[sent:]
            given = [rest]
    raise AssertionError("it is never sent")


# ---- the handshake


@pytest.mark.parametrize("version", VERSIONS)
def test_bytes_go_both_ways(version: ssl.TLSVersion):
    _, transport, peer = connected(version)
    assert transport.send_some([b"abc", bytearray(b"def"), memoryview(b"ghi")]) == 9
    peer.turn()
    assert peer.received == b"abcdefghi"
    peer.say(b"answer")
    assert transport.recv_some(65536) == b"answer"
    assert transport.recv_some(65536) is None
    assert not transport.has_pending()


def test_the_inner_transport_is_connected_first():
    wire, transport, _ = pair()
    wire.connect_answers = [WRITE, READ]
    assert transport.finish_connect() == WRITE
    assert transport.finish_connect() == READ
    assert wire.writes == 0
    assert transport.finish_connect() == READ
    assert wire.sent[0] == 22  # a handshake record


@pytest.mark.parametrize("version", VERSIONS)
def test_the_handshake_waits_for_room_only_while_it_has_something_to_write(version: ssl.TLSVersion):
    wire, transport, peer = pair(version)
    wire.room = lambda: 0
    assert [transport.finish_connect() for _ in range(3)] == [WRITE] * 3
    wire.room = lambda: 100
    assert transport.finish_connect() == READ
    # Nothing has come: it goes on waiting for the same, and writes nothing.
    writes = wire.writes
    assert [transport.finish_connect() for _ in range(3)] == [READ] * 3
    assert wire.writes == writes
    peer.turn()
    wire.room = lambda: 0
    # Its last message has to go before it counts as connected.
    while transport.finish_connect() == READ:
        peer.turn()
    assert transport.finish_connect() == WRITE
    wire.room = lambda: 1 << 20
    shake(transport, peer)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_handshake_byte_by_byte(version: ssl.TLSVersion):
    wire, transport, peer = pair(version)
    wire.room, wire.portion = cycle([1, 0]), cycle([1, 0, 0])
    shake(transport, peer)
    assert transport.finish_connect() == NOTHING
    wire.room, wire.portion = cycle([3, 0]), cycle([1])
    send_all(transport, peer, [b"hello"])
    assert peer.received == b"hello"


# ---- partial writes


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("room", [[1], [1, 0], [0, 0, 7], [5000], [16384, 1, 0], [40000, 0]])
def test_writes_that_are_taken_in_parts(version: ssl.TLSVersion, room: list[int]):
    wire, transport, peer = connected(version)
    wire.room = cycle(room)
    size = 3000 if max(room) < 10 else 100_000
    first, second = random.Random(1).randbytes(size), random.Random(2).randbytes(size)
    send_all(transport, peer, [first[:10], first[10:2000], first[2000:]])
    assert peer.received == first
    send_all(transport, peer, [second])
    assert peer.received == first + second


def test_nothing_counts_as_sent_before_its_last_byte_is_with_the_system():
    wire, transport, _ = connected()
    wire.room = cycle([1000, 0])
    taken = [transport.send_some([b"x" * 2500]) for _ in range(3)]
    assert taken[:2] == [0, 0]
    assert taken[2] == 2500
    assert len(wire.sent) > 2500


def test_a_request_is_encrypted_once_and_written_by_one_call():
    wire, transport, peer = connected()
    wire.writes = 0
    buffers = [b"x" * 100] * 1000 + [b"y" * 500_000]
    assert transport.send_some(buffers) == 600_000
    assert wire.writes == 1
    # 600,000 bytes are 37 full records; pieces of their own would have been a thousand more.
    assert len(wire.sent) < 600_000 + 38 * 30
    peer.turn()
    assert peer.received == b"".join(buffers)


def test_a_huge_request_is_written_in_parts_of_bounded_size():
    _, transport, peer = connected()
    data = random.Random(3).randbytes(1 << 20) * 20
    assert send_all(transport, peer, [data[:5], data[5:]]) == 3
    assert peer.received == data


def test_views_of_other_items_count_in_bytes():
    _, transport, peer = connected()
    view = memoryview(bytes(range(16))).cast("I")
    assert transport.send_some([view]) == 16
    peer.turn()
    assert peer.received == bytes(range(16))


def test_nothing_to_send_is_nothing_sent():
    wire, transport, _ = connected()
    assert transport.send_some([]) == 0
    assert transport.send_some([b"", b""]) == 0
    assert not wire.sent


@given(
    rooms=st.lists(
        st.sampled_from([0, 1, 2, 5, 21, 22, 23, 1000, 16384, 16406, 50000]), min_size=1, max_size=6
    ),
    portions=st.lists(st.sampled_from([0, 1, 5, 21, 1000, 16406, 70000]), min_size=1, max_size=6),
    sizes=st.lists(st.sampled_from([0, 1, 2, 100, 16383, 16384, 16385, 40000]), min_size=1, max_size=5),
    max_bytes=st.sampled_from([1000, 16383, 16384, 65536]),
)
def test_the_same_bytes_whatever_the_wire_takes_and_gives(
    rooms: list[int], portions: list[int], sizes: list[int], max_bytes: int
):
    wire, transport, peer = connected()
    wire.room = cycle([*rooms, 997])
    wire.portion = cycle([*portions, 1009])
    buffers = [bytes([at]) * size for at, size in enumerate(sizes)]
    send_all(transport, peer, buffers)
    whole = b"".join(buffers)
    assert peer.received == whole
    for buffer in buffers:
        if buffer:
            peer.say(buffer)
    assert read_all(transport, wire, max_bytes) == whole


def read_all(transport: TlsTransport, wire: Wire, max_bytes: int) -> bytes:
    """What a connection does, with a selector that sees the wire alone."""
    got = bytearray()
    while wire.arrived:
        while True:
            data = transport.recv_some(max_bytes)
            if data is None:
                break
            assert 0 < len(data) <= max_bytes
            got += data
            if len(data) < max_bytes and not transport.has_pending():
                break
    return bytes(got)


# ---- reading


@pytest.mark.parametrize("version", VERSIONS)
def test_many_records_are_read_from_the_wire_at_once(version: ssl.TLSVersion):
    wire, transport, peer = connected(version)
    transport.recv_some(65536)
    for at in range(100):
        peer.say(bytes([at]) * 50)
    wire.reads = 0
    assert transport.recv_some(65536) == b"".join(bytes([at]) * 50 for at in range(100))
    assert wire.reads == 1
    assert not transport.has_pending()


def test_what_is_left_of_a_record_is_pending():
    wire, transport, peer = connected()
    peer.say(b"a" * 10_000)
    assert transport.recv_some(100) == b"a" * 100
    assert transport.has_pending()
    assert not wire.arrived
    assert transport.recv_some(100_000) == b"a" * 9_900
    assert not transport.has_pending()


def test_half_a_record_is_nothing_yet():
    wire, transport, peer = connected()
    while transport.recv_some(65536) is not None:
        pass
    peer.say(b"a" * 1000)
    wire.portion = cycle([500])
    assert transport.recv_some(65536) is None
    assert not transport.has_pending()
    assert transport.recv_some(65536) is None
    assert transport.recv_some(65536) == b"a" * 1000


def test_session_tickets_are_no_data():
    wire, transport, _ = connected(ssl.TLSVersion.TLSv1_3)
    assert wire.arrived  # the tickets
    assert transport.recv_some(65536) is None
    assert not transport.has_pending()


def test_no_call_asks_openssl_for_what_is_not_there():
    _, transport, peer = connected()
    transport.recv_some(65536)
    peer.say(b"a" * 100)
    calls = []
    read = transport._engine.read

    class Counting:
        def read(self, size: int) -> bytes:
            calls.append(size)
            return read(size)

    transport._engine = Counting()
    assert transport.recv_some(65536) == b"a" * 100
    assert len(calls) == 1


# ---- the end


def test_a_peer_that_says_goodbye_has_closed():
    _, transport, peer = connected()
    peer.say(b"last")
    peer.say_goodbye()
    assert transport.recv_some(65536) == b"last"
    assert transport.has_pending()
    assert transport.recv_some(65536) == b""
    assert transport.recv_some(65536) == b""


def test_a_peer_that_closes_without_a_word_has_closed():
    wire, transport, peer = connected()
    peer.say(b"last")
    wire.peer_closed = True
    assert transport.recv_some(65536) == b"last"
    assert transport.recv_some(65536) == b""
    assert transport.recv_some(65536) == b""


def test_answers_before_rubbish_count():
    wire, transport, peer = connected()
    peer.say(b"answer")
    wire.arrived += b"\x17\x03\x03\x00\x20" + bytes(32)
    assert transport.recv_some(65536) == b"answer"
    assert transport.has_pending()
    with pytest.raises(TlsLostError, match="TLS failed"):
        transport.recv_some(65536)
    with pytest.raises(TlsLostError):
        transport.recv_some(65536)


def test_closing_says_goodbye_and_never_waits():
    wire, transport, peer = connected()
    wire.room = cycle([0])
    transport.close()
    assert wire.closed == 1
    wire, transport, peer = connected()
    transport.close()
    transport.close()
    peer.turn()
    assert peer.told_to_close
    assert wire.closed == 2


def test_closing_in_the_middle_of_a_write_adds_nothing():
    wire, transport, peer = connected()
    wire.room = cycle([10, 0])
    assert transport.send_some([b"x" * 100]) == 0
    wire.room = lambda: 1 << 20
    transport.close()
    peer.turn()
    assert peer.refused is None
    assert not peer.told_to_close
    assert len(peer.received) == 0


def test_closing_a_broken_connection_is_harmless():
    wire, transport, _ = connected()
    wire.write_error = BrokenPipeError(32, "Broken pipe")
    transport.close()
    assert wire.closed == 1


def test_new_keys_are_answered():
    # TLS 1.3 has key updates; Python cannot ask for one, so that what it writes on its own account is put there.
    wire, transport, peer = connected()
    transport._outgoing.write(b"an answer of OpenSSL")
    peer.say(b"x")
    assert transport.recv_some(100) == b"x"
    assert wire.sent == b"an answer of OpenSSL"


# ---- refusals: who is told what


def refused(transport: TlsTransport, peer: TlsPeer) -> TlsRefusedError:
    with pytest.raises(TlsRefusedError) as caught:
        shake(transport, peer, 20)
    assert caught.value.advice
    return caught.value


@pytest.mark.parametrize("version", VERSIONS)
def test_an_unknown_ca(version: ssl.TLSVersion):
    _, transport, peer = pair(version, client_context(other_ca()))
    error = refused(transport, peer)
    assert "(CN=broker) is not signed by a CA that is trusted here" in str(error)
    assert "'CN=Test CA'" in str(error)
    assert "ssl.truststore.location" in error.advice
    assert isinstance(error.__cause__, ssl.SSLCertVerificationError)
    peer.turn()
    assert peer.refused is not None  # our alert has told the broker why
    assert "UNKNOWN_CA" in (peer.refused.reason or "")


@pytest.mark.parametrize("version", VERSIONS)
def test_no_client_certificate(version: ssl.TLSVersion):
    wire = Wire()
    transport = TlsTransport(wire, client_context(), "localhost")
    peer = TlsPeer(wire, server_context(wants_client_of=the_ca(), version=version))
    if version is ssl.TLSVersion.TLSv1_2:
        error = refused(transport, peer)
    else:
        # The client has done its part before the broker looks.
        shake(transport, peer)
        assert transport.send_some([b"request"]) == 7
        peer.turn()
        with pytest.raises(TlsRefusedError) as caught:
            transport.recv_some(65536)
        error = caught.value
        with pytest.raises(TlsRefusedError):
            transport.recv_some(65536)
    assert "the broker refused the TLS connection with the alert" in str(error)
    assert "ssl.keystore" in error.advice


@pytest.mark.parametrize("trusted", [True, False])
def test_a_client_certificate(trusted: bool):
    wire = Wire()
    transport = TlsTransport(wire, client_context(identity=client()), "localhost")
    peer = TlsPeer(wire, server_context(wants_client_of=the_ca() if trusted else other_ca()))
    shake(transport, peer)
    peer.turn()
    if trusted:
        assert transport.recv_some(100) is None
        return
    with pytest.raises(TlsRefusedError, match="unknown ca"):
        transport.recv_some(65536)


def test_the_alert_is_found_behind_a_failed_write():
    wire = Wire()
    transport = TlsTransport(wire, client_context(), "localhost")
    peer = TlsPeer(wire, server_context(wants_client_of=the_ca()))
    shake(transport, peer)
    peer.turn()  # its alert is on the wire, and it is gone
    wire.write_error = BrokenPipeError(32, "Broken pipe")
    with pytest.raises(TlsRefusedError) as caught:
        transport.send_some([b"request"])
    assert isinstance(caught.value.__cause__, BrokenPipeError)
    with pytest.raises(TlsRefusedError):
        transport.recv_some(65536)


def test_the_alert_is_found_behind_a_last_handshake_message_that_cannot_be_written():
    wire = Wire()
    transport = TlsTransport(wire, client_context(), "localhost")
    peer = TlsPeer(wire, server_context(version=ssl.TLSVersion.TLSv1_2))
    assert transport.finish_connect() == READ
    wire.sent.clear()
    wire.arrived += b"\x15\x03\x03\x00\x02\x02\x28"  # fatal, handshake_failure
    wire.room = lambda: 0
    with pytest.raises(TlsRefusedError, match="handshake failure"):
        transport.finish_connect()
    wire, transport, peer = pair(ssl.TLSVersion.TLSv1_2)
    assert transport.finish_connect() == READ
    peer.turn()
    wire.portion = cycle([len(wire.arrived), 7])
    wire.arrived += b"\x15\x03\x03\x00\x02\x02\x28"
    wire.write_error = ConnectionResetError(104, "Connection reset by peer")
    with pytest.raises(TlsRefusedError, match="handshake failure"):
        transport.finish_connect()


def test_a_failed_write_without_an_alert_is_no_refusal():
    wire, transport, _ = connected()
    wire.write_error = ConnectionResetError(104, "Connection reset by peer")
    wire.read_error = ConnectionResetError(104, "Connection reset by peer")
    with pytest.raises(ConnectionResetError):
        transport.send_some([b"request"])


def test_answers_behind_a_failed_write_count():
    wire, transport, peer = connected()
    peer.say(b"a" * 300)
    wire.write_error = BrokenPipeError(32, "Broken pipe")
    with pytest.raises(BrokenPipeError):
        transport.send_some([b"request"])
    assert transport.has_pending()
    assert transport.recv_some(200) == b"a" * 200
    assert transport.recv_some(200) == b"a" * 100
    assert not transport.has_pending()


def test_an_alert_after_the_first_answer_is_no_refusal():
    wire, transport, peer = connected(ssl.TLSVersion.TLSv1_2)
    peer.say(b"answer")
    assert transport.recv_some(100) == b"answer"
    wire.arrived += b"\x17\x03\x03\x00\x20" + bytes(32)  # a record that does not verify
    with pytest.raises(TlsLostError):
        transport.recv_some(100)


def test_no_common_version():
    context = client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    _, transport, peer = pair(ssl.TLSVersion.TLSv1_3, context)
    error = refused(transport, peer)
    assert "protocol version" in str(error)
    assert "ssl.enabled.protocols" in error.advice


def test_no_common_cipher():
    context = client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    server = server_context(version=ssl.TLSVersion.TLSv1_2)
    server.set_ciphers("ECDHE-ECDSA-AES256-GCM-SHA384")
    wire = Wire()
    error = refused(TlsTransport(wire, context, "localhost"), TlsPeer(wire, server))
    assert "ssl.cipher.suites" in error.advice


# ---- peers that are none


def test_a_plain_listener_that_closes():
    wire, transport, _ = pair()
    assert transport.finish_connect() == READ
    wire.peer_closed = True
    with pytest.raises(TlsLostError, match="closed the connection during the TLS handshake") as caught:
        transport.finish_connect()
    assert "speak TLS" in caught.value.advice


def test_a_plain_listener_that_resets():
    wire, transport, _ = pair()
    assert transport.finish_connect() == READ
    wire.read_error = ConnectionResetError(104, "Connection reset by peer")
    with pytest.raises(TlsLostError, match="Connection reset by peer") as caught:
        transport.finish_connect()
    assert "speak TLS" in caught.value.advice


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x10" + bytes(16), b"220 hello\r\n"]
)
def test_a_plain_listener_that_answers(answer: bytes):
    wire, transport, _ = pair()
    assert transport.finish_connect() == READ
    wire.arrived += answer
    with pytest.raises(TlsRefusedError, match="not TLS") as caught:
        transport.finish_connect()
    assert "security.protocol" in caught.value.advice


def hang_up(listener: Listener, heard: bytes = b"", error: OSError | None = None) -> OSError:
    """A peer that closes, or resets, during the handshake."""
    wire = Wire()
    transport = TlsTransport(wire, client_context(), "localhost", listener)
    transport.finish_connect()
    if heard:
        wire.arrived += heard
        transport.finish_connect()
    wire.read_error, wire.peer_closed = error, True
    with pytest.raises(OSError) as caught:
        transport.finish_connect()
    return caught.value


@pytest.mark.parametrize("error", [None, ConnectionResetError("reset")], ids=["closed", "reset"])
def test_a_peer_that_hangs_up_again_and_again_does_not_speak_tls(error: OSError | None):
    listener = Listener()
    assert [type(hang_up(listener, error=error)) for _ in range(2)] == [TlsLostError, TlsLostError]
    believed = [hang_up(listener, error=error) for _ in range(2)]
    assert [type(each) for each in believed] == [TlsRefusedError, TlsRefusedError]
    assert "3 times" in str(believed[0])
    assert "set security.protocol to PLAINTEXT" in believed[0].advice
    assert isinstance(hang_up(Listener(), error=error), TlsLostError), "another peer"


def test_a_peer_that_has_spoken_tls_may_hang_up_as_often_as_it_wants():
    listener = Listener()
    hang_up(listener)
    wire = Wire()
    shake(TlsTransport(wire, client_context(), "localhost", listener), TlsPeer(wire, server_context()))
    assert {type(hang_up(listener)) for _ in range(5)} == {TlsLostError}


def test_a_peer_that_hangs_up_in_the_middle_of_an_answer_speaks_tls():
    listener = Listener()
    assert {type(hang_up(listener, b"\x16\x03\x03")) for _ in range(5)} == {TlsLostError}


@given(st.binary(min_size=1, max_size=300), st.booleans())
def test_any_first_answer_ends_in_an_error_or_in_waiting(answer: bytes, as_record: bool):
    wire = Wire()
    transport = TlsTransport(wire, client_context(), "localhost")
    transport.finish_connect()
    if as_record:
        answer = b"\x16\x03\x03" + len(answer).to_bytes(2, "big") + answer
    wire.arrived += answer
    try:
        assert transport.finish_connect() == READ
    except OSError:
        return
    wire.peer_closed = True
    with pytest.raises(OSError):
        transport.finish_connect()


@given(st.integers(0, 3000), st.integers(0, 255))
def test_a_handshake_with_one_wrong_byte(at: int, byte: int):
    wire, transport, peer = pair()
    transport.finish_connect()
    peer.turn()
    at %= len(wire.arrived)
    wire.arrived[at] = byte
    wire.peer_closed = True
    for _ in range(20):
        try:
            if transport.finish_connect() == NOTHING:
                break
        except OSError:
            break
        peer.turn()
    else:
        raise AssertionError("the handshake does not end")


def test_a_handshake_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch):
    # OpenSSL has bounds of its own for all that is known to it; this is one for all that is not.
    monkeypatch.setattr(transport_module, "_HANDSHAKE_BYTES", 500)
    _, transport, peer = pair()
    with pytest.raises(TlsRefusedError, match="more than 500 bytes in the TLS handshake"):
        shake(transport, peer)


def test_a_message_that_announces_more_than_any_has_is_refused_early():
    wire, transport, _ = pair()
    transport.finish_connect()
    wire.arrived += (b"\x16\x03\x03\x40\x00" + b"\x02\x0f\xff\xff" + bytes(16380)) * 200
    with pytest.raises(TlsRefusedError):
        transport.finish_connect()
    assert len(wire.arrived) > 2_000_000


# ---- names


def test_a_trailing_dot_is_not_sent():
    wire = Wire()
    transport = TlsTransport(wire, client_context(), "localhost.")
    asked = []
    server = server_context()
    server.sni_callback = lambda _, name, __: asked.append(name)
    shake(transport, TlsPeer(wire, server))
    assert asked == ["localhost"]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::1%lo", "BROKER.example"])
def test_addresses_and_names_of_the_certificate(host: str):
    wire = Wire()
    asked = []
    server = server_context()
    server.sni_callback = lambda _, name, __: asked.append(name)
    shake(TlsTransport(wire, client_context(), host), TlsPeer(wire, server))
    assert asked == [host if host[0] == "B" else None]


@pytest.mark.parametrize("host", ["other.example", "127.0.0.2"])
def test_a_certificate_for_others(host: str):
    wire = Wire()
    error = refused(TlsTransport(wire, client_context(), host), TlsPeer(wire, server_context()))
    assert f"is not for '{host}': it is for localhost, broker.example, 127.0.0.1" in str(error)
    assert "advertised.listeners" in error.advice


def test_without_the_check_of_names_sni_is_still_sent():
    wire = Wire()
    context = client_context()
    context.check_hostname = False
    asked = []
    server = server_context()
    server.sni_callback = lambda _, name, __: asked.append(name)
    shake(TlsTransport(wire, context, "other.example"), TlsPeer(wire, server))
    assert asked == ["other.example"]


@pytest.mark.parametrize("host", ["", ".", ".example", "a\0b", "x" * 70 + ".example"])
def test_names_that_nobody_can_have(host: str):
    with pytest.raises(TlsRefusedError, match="host name"):
        TlsTransport(Wire(), client_context(), host)


def test_it_shows_what_it_is():
    _, transport, peer = pair()
    assert "'localhost' connecting over" in repr(transport)
    shake(transport, peer)
    assert "connecting" not in repr(transport)
    assert transport.fileno() == 7
    assert broker().certificate is not None
