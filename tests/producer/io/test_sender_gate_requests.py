# SPDX-License-Identifier: Apache-2.0
"""How the gate's requests find their way: to a node that can take them, in time, or back to the gate."""

from __future__ import annotations

import math

import pytest

from penstock.errors import AuthenticationError, KafkaError, NetworkError
from penstock.network import ClientRequest
from penstock.producer.guarantee.gate import GateRequest
from penstock.producer.io.gate_requests import GateRequests
from penstock.protocol.messages import END_TXN
from penstock.protocol.requests import SchemaRequest
from penstock.types import Node

NODE, OTHER = Node(1, "one", 9092), Node(2, "two", 9092)
TIMEOUT = 30.0


class FakeGate:
    """Wants one request sent after the other."""

    def __init__(self, *nodes: Node | None) -> None:
        self.nodes = list(nodes)
        self.busy = True
        self.next_look = 7.0
        self.unreachable: list[tuple[KafkaError, float]] = []
        self.answers: list[tuple[object, float]] = []

    def next_request(self, now: float, data_waits: bool) -> GateRequest | None:
        if not self.nodes:
            return None
        request = SchemaRequest.of(END_TXN, {})
        return GateRequest(
            request,
            self.nodes.pop(0),
            lambda response, at: self.answers.append((response, at)),
            lambda error, at: self.unreachable.append((error, at)),
        )

    def seconds_to_request(self, now: float) -> float:
        return self.next_look


class FakeClient:
    """A network that does as it is told."""

    def __init__(self, *ready: Node) -> None:
        self.ready_nodes = list(ready)
        self.least_loaded: Node | None = OTHER
        self.delay = 3.0
        self.errors: dict[int, KafkaError] = {}
        self.refused: KafkaError | None = None
        self.sent: list[ClientRequest] = []

    def ready(self, node: Node, now: float) -> bool:
        return node in self.ready_nodes

    def least_loaded_node(self, now: float) -> Node | None:
        return self.least_loaded

    def connection_error(self, node_id: int) -> KafkaError | None:
        return self.errors.get(node_id)

    def refusal(self) -> KafkaError | None:
        return self.refused

    def connection_delay(self, node: Node, now: float) -> float:
        return self.delay

    def shortest_delay(self, now: float) -> float:
        return self.delay

    def send(self, request: ClientRequest, now: float) -> None:
        self.sent.append(request)


def both(gate: FakeGate, client: FakeClient) -> GateRequests:
    return GateRequests(gate, client, TIMEOUT)  # type: ignore[arg-type]


@pytest.mark.parametrize(("wanted", "used"), [(NODE, NODE), (None, OTHER)])
def test_a_request_goes_to_its_node_or_to_any(wanted, used):
    gate, client = FakeGate(wanted), FakeClient(NODE, OTHER)
    assert both(gate, client).maybe_send(0.0, data_waits=True) == math.inf
    (sent,) = client.sent
    assert (sent.node, sent.timeout) == (used, TIMEOUT)


def test_the_gate_is_told_the_answer_and_when_it_came():
    gate, client = FakeGate(NODE), FakeClient(NODE)
    both(gate, client).maybe_send(0.0, data_waits=True)

    class Response:
        received_at = 4.5

    response = Response()
    client.sent[0].on_response(response)  # type: ignore[arg-type]
    assert gate.answers == [(response, 4.5)]


@pytest.mark.parametrize(
    ("busy", "data_waits", "delay"), [(True, False, 7.0), (False, True, 7.0), (False, False, math.inf)]
)
def test_without_a_request_the_gate_says_when_to_look_again_if_anybody_waits(busy, data_waits, delay):
    gate = FakeGate()
    gate.busy = busy
    assert both(gate, FakeClient()).maybe_send(0.0, data_waits) == delay


def test_a_request_waits_for_its_node_and_keeps_its_place():
    """Requirement 78."""
    gate, client = FakeGate(NODE, OTHER), FakeClient()
    requests = both(gate, client)
    assert requests.maybe_send(0.0, data_waits=True) == 3.0  # throttled, say, or being connected
    client.ready_nodes = [OTHER]
    assert requests.maybe_send(3.0, data_waits=True) == 3.0
    assert client.sent == []
    client.ready_nodes = [NODE, OTHER]
    requests.maybe_send(6.0, data_waits=True)
    assert [sent.node for sent in client.sent] == [NODE]
    requests.maybe_send(6.0, data_waits=True)
    assert [sent.node for sent in client.sent] == [NODE, OTHER]


def test_where_no_node_can_be_tried_yet_it_looks_again_when_one_can():
    """No event tells that the pause after a failed attempt is over."""
    client = FakeClient()
    client.least_loaded = None
    client.delay = 0.2
    assert both(FakeGate(None), client).maybe_send(0.0, data_waits=True) == 0.2


