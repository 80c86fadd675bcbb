# SPDX-License-Identifier: Apache-2.0
"""The network client on a network in memory: what goes out, what comes back, and when."""

from __future__ import annotations

import logging
import math
import struct

import pytest
from network.fakes import api_versions_body, metadata_body, response_frame
from network.harness import ANSWER, Harness, batch, produce, question, with_bootstrap

from penstock.errors import (
    AuthenticationError,
    IllegalStateError,
    NetworkError,
    NotKafkaError,
    ProtocolError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from penstock.network import ClientRequest
from penstock.protocol.messages import API_VERSIONS, FIND_COORDINATOR, METADATA
from penstock.protocol.requests import CoordinatorKind, FindCoordinator, SchemaRequest
from penstock.types import Node


def test_a_request_is_written_at_once():
    h = Harness()
    node = h.connect()
    h.send()
    assert h.client.is_ready(node, h.now)
    assert [request.api for request in h.brokers[0].waiting] == [FIND_COORDINATOR]
    assert h.client.in_flight_count(0) == h.client.in_flight_count() == 1


def test_an_answer_reaches_its_request():
    h = Harness(client_id="me")
    h.connect()
    h.send()
    h.poll()
    asked = h.brokers[0].waiting[0]
    h.network.after(0.25, lambda: h.brokers[0].answer(asked, ANSWER))
    returned = h.poll(10)
    assert returned == h.ended
    response = h.ended[0]
    assert (response.error, response.version, response.node) == (None, 3, h.nodes[0])
    assert response.body["host"] == "h"
    assert response.latency == pytest.approx(0.25)
    assert (asked.client_id, asked.body["key"]) == ("me", "k")
    assert h.client.in_flight_count() == 0


def test_several_answers_in_one_read_are_handled_in_order():
    h = Harness()
    h.connect()
    for _ in range(3):
        h.send()
        h.poll()
    for asked in list(h.brokers[0].waiting):
        h.brokers[0].answer(asked, ANSWER | {"port": asked.correlation_id})
    h.poll()
    ports = [response.body["port"] for response in h.ended]
    assert len(ports) == 3
    assert ports == sorted(ports)


def test_a_node_with_too_many_requests_in_flight_is_not_ready():
    h = Harness(max_in_flight=2)
    node = h.connect()
    for _ in range(2):
        assert h.client.ready(node, h.now)
        h.send()
        h.poll()
    assert not h.client.ready(node, h.now)
    assert h.client.connection_delay(node, h.now) == math.inf
    with pytest.raises(IllegalStateError, match="broker 0 at b0:9092 is not ready"):
        h.send()
    h.brokers[0].answer(h.brokers[0].waiting[0], ANSWER)
    h.poll()
    assert h.client.ready(node, h.now)


def test_a_node_is_not_ready_until_the_previous_request_is_written():
    h = Harness()
    node = h.connect()
    peer = h.brokers[0].peers[0]
    peer.limit_writes(10)
    h.send(request=produce(-1, batch(1000), batch(70)))
    h.poll()
    assert not h.client.is_ready(node, h.now)
    assert not h.brokers[0].waiting
    peer.limit_writes(500)
    h.poll()
    assert not h.brokers[0].waiting
    peer.limit_writes(None)
    h.poll()
    assert h.client.is_ready(node, h.now)
    topic = h.brokers[0].waiting[0].body["topic_data"][0]
    assert [bytes(row["records"]) for row in topic["partition_data"]] == [
        bytes(batch(1000)),
        bytes(batch(70)),
    ]


def test_after_a_partial_write_the_client_no_longer_waits_for_room():
    h = Harness()
    h.connect()
    h.brokers[0].peers[0].limit_writes(10)
    h.send()
    h.poll()
    h.brokers[0].peers[0].limit_writes(None)
    h.poll()
    before = h.now
    h.poll(5)  # with nothing to write and nothing to read, the time passes
    assert h.now == before + 5


def test_the_parts_of_a_large_request_are_written_in_one_poll_while_there_is_room(monkeypatch):
    h = Harness()
    node = h.connect()
    transport = h.network.transports[0]
    send_some = transport.send_some
    parts = []

    def part_by_part(buffers):
        if len(parts) % 2:  # the socket is full after each part
            parts.append(0)
            return 0
        transport.room = 100
        parts.append(send_some(buffers))
        transport.room = 1
        return parts[-1]

    monkeypatch.setattr(transport, "send_some", part_by_part)
    h.send(request=produce(-1, batch(1000)))
    h.poll()
    assert h.client.is_ready(node, h.now)
    assert sum(parts) > 1000


def test_batches_are_handed_to_the_transport_uncopied(monkeypatch):
    h = Harness()
    h.connect()
    records = batch(100_000)
    handed_over = []
    transport = h.network.transports[0]
    monkeypatch.setattr(
        transport, "send_some", lambda buffers: handed_over.extend(buffers) or sum(map(len, buffers))
    )
    h.send(request=produce(-1, records))
    h.poll()
    assert any(buffer is records for buffer in handed_over)


def test_a_request_without_answer_ends_when_it_is_written():
    h = Harness()
    node = h.connect()
    h.brokers[0].peers[0].limit_writes(10)
    h.send(request=produce(0, batch(100)))
    h.poll()
    assert not h.ended
    h.brokers[0].peers[0].limit_writes(None)
    h.poll(10)
    assert [(response.body, response.error) for response in h.ended] == [(None, None)]
    assert h.client.in_flight_count() == 0
    assert h.client.is_ready(node, h.now)


def test_a_request_without_answer_ends_at_once_where_there_is_room():
    h = Harness()
    h.connect()
    h.send(request=produce(0, batch(100)))
    before = h.now
    assert len(h.poll(10)) == 1
    assert h.now == before


def test_without_a_common_version_nothing_is_sent():
    h = Harness()
    h.brokers[0].rules[API_VERSIONS.key] = lambda _: api_versions_body(Produce=(0, 2))
    h.connect()
    h.send(request=produce(-1, batch(100)))
    before = h.now
    assert len(h.poll(10)) == 1
    assert h.now == before
    assert isinstance(h.ended[0].error, UnsupportedVersionError)
    assert h.ended[0].version == -1
    assert all(request.api is API_VERSIONS for request in h.brokers[0].seen)


def test_an_error_in_a_handler_is_logged_and_does_not_stop_the_others(caplog):
    h = Harness()
    h.connect()

    def fail(_):
        raise RuntimeError("in the handler")

    h.client.send(ClientRequest(h.nodes[0], question(), 30, fail), h.now)
    h.poll()
    h.send()
    h.poll()
    for asked in list(h.brokers[0].waiting):
        h.brokers[0].answer(asked, ANSWER)
    assert len(h.poll()) == 2
    assert len(h.ended) == 1
    assert "in the handler" in caplog.text


# ---- time-outs, throttling


def test_a_request_timeout_disconnects():
    """Requirement 82. The one that is late timed out; the others lost their connection."""
    h = Harness()
    h.connect()
    h.send(timeout=60)
    h.poll()
    h.send(timeout=10)
    h.poll()
    h.send(timeout=60)
    before = h.now
    h.poll_until(lambda: h.ended, timeout=100)
    assert h.now == pytest.approx(before + 10)
    assert [type(response.error) for response in h.ended] == [
        NetworkError,
        RequestTimedOutError,
        NetworkError,
    ]
    assert "FindCoordinator" in str(h.ended[1].error)
    assert "broker 0 at b0:9092" in str(h.ended[1].error)
    assert h.brokers[0].peers[0].closed_by_client
    assert h.client.in_flight_count() == 0


def test_throttle_time_does_not_count_towards_the_timeout():
    """Requirement 82."""
    h = Harness()
    node = h.connect()
    h.send(timeout=10)
    h.poll()
    h.send(timeout=10)
    h.poll()
    start = h.now
    h.brokers[0].answer(h.brokers[0].waiting[0], ANSWER | {"throttle_time_ms": 7000})
    h.poll()
    assert not h.client.ready(node, h.now)
    assert h.client.connection_delay(node, h.now) == pytest.approx(7)
    h.clock.advance(7)
    assert h.client.ready(node, h.now)
    h.poll_until(lambda: len(h.ended) == 2, timeout=100)
    assert h.now == pytest.approx(start + 17)
    assert isinstance(h.ended[1].error, RequestTimedOutError)


def test_a_version_from_before_client_throttling_does_not_mute():
    h = Harness()
    node = h.connect()
    h.send(request=SchemaRequest.of(FIND_COORDINATOR, {"key": "k", "key_type": 1}, max_version=1))
    h.poll()
    h.brokers[0].answer(h.brokers[0].waiting[0], ANSWER | {"throttle_time_ms": 7000})
    h.poll()
    assert len(h.ended) == 1
    assert h.client.is_ready(node, h.now)


def test_the_produce_answer_throttles_too():
    h = Harness()
    node = h.connect()
    h.send(request=produce(-1, batch(100)))
    h.poll()
    h.brokers[0].answer(h.brokers[0].waiting[0], {"throttle_time_ms": 2000, "responses": []})
    h.poll()
    assert not h.client.is_ready(node, h.now)
    assert h.client.connection_delay(node, h.now) == pytest.approx(2)


@pytest.mark.parametrize("version", [3, 4])
def test_the_answer_of_find_coordinator_throttles_too(version):
    h = Harness()
    node = h.connect()
    # The rows are found by key, and this one is also the name of a field.
    request = FindCoordinator(CoordinatorKind.TRANSACTION, ["throttle_time_ms"])
    request.max_version = version
    h.send(request=request)
    h.poll()
    row = {"node_id": 1, "host": "h", "port": 1, "error_code": 0}
    body = row if version < 4 else {"coordinators": [row | {"key": "throttle_time_ms"}]}
    h.brokers[0].answer(h.brokers[0].waiting[0], body | {"throttle_time_ms": 2000})
    h.poll()
    assert h.ended[0].body["coordinators"]["throttle_time_ms"]["node_id"] == 1
    assert h.client.connection_delay(node, h.now) == pytest.approx(2)


def test_an_unused_connection_is_closed():
    h = Harness(connections_max_idle_ms=5000)
    node = h.connect()
    h.clock.advance(4)
    h.send()
    h.poll()
    h.brokers[0].answer(h.brokers[0].waiting[0], ANSWER)
    h.poll()
    used_at = h.now
    h.poll_until(lambda: h.now >= used_at + 4, timeout=0.7)
    assert h.client.is_ready(node, h.now)
    h.poll_until(lambda: not h.client.is_ready(node, h.now), timeout=0.7)
    assert h.now == pytest.approx(used_at + 5)
    assert h.brokers[0].peers[0].closed_by_client
    assert not h.updater.connection_failures
    assert h.client.connection_error(0) is None


def test_a_connection_with_a_request_in_flight_is_not_idle():
    h = Harness(connections_max_idle_ms=5000)
    node = h.connect()
    h.send(timeout=100)
    h.poll(50)
    h.poll(1)
    assert h.client.in_flight_count(node.id) == 1


def test_unused_connections_stay_when_that_is_wanted():
    h = Harness(connections_max_idle_ms=-1)
    node = h.connect()
    h.poll(10_000)
    assert h.client.is_ready(node, h.now)


# ---- disconnects


def test_disconnect_fails_the_requests_in_flight_oldest_first():
    """Requirement 87."""
    h = Harness()
    h.connect()
    requests = [question() for _ in range(4)]
    for request in requests:
        h.send(request=request)
        h.poll()
    h.disconnect()
    h.poll()
    assert [response.request for response in h.ended] == requests
    assert all(isinstance(response.error, NetworkError) for response in h.ended)
    assert not h.updater.connection_failures


def test_answers_that_came_before_the_end_of_the_stream_count():
    h = Harness()
    h.connect()
    for _ in range(2):
        h.send()
        h.poll()
    h.brokers[0].answer(h.brokers[0].waiting[0], ANSWER)
    h.brokers[0].peers[0].close()
    h.poll_until(lambda: len(h.ended) == 2)
    assert [type(response.error) for response in h.ended] == [type(None), NetworkError]
    assert "broker 0 at b0:9092 closed the connection" in str(h.ended[1].error)
    assert h.client.connection_error(0) is h.ended[1].error
    assert h.updater.connection_failures == [(h.nodes[0], h.ended[1].error)]


@pytest.mark.parametrize("partly_written", [False, True])
def test_answers_that_came_before_a_write_fails_count(partly_written):
    """Taken for lost, an acknowledged batch would be written twice."""
    h = Harness()
    h.connect()
    h.send()
    h.brokers[0].answer(h.brokers[0].waiting[0], ANSWER)
    if partly_written:
        h.brokers[0].peers[0].limit_writes(3)
        h.send()
    h.brokers[0].peers[0].reset()
    if not partly_written:
        h.send()
    assert not h.ended  # nothing is told within send
    before = h.now
    h.poll(10)
    assert h.now == before
    h.poll()
    assert [type(response.error) for response in h.ended] == [type(None), NetworkError]
    assert "connection reset by peer" in str(h.ended[1].error)


def test_answers_that_came_before_an_impossible_length_count():
    h = Harness()
    h.connect()
    for _ in range(2):
        h.send()
        h.poll()
    asked = h.brokers[0].waiting[0]
    h.brokers[0].peers[0].send(response_frame(asked, ANSWER) + struct.pack(">i", -9))
    h.poll()
    assert [type(response.error) for response in h.ended] == [type(None), NetworkError]
    assert h.ended[0].body["node_id"] == 1
    assert "-9 bytes" in str(h.client.connection_error(0))


def test_a_wrong_correlation_id_ends_the_connection():
    h = Harness()
    h.connect()
    for _ in range(2):
        h.send()
        h.poll()
    second = h.brokers[0].waiting[1]
    h.brokers[0].answer(second, ANSWER)
    h.poll()
    assert [type(response.error) for response in h.ended] == [NetworkError, NetworkError]
    assert "correlation id" in str(h.client.connection_error(0))
    assert isinstance(h.client.connection_error(0), ProtocolError)


def test_an_answer_that_nobody_asked_for_ends_the_connection():
    h = Harness()
    h.connect()
    h.brokers[0].peers[0].send(struct.pack(">ii", 4, 1))
    h.poll()
    assert isinstance(h.client.connection_error(0), ProtocolError)
    assert not h.client.is_ready(h.nodes[0], h.now)


def test_an_unintelligible_answer_fails_its_request_and_the_connection():
    h = Harness()
    h.connect()
    for _ in range(2):
        h.send()
        h.poll()
    asked = h.brokers[0].waiting[0]
    h.brokers[0].answer(asked, b"\xff")
    h.poll()
    assert [type(response.error) for response in h.ended] == [ProtocolError, NetworkError]
    assert "broker 0 at b0:9092" in str(h.ended[0].error)


def test_an_answer_behind_an_unintelligible_one_still_counts():
    h = Harness()
    h.connect()
    for _ in range(2):
        h.send()
        h.poll()
    first, second = h.brokers[0].waiting
    first.peer.send(response_frame(first, b"\xff") + response_frame(second, ANSWER))
    h.poll()
    assert [type(response.error) for response in h.ended] == [ProtocolError, type(None)]


def test_correlation_ids_skip_the_reserved_range():
    """Requirement 87."""
    h = Harness()
    h.connect()
    h.client._pool._correlation_id = 2**31 - 10
    for _ in range(2):
        h.send()
        h.poll()
    assert [asked.correlation_id for asked in h.brokers[0].waiting] == [2**31 - 9, 0]


# ---- metadata


def test_nobody_is_asked_for_metadata_while_it_is_quiet():
    h = Harness()
    node = h.connect()
    h.updater.due_at = h.now
    h.updater.quiet.until = h.now + 3
    assert h.client.is_ready(node, h.now)
    h.poll(10)
    assert h.now >= h.updater.quiet.until  # the wait ends with it
    assert not h.client.is_ready(node, h.now)
    h.poll()
    assert [asked.api for asked in h.brokers[0].waiting] == [METADATA]


def test_metadata_goes_first():
    h = Harness()
    node = h.connect()
    h.updater.due_at = h.now
    assert not h.client.is_ready(node, h.now)
    h.poll()
    assert [asked.api for asked in h.brokers[0].waiting] == [METADATA]
    assert h.client.is_ready(node, h.now)  # it is on its way: others may follow
    h.brokers[0].answer(h.brokers[0].waiting[0], metadata_body(*h.nodes))
    h.poll()
    assert len(h.updater.answers) == 1
    assert h.updater.answers[0][1] == METADATA.max_version
    assert not h.ended


def test_the_client_connects_by_itself_to_fetch_metadata_and_waits_for_that_connection():
    h = Harness(brokers=3)
    h.updater.due_at = h.now
    h.poll_until(lambda: any(broker.waiting for broker in h.brokers))
    assert len(h.network.attempts) == 1


def test_the_poll_ends_when_metadata_is_due():
    h = Harness()
    h.connect()
    h.updater.due_at = h.now + 3
    h.poll(10)
    assert h.now == h.updater.due_at


@pytest.mark.parametrize("how", ["disconnect", "timeout"])
def test_a_failed_metadata_request_is_told(how):
    h = Harness(request_timeout_ms=2000)
    h.connect()
    h.updater.due_at = h.now
    h.poll()
    h.updater.due_at = math.inf
    if how == "disconnect":
        h.brokers[0].peers[0].close()
    h.poll_until(lambda: h.updater.failures, timeout=5)
    assert isinstance(h.updater.failures[0], NetworkError if how == "disconnect" else RequestTimedOutError)
    assert not h.updater.in_progress


def test_metadata_without_a_common_version_is_fatal():
    h = Harness()
    h.brokers[0].rules[API_VERSIONS.key] = lambda _: api_versions_body(Metadata=(90, 91))
    h.updater.due_at = h.now
    h.poll_until(lambda: h.updater.fatal)
    assert isinstance(h.updater.fatal[0], UnsupportedVersionError)


def test_metadata_that_cannot_be_used_does_not_stop_the_client(caplog, monkeypatch):
    h = Harness()
    h.connect()

    def fail(*_):
        raise KeyError("brokers")

    monkeypatch.setattr(h.updater, "on_response", fail)
    h.updater.due_at = h.now
    h.poll()
    h.updater.due_at = math.inf
    h.brokers[0].answer(h.brokers[0].waiting[0], metadata_body(*h.nodes))
    h.poll()
    assert isinstance(h.updater.failures[0], ProtocolError)
    assert "could not be used" in caplog.text


@pytest.fixture
def halfway(monkeypatch):
    """A client that has taken the first of three pieces of an answer. An error in `then` comes with the third."""
    h = Harness()
    with_bootstrap(h)
    h.connect()
    h.then = None
    take = h.updater.on_response

    def on_response(*args):
        yield
        yield
        if h.then is not None:
            raise h.then
        take(*args)

    monkeypatch.setattr(h.updater, "on_response", on_response)
    h.updater.due_at = h.now
    h.poll()
    h.brokers[0].answer(h.brokers[0].waiting.pop(), metadata_body(*h.nodes))
    h.poll(10)
    return h


def test_one_piece_of_an_answer_is_taken_in_a_poll_and_requests_go_on(halfway):
    h, before = halfway, halfway.now
    assert h.client.is_ready(h.nodes[0], h.now)
    h.send()
    h.poll(10)
    assert not h.updater.answers
    assert len(h.brokers[0].waiting) == 1
    h.poll(10)
    assert len(h.updater.answers) == 1
    assert h.now == before
    h.updater.due_at = h.now + 1
    h.poll(10)
    assert h.now == before + 1


@pytest.mark.parametrize(
    "error", [ProtocolError("cannot decode"), KeyError("brokers")], ids=["bytes", "code"]
)
def test_an_error_in_a_later_piece_is_one_of_the_answer(halfway, error):
    h, halfway.then = halfway, error
    h.updater.due_at = math.inf
    h.poll_until(lambda: h.updater.failures)
    assert isinstance(h.updater.failures[0], ProtocolError)
    # Bytes that cannot be read end the connection, as those of any other answer.
    assert h.brokers[0].peers[0].closed_by_client is isinstance(error, ProtocolError)
    h.updater.due_at = h.now
    h.poll_until(lambda: h.brokers[0].waiting, timeout=5)


def test_a_start_from_the_bootstrap_servers_waits_for_the_end_of_an_answer(halfway):
    h = halfway
    h.updater.rebootstrap_wanted = True
    h.poll()
    assert not h.updater.rebootstraps
    h.poll()
    assert (len(h.updater.answers), h.updater.rebootstraps) == (1, 1)


# ---- rebootstrap


def test_rebootstrap_when_no_known_node_can_be_used():
    """Requirement 86."""
    h = Harness()
    bootstrap = with_bootstrap(h)
    gone = Node(9, "gone", 9092)
    h.updater.known = [gone]
    h.updater.due_at = h.now
    h.poll_until(lambda: h.updater.rebootstraps)
    assert h.updater.known == bootstrap
    h.poll_until(lambda: h.brokers[0].waiting)
    assert h.updater.rebootstraps == 1


def test_no_rebootstrap_while_a_connection_is_ready_but_busy():
    """Requirement 86."""
    h = Harness(max_in_flight=1)
    with_bootstrap(h)
    h.connect()
    h.send()
    h.poll()
    h.updater.due_at = h.now
    h.poll(1)
    assert h.updater.rebootstraps == 0


def test_rebootstrap_by_time_fails_the_requests_in_flight():
    """Requirement 86. The metadata keeper watches the time."""
    h = Harness(brokers=2)
    bootstrap = with_bootstrap(h)
    for node in h.nodes:
        h.connect(node)
        h.send(node)
        h.poll()
    h.updater.rebootstrap_wanted = True
    h.poll()
    assert len(h.ended) == 2
    assert all(isinstance(response.error, NetworkError) for response in h.ended)
    assert all(broker.peers[0].closed_by_client for broker in h.brokers)
    assert (h.updater.rebootstraps, h.updater.known) == (1, bootstrap)


def test_rebootstrap_by_metadata_error():
    """Requirement 86."""
    h = Harness()
    with_bootstrap(h)
    h.connect()
    h.updater.due_at = h.now
    h.poll()
    h.brokers[0].answer(h.brokers[0].waiting[0], metadata_body(*h.nodes, error_code=129))
    h.poll()
    assert h.updater.rebootstraps == 1
    assert h.brokers[0].peers[0].closed_by_client


def test_rebootstrap_by_api_versions_error():
    """Requirement 86."""
    h = Harness()
    with_bootstrap(h)
    h.brokers[0].rules[API_VERSIONS.key] = lambda _: {"error_code": 129, "api_keys": []}
    h.client.ready(h.nodes[0], h.now)
    h.poll_until(lambda: h.updater.rebootstraps)
    assert h.updater.connection_failures[0][1].code == 129


# ---- what cannot be reached


def test_a_refused_connection_names_host_port_and_cause(caplog):
    h = Harness()
    node = Node(7, "b0", 9999)
    h.client.ready(node, h.now)
    h.poll()
    error = h.client.connection_error(7)
    assert isinstance(error, NetworkError)
    assert "broker 7 at b0:9999" in str(error)
    assert "connection refused" in str(error)
    assert h.updater.connection_failures == [(node, error)]
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "advertised listener b0:9999 of broker 7 cannot be reached" in warnings[0].getMessage()
    assert "advertised.listeners" in warnings[0].getMessage()
    caplog.clear()
    h.clock.advance(2)
    h.client.ready(node, h.now)
    h.poll()
    assert len(h.updater.connection_failures) == 2
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_an_unknown_name_names_host_port_and_cause(caplog):
    h = Harness()
    node = Node(-1, "nowhere", 9092)
    assert not h.client.ready(node, h.now)
    error = h.client.connection_error(-1)
    assert type(error).__name__ == "BootstrapError"
    assert "nowhere:9092" in str(error)
    assert "not known" in str(error)
    assert "bootstrap.servers" in caplog.text
    h.client.ready(Node(3, "nowhere", 9092), h.now)
    assert isinstance(h.client.connection_error(3), NetworkError)


def test_a_peer_that_does_not_speak_kafka_is_named(caplog):
    h = Harness()
    h.network.listen("web", 80, lambda peer: peer.send(b"HTTP/1.1 400 Bad Request\r\n"))
    node = Node(-1, "web", 80)
    h.client.ready(node, h.now)
    h.poll_until(lambda: h.updater.connection_failures)
    error = h.client.connection_error(-1)
    assert isinstance(error, NotKafkaError)
    assert str(error) == (
        "what listens at bootstrap server web:80 does not speak Kafka: an HTTP server answered. Check the host and the "
        "port"
    )
    assert caplog.messages == [f"No connection to a bootstrap server: {error}"], "one hint is enough"
    assert caplog.text.count("WARNING") == 1
    assert not h.updater.fatal


def test_what_no_peer_of_a_known_protocol_says_is_told_once_with_one_hint(caplog):
    h = Harness()
    h.network.listen("shell", 22, lambda peer: peer.send(b"SSH-2.0-OpenSSH_9.6\r\n"))
    h.client.ready(Node(-1, "shell", 22), h.now)
    h.poll_until(lambda: h.updater.connection_failures)
    error = "what listens at bootstrap server shell:22 does not speak Kafka: its answer begins with the text 'SSH-'"
    assert str(h.client.connection_error(-1)) == error
    assert caplog.messages == [
        f"No connection to a bootstrap server: {error}. Check the port in bootstrap.servers, and security.protocol."
    ]


def test_a_listener_that_wants_tls_is_told_at_once_with_what_to_set(caplog):
    h = Harness()
    h.network.listen("web", 80, lambda peer: peer.send(b"\x15\x03\x03\x00\x02\x02\x50"))
    node = Node(-1, "web", 80)
    h.updater.known = [node]
    for _ in range(3):
        h.client.ready(node, h.now)
        h.poll_until(lambda: not h.client._pool.states.is_preparing(-1))
        h.clock.advance(10)
    (error, *_) = h.updater.fatal
    assert isinstance(error, AuthenticationError)
    assert isinstance(error.__cause__, NotKafkaError)
    assert "web:80 expects TLS" in str(error)
    assert "security.protocol to SSL" in str(error)
    assert len(h.updater.fatal) == 3, "each time, for whoever waits then"
    assert caplog.text.count("ERROR") == 1, "but it is logged once"


def test_each_cause_at_a_bootstrap_server_is_a_warning_once(caplog):
    h = Harness()
    node = Node(-1, "b0", 9999)
    for port_open in (False, False, True, True):
        if port_open:
            h.network.listen("b0", 9999, lambda peer: peer.close())
        h.client.ready(node, h.now)
        h.poll_until(lambda: h.client.connection_delay(node, h.now) < math.inf)
        h.clock.advance(2)
    assert len(h.updater.connection_failures) == 4
    assert [record.levelno for record in caplog.records if record.levelno >= logging.WARNING] == [
        logging.WARNING
    ] * 2


def test_a_connection_error_is_forgotten_once_connected():
    h = Harness()
    h.network.listeners.clear()
    h.client.ready(h.nodes[0], h.now)
    h.poll_until(lambda: h.client.connection_error(0))
    h.network.listen("b0", 9092, h.brokers[0]._accept)
    h.clock.advance(1)
    h.connect()
    assert h.client.connection_error(0) is None


# ---- closing, waking, counting


def test_close_ends_what_is_in_flight_and_closes_the_connections():
    h = Harness()
    h.connect()
    h.send()
    h.poll()
    h.client.close()
    h.client.close()
    assert [type(response.error) for response in h.ended] == [NetworkError]
    assert h.brokers[0].peers[0].closed_by_client
    assert h.network.closed
    with pytest.raises(IllegalStateError, match="closed"):
        h.client.ready(h.nodes[0], h.now + 10)


def test_wakeup_ends_the_poll():
    h = Harness()
    h.connect()
    h.network.after(2, h.client.wakeup)
    before = h.now
    assert h.poll(60) == []
    assert h.now == before + 2


def test_counters():
    h = Harness()
    h.connect()
    h.send()
    h.poll()
    h.clock.advance(0.5)
    h.brokers[0].answer(h.brokers[0].waiting[0], ANSWER)
    h.poll()
    m = h.client.metrics
    assert (m.connections_created, m.connections_open) == (1, 1)
    assert (m.requests, m.responses) == (2, 2)  # ApiVersions is one of them
    node = m.nodes[0]
    assert (node.requests, node.responses) == (2, 2)
    assert node.latency_max == pytest.approx(0.5)
    assert node.bytes_out == m.bytes_out == sum(sum(t.writes) for t in h.network.transports)
    assert m.bytes_in == node.bytes_in > 0
    assert repr(h.client) == "<NetworkClient: 1 connections, 0 in flight>"
    before = m.io_wait_ns
    h.poll(2)
    assert m.io_wait_ns - before == pytest.approx(2e9)
    h.client.close()
    assert (m.connections_closed, m.connections_open) == (1, 0)