def test_a_node_that_cannot_be_reached_is_reported_with_the_reason():
    """Requirement 68."""
    gate, client = FakeGate(NODE), FakeClient()
    requests = both(gate, client)
    requests.maybe_send(0.0, data_waits=True)
    reason = NetworkError("refused")
    client.errors[NODE.id] = reason
    assert requests.maybe_send(1.0, data_waits=True) == 0.0
    assert gate.unreachable == [(reason, 1.0)]
    gate.busy = False
    assert requests.maybe_send(1.0, data_waits=False) == math.inf  # it is the gate's again


def test_an_earlier_failure_to_connect_does_not_count():
    gate, client = FakeGate(NODE), FakeClient()
    client.errors[NODE.id] = NetworkError("an hour ago")
    requests = both(gate, client)
    assert requests.maybe_send(0.0, data_waits=True) == 3.0
    client.ready_nodes = [NODE]
    requests.maybe_send(3.0, data_waits=True)
    assert len(client.sent) == 1
    assert gate.unreachable == []


def test_where_any_node_will_do_one_that_fails_is_no_reason_to_give_up():
    gate, client = FakeGate(None), FakeClient()
    requests = both(gate, client)
    requests.maybe_send(0.0, data_waits=True)
    client.errors[OTHER.id] = NetworkError("refused")
    assert requests.maybe_send(1.0, data_waits=True) == 3.0
    assert gate.unreachable == []
    client.least_loaded, client.ready_nodes = NODE, [NODE]
    requests.maybe_send(2.0, data_waits=True)
    assert [sent.node for sent in client.sent] == [NODE]


@pytest.mark.parametrize("node", [NODE, None])
def test_after_its_time_a_request_goes_back_to_the_gate(node):
    """Requirement 68."""
    gate, client = FakeGate(node), FakeClient()
    client.least_loaded = None
    client.delay = 1000.0
    requests = both(gate, client)
    assert requests.maybe_send(10.0, data_waits=True) == TIMEOUT
    assert requests.maybe_send(10.0 + TIMEOUT - 1, data_waits=True) == 1.0
    assert requests.maybe_send(10.0 + TIMEOUT, data_waits=True) == 0.0
    ((error, at),) = gate.unreachable
    assert (type(error), at) == (NetworkError, 10.0 + TIMEOUT)


def test_a_request_that_cannot_even_be_written_ends_with_an_error():
    gate, client = FakeGate(NODE), FakeClient(NODE)

    def refuse(request: ClientRequest, now: float) -> None:
        raise ValueError("no such field")

    client.send = refuse  # type: ignore[method-assign]
    assert both(gate, client).maybe_send(5.0, data_waits=True) == 0.0
    ((response, at),) = gate.answers
    assert at == 5.0
    assert "EndTxn" in str(response.error)
    assert isinstance(response.error.__cause__, ValueError)


def test_whether_data_waits_is_asked_only_where_the_gate_may_need_something_for_it():
    asked = []

    def waits() -> bool:
        asked.append(True)
        return True

    gate = FakeGate()
    requests = both(gate, FakeClient())
    gate.next_look = math.inf
    assert requests.maybe_send(0.0, waits) == math.inf
    assert not asked
    gate.next_look = 7.0
    assert requests.maybe_send(0.0, waits) == 7.0
    assert asked


def test_what_the_gate_needs_for_data_alone_is_sent_when_data_waits():
    class ForDataAlone(FakeGate):
        def next_request(self, now: float, data_waits: bool) -> GateRequest | None:
            return super().next_request(now, data_waits) if data_waits else None

    gate, client = ForDataAlone(NODE), FakeClient(NODE)
    gate.busy = False
    requests = both(gate, client)
    assert requests.maybe_send(0.0, lambda: False) == math.inf
    assert client.sent == []
    assert requests.maybe_send(0.0, lambda: True) == math.inf
    assert [sent.node for sent in client.sent] == [NODE]


@pytest.mark.parametrize("node", [NODE, None])
def test_a_refusal_of_who_we_are_is_reported_at_once_but_an_old_one_is_not(node):
    gate, client = FakeGate(node), FakeClient()
    client.refused = old = AuthenticationError("once upon a time")
    requests = both(gate, client)
    requests.maybe_send(0.0, data_waits=True)
    requests.maybe_send(1.0, data_waits=True)
    assert not gate.unreachable
    client.refused = AuthenticationError("again")
    assert requests.maybe_send(2.0, data_waits=True) == 0
    assert gate.unreachable == [(client.refused, 2.0)]
    assert old is not client.refused
