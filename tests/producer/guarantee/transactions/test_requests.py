# SPDX-License-Identifier: Apache-2.0
"""Each transaction request on the wire: what it says, in which version, and what every kind of answer leads to."""

from __future__ import annotations

import pytest
from network.fakes import Received
from producer.fakes_txn import CUT, PRODUCER_ID, GateRig, offset_commit_body

from penstock.errors import (
    BrokerError,
    KafkaError,
    ProducerFencedError,
    ProtocolError,
    TransactionalIdAuthorizationError,
    UnsupportedVersionError,
)
from penstock.producer.guarantee.transactions.states import TxnState
from penstock.protocol.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from penstock.protocol.schema import ApiSchema
from penstock.types import ConsumerGroupMetadata

V1, V2 = 1, 2
IN_V1 = [INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, TXN_OFFSET_COMMIT, END_TXN]
IN_V2 = [INIT_PRODUCER_ID, TXN_OFFSET_COMMIT, END_TXN]
FLOWS = [(V1, api) for api in IN_V1] + [(V2, api) for api in IN_V2]
flows = pytest.mark.parametrize(
    ("protocol", "api"),
    [pytest.param(protocol, api, id=f"v{protocol} {api.name}") for protocol, api in FLOWS],
)


def rig_before(protocol: int, api: ApiSchema, **options: object) -> GateRig:
    """A producer that will send this request as soon as `flow` is called."""
    if api in (INIT_PRODUCER_ID, FIND_COORDINATOR):
        rig = GateRig(protocol=protocol, transactional_id="x", reconnect_backoff_ms=0, **options)
        rig.know("t", 2)
    else:
        rig = GateRig.transactional(protocol=protocol, reconnect_backoff_ms=0, **options)
        rig.begin()
    rig.acknowledge_all()
    rig.log.clear()
    return rig


def flow(rig: GateRig, api: ApiSchema) -> None:
    """Make the call that needs the request, to its end."""
    if api in (INIT_PRODUCER_ID, FIND_COORDINATOR):
        rig.init()
    elif api in (ADD_OFFSETS_TO_TXN, TXN_OFFSET_COMMIT):
        rig.send_offsets({("t", 0): 5, ("t", 1): 7})
    else:
        rig.send("t", b"a", partition=0)
        rig.commit()


def a_transaction(rig: GateRig) -> None:
    rig.begin()
    delivery = rig.send("t", b"next", partition=0)
    rig.commit()
    delivery.result(0)


# -------------------------------------------------------------------------------------------- what is asked


def test_the_coordinator_is_asked_for_by_the_transactional_id():
    rig = GateRig(transactional_id="x")
    rig.init()
    (asked,) = rig.asked(FIND_COORDINATOR)
    assert (asked["key_type"], asked["coordinator_keys"]) == (1, ["x"])


def test_an_old_broker_is_asked_for_one_coordinator_at_a_time():
    rig = GateRig(transactional_id="x", protocol=None, versions={"FindCoordinator": (0, 3)})
    rig.init()
    (asked,) = rig.asked(FIND_COORDINATOR)
    assert (asked["key_type"], asked["key"]) == (1, "x")


def test_an_identity_is_asked_for_with_the_time_out():
    rig = GateRig(transactional_id="x", transaction_timeout_ms=5000)
    rig.init()
    (asked,) = rig.asked(INIT_PRODUCER_ID)
    assert asked == {
        "transactional_id": "x",
        "transaction_timeout_ms": 5000,
        "producer_id": -1,
        "producer_epoch": -1,
    }


def test_partitions_are_added_together():
    """Requirement 64."""
    rig = GateRig.transactional(protocol=V1, linger_ms=5)
    rig.acknowledge_all()
    rig.begin()
    deliveries = [rig.send("t", b"v", partition=partition) for partition in (1, 0, 1)]
    rig.deliver(*deliveries)
    (asked,) = rig.asked(ADD_PARTITIONS_TO_TXN)
    assert asked == {
        "v3_and_below_transactional_id": "x",
        "v3_and_below_producer_id": PRODUCER_ID,
        "v3_and_below_producer_epoch": 0,
        "v3_and_below_topics": [{"name": "t", "partitions": [0, 1]}],
    }


def test_partitions_that_come_later_are_added_later_and_none_twice():
    """Requirement 64."""
    rig = GateRig.transactional(protocol=V1)
    rig.acknowledge_all()
    rig.begin()
    for partition in (0, 0, 1, 0, 1):
        rig.deliver(rig.send("t", b"v", partition=partition))
    topics = [body["v3_and_below_topics"][0]["partitions"] for body in rig.asked(ADD_PARTITIONS_TO_TXN)]
    assert topics == [[0], [1]]


def test_a_partition_is_asked_for_once_while_the_answer_is_under_way():
    rig = GateRig.transactional(protocol=V1)
    rig.acknowledge_all()
    rig.hold(ADD_PARTITIONS_TO_TXN)
    rig.begin()
    delivery = rig.send("t", b"v", partition=0)
    rig.run_until(lambda: rig.held(ADD_PARTITIONS_TO_TXN))
    rig.send("t", b"w", partition=0)
    rig.settle()
    rig.release(ADD_PARTITIONS_TO_TXN)
    rig.deliver(delivery)
    assert len(rig.asked(ADD_PARTITIONS_TO_TXN)) == 1


def test_offsets_go_to_the_coordinator_of_the_group():
    """Requirement 64."""
    rig = GateRig.transactional(protocol=V1)
    rig.group_coordinator = 0
    rig.begin()
    rig.send_offsets({("t", 1): 7, ("t", 0): 5}, "readers")
    (group,) = rig.asked(ADD_OFFSETS_TO_TXN)
    assert group == {
        "transactional_id": "x",
        "producer_id": PRODUCER_ID,
        "producer_epoch": 0,
        "group_id": "readers",
    }
    assert [(body["key_type"], body["coordinator_keys"]) for body in rig.asked(FIND_COORDINATOR)] == [
        (1, ["x"]),
        (0, ["readers"]),
    ]
    (request,) = rig.seen(TXN_OFFSET_COMMIT, broker=0)
    rows = [
        (row["partition_index"], row["committed_offset"]) for row in request.body["topics"][0]["partitions"]
    ]
    assert rows == [(0, 5), (1, 7)]
    assert (request.body["group_id"], request.body["generation_id"], request.body["member_id"]) == (
        "readers",
        -1,
        "",
    )


def test_another_group_has_another_coordinator():
    rig = GateRig.transactional(protocol=V2)
    rig.begin()
    for group in ("a", "a", "b"):
        rig.send_offsets({("t", 0): 1}, group)
    keys = [body["coordinator_keys"] for body in rig.asked(FIND_COORDINATOR)]
    assert keys == [["x"], ["a"], ["b"]]


@pytest.mark.parametrize(
    ("protocol", "newest", "picked"), [(V1, 6, 4), (V1, 5, 4), (V2, 6, 6), (V2, 5, 5), (V1, 3, 3), (V1, 2, 2)]
)
def test_the_version_of_the_offsets_belongs_to_the_protocol(protocol, newest, picked):
    """Requirement 79."""
    rig = GateRig.transactional(protocol=protocol, versions={"TxnOffsetCommit": (0, newest)})
    rig.begin()
    rig.send_offsets({("t", 0): 1})
    assert rig.asked_versions(TXN_OFFSET_COMMIT) == [picked]


def test_offsets_go_by_topic_id_once_all_ids_are_known():
    """Requirement 79."""
    rig = GateRig.transactional(protocol=V2)
    rig.cluster.add_topic("u", 1)
    rig.begin()
    for offset in (1, 2):
        rig.send_offsets({("t", 0): offset, ("u", 0): offset})
        rig.settle(5)  # the metadata of the new topic comes
    assert rig.asked_versions(TXN_OFFSET_COMMIT) == [5, 6]
    by_name, by_id = rig.asked(TXN_OFFSET_COMMIT)
    assert [topic["name"] for topic in by_name["topics"]] == ["t", "u"]
    ids = [rig.cluster.topics[name].topic_id for name in "tu"]
    assert [(topic["name"], topic["topic_id"]) for topic in by_id["topics"]] == [("", known) for known in ids]


def test_topics_of_offsets_are_not_asked_for_where_no_broker_wants_their_ids():
    rig = GateRig.transactional(protocol=V2, versions={"TxnOffsetCommit": (0, 5)})
    rig.begin()
    rig.send_offsets({("u", 0): 1})
    rig.settle(5)
    assert not rig.parts.metadata.snapshot.topics.keys() & {"u"}
    assert all(
        topic["name"] != "u" for broker in (0, 1) for request in rig.seen(METADATA, broker)
        for topic in request.body["topics"]
    )  # fmt: skip


def test_offsets_of_a_topic_that_was_made_anew_go_by_its_new_id():
    """Requirement 79."""
    rig = GateRig.transactional(protocol=V2)
    rig.begin()
    old, new = rig.cluster.topics["t"].topic_id, bytes(15) + b"\x77"
    rig.cluster.topics["t"].topic_id = new
    rig.script(TXN_OFFSET_COMMIT, 100, 100)
    rig.send_offsets({("t", 0): 1})
    named = [body["topics"][0]["topic_id"] for body in rig.asked(TXN_OFFSET_COMMIT)]
    assert (named[0], named[-1]) == (old, new)


def test_answers_by_topic_id_tell_which_offsets_were_taken():
    """Requirement 79."""
    rig = GateRig.transactional(protocol=V2)
    rig.know("u")
    rig.hold(TXN_OFFSET_COMMIT)
    rig.begin()
    ticket = rig.offsets_ticket({("t", 0): 5, ("u", 0): 7})
    request = held_offsets(rig)
    taken, refused = offset_commit_body(request)["topics"]
    refused["partitions"][0]["error_code"] = 14
    stranger = taken | {"topic_id": bytes(15) + b"\x99"}
    rig.brokers[1].answer(request, {"topics": [refused, stranger, taken]})
    (again,) = held_offsets(rig).body["topics"]
    assert again["topic_id"] == rig.cluster.topics["u"].topic_id
    rig.release(TXN_OFFSET_COMMIT)
    rig.finish(ticket)


def test_in_protocol_v2_older_versions_of_the_offsets_will_not_do():
    """Requirement 79."""
    rig = GateRig.transactional(protocol=V2, versions={"TxnOffsetCommit": (0, 4)})
    rig.begin()
    with pytest.raises(UnsupportedVersionError, match="TxnOffsetCommit"):
        rig.send_offsets({("t", 0): 1})


def test_in_protocol_v2_older_versions_of_the_end_will_not_do():
    rig = GateRig.transactional(protocol=V2, versions={"EndTxn": (0, 4)})
    rig.acknowledge_all()
    rig.begin()
    rig.send("t", b"a", partition=0)
    with pytest.raises(UnsupportedVersionError, match="EndTxn"):
        rig.commit()


@pytest.mark.parametrize("code", [100, 3, 14])
def test_offsets_of_a_topic_that_the_broker_does_not_know_yet_are_sent_again(code):
    """Requirement 79."""
    rig = GateRig.transactional(protocol=V2)
    rig.script(TXN_OFFSET_COMMIT, code, code)
    rig.begin()
    rig.send_offsets({("t", 0): 1})
    assert len(rig.asked(TXN_OFFSET_COMMIT)) == 3


def test_a_member_of_the_group_is_named():
    rig = GateRig.transactional(protocol=V2)
    rig.begin()
    rig.send_offsets({("t", 0): 1}, ConsumerGroupMetadata("g", 4, "member", "instance"))
    (asked,) = rig.asked(TXN_OFFSET_COMMIT)
    assert (asked["generation_id"], asked["member_id"], asked["group_instance_id"]) == (
        4,
        "member",
        "instance",
    )


def test_a_member_cannot_be_named_to_an_old_broker():
    rig = GateRig.transactional(protocol=None, versions={"TxnOffsetCommit": (0, 2)})
    rig.begin()
    with pytest.raises(UnsupportedVersionError, match="TxnOffsetCommit"):
        rig.send_offsets({("t", 0): 1}, ConsumerGroupMetadata("g", 4, "member"))
    assert rig.state is TxnState.FATAL_ERROR


@pytest.mark.parametrize(
    ("protocol", "end", "produce"), [(V1, 4, 11), (V2, 5, 13), (None, 4, 11), (0, 4, 11)]
)
@pytest.mark.parametrize("commit", [True, False])
def test_the_end_belongs_to_the_protocol(protocol, end, produce, commit):
    """Requirements 64 and 66."""
    rig = GateRig.transactional(protocol=protocol)
    rig.acknowledge_all()
    rig.begin()
    rig.deliver(rig.send("t", b"a", partition=0))
    if commit:
        rig.commit()
    else:
        rig.abort()
    (asked,) = rig.asked(END_TXN)
    assert asked == {
        "transactional_id": "x",
        "producer_id": PRODUCER_ID,
        "producer_epoch": 0,
        "committed": commit,
    }
    assert rig.asked_versions(END_TXN) == [end]
    assert rig.asked_versions(PRODUCE) == [produce]
    assert rig.asked(PRODUCE)[0]["transactional_id"] == "x"


# ------------------------------------------------------------------------------------------ passing failures


@flows
@pytest.mark.parametrize("code", [14, 51, 7, 89])
def test_a_passing_error_is_asked_again(protocol, api, code):
    """Requirement 69."""
    rig = rig_before(protocol, api)
    rig.script(api, code, code)
    flow(rig, api)
    assert len(rig.asked(api)) == 3


def searches(rig: GateRig, api: ApiSchema) -> int:
    """How often the coordinator that answers an API was searched for."""
    kind = 0 if api is TXN_OFFSET_COMMIT else 1
    return [body["key_type"] for body in rig.asked(FIND_COORDINATOR)].count(kind)


@flows
@pytest.mark.parametrize("answer", [15, 16, CUT])
def test_a_coordinator_that_is_elsewhere_or_gone_is_searched_for_again(protocol, api, answer):
    """Requirement 68."""
    smooth, rough = rig_before(protocol, api), rig_before(protocol, api)
    rough.script(api, answer)
    for rig in (smooth, rough):
        flow(rig, api)
        assert rig.state in (TxnState.READY, TxnState.IN_TRANSACTION)
    assert len(rough.asked(api)) == len(smooth.asked(api)) + 1
    assert searches(rough, api) == searches(smooth, api) + 1


@pytest.mark.parametrize("code", [14, 15, 7])
def test_the_search_itself_is_repeated(code):
    """Requirement 69."""
    rig = rig_before(V2, FIND_COORDINATOR)
    rig.script(FIND_COORDINATOR, code, code, CUT)
    flow(rig, FIND_COORDINATOR)
    assert len(rig.asked(FIND_COORDINATOR)) == 4


def test_a_coordinator_that_has_moved_is_asked_at_its_new_place():
    """Requirement 68."""
    rig = GateRig.transactional(protocol=V2)
    rig.acknowledge_all()
    rig.begin()
    rig.deliver(rig.send("t", b"a", partition=0))
    rig.coordinator = 0
    rig.script(END_TXN, 16)
    rig.commit()
    assert [len(rig.seen(END_TXN, broker)) for broker in (0, 1)] == [1, 1]


def test_a_coordinator_that_cannot_be_reached_is_searched_for_again():
    """Requirement 68."""
    rig = GateRig.transactional(protocol=V2)
    rig.acknowledge_all()
    rig.begin()
    rig.deliver(rig.send("t", b"a", partition=1))
    del rig.network.listeners[rig.network.names["b1"][0], 9092]
    rig.break_connection(1)
    rig.coordinator = 0  # the other broker has taken over
    rig.commit()
    assert [len(rig.seen(END_TXN, broker)) for broker in (0, 1)] == [1, 0]


@pytest.mark.parametrize(
    ("partitions_before", "code", "wait"), [(False, 51, 0.02), (True, 51, 0.1), (False, 14, 0.1)]
)
def test_only_the_first_partitions_of_a_transaction_are_asked_for_again_soon(partitions_before, code, wait):
    """Requirement 70."""
    rig = GateRig.transactional(protocol=V1)
    rig.acknowledge_all()
    rig.begin()
    if partitions_before:
        rig.deliver(rig.send("t", b"before", partition=1))
    rig.script(ADD_PARTITIONS_TO_TXN, code, code)
    before = rig.clock.now()
    rig.deliver(rig.send("t", b"a", partition=0))
    assert rig.clock.now() - before == pytest.approx(2 * wait)


def test_the_wait_grows_with_each_attempt_of_a_request_and_not_beyond():
    rig = GateRig(transactional_id="x", retry_backoff_ms=100, retry_backoff_max_ms=10_000)
    rig.know("t", 2)
    rig.script(INIT_PRODUCER_ID, 51, 51, 51)
    before = rig.clock.now()
    rig.init()
    assert 0.8 * 0.7 <= rig.clock.now() - before <= 1.2 * 0.7
    rig.acknowledge_all()
    rig.begin()
    rig.deliver(rig.send("t", b"a", partition=0))
    rig.script(END_TXN, 51)
    before = rig.clock.now()
    rig.commit()
    assert 0.08 <= rig.clock.now() - before <= 0.12  # another request, from the start


# ------------------------------------------------------------------------------------------- lasting failures


ABORTABLE = [
    *[(V1, ADD_PARTITIONS_TO_TXN, code) for code in (29, 55, 120, 59, -1)],
    *[(V1, ADD_OFFSETS_TO_TXN, code) for code in (30, 120, 59)],
    *[
        (protocol, TXN_OFFSET_COMMIT, code)
        for protocol in (V1, V2)
        for code in (30, 82, 120, 25, 22, 69, 113)
    ],
    *[(protocol, END_TXN, code) for protocol in (V1, V2) for code in (120, 59)],
]


def ids(cases: list[tuple[int, ApiSchema, int]]) -> list[object]:
    return [pytest.param(*case, id=f"v{case[0]} {case[1].name} {case[2]}") for case in cases]


@pytest.mark.parametrize(("protocol", "api", "code"), ids(ABORTABLE))
def test_an_error_that_asks_for_an_abort(protocol, api, code):
    """Requirement 69."""
    rig = rig_before(protocol, api)
    rig.script(api, code)
    with pytest.raises(BrokerError) as caught:
        flow(rig, api)
    assert caught.value.code == code
    assert rig.state is TxnState.ABORTABLE_ERROR
    assert not rig.fast_path_open
    with pytest.raises(KafkaError, match="abort_transaction"):
        rig.manager.commit()
    rig.abort()
    a_transaction(rig)


FATAL = [
    *[(V1, ADD_PARTITIONS_TO_TXN, code) for code in (53, 48, 49, 47, 90)],
    *[(V1, ADD_OFFSETS_TO_TXN, code) for code in (53, 48, 49, 47, 90, -1)],
    *[(protocol, TXN_OFFSET_COMMIT, code) for protocol in (V1, V2) for code in (53, 43, 47, 90, -1)],
    *[(protocol, END_TXN, code) for protocol in (V1, V2) for code in (53, 48, 49, 47, 90, -1)],
    *[(V2, INIT_PRODUCER_ID, code) for code in (50, 47, 90, -1)],
    *[(V2, FIND_COORDINATOR, code) for code in (53, 42, -1)],
]


@pytest.mark.parametrize(("protocol", "api", "code"), ids(FATAL))
def test_an_error_after_which_the_producer_cannot_go_on(protocol, api, code):
    """Requirement 69."""
    rig = rig_before(protocol, api)
    rig.script(api, code)
    expected = ProducerFencedError if code in (47, 90) else BrokerError
    with pytest.raises(expected) as caught:
        flow(rig, api)
    if code not in (47, 90):
        assert caught.value.code == code
    assert rig.state is TxnState.FATAL_ERROR
    assert not rig.fast_path_open
    asked = len(rig.log)
    for call in (rig.manager.commit, rig.manager.abort, rig.manager.begin, rig.manager.initialize):
        with pytest.raises(KafkaError) as refused:
            call()
        told = refused.value if isinstance(refused.value, expected) else refused.value.__cause__
        assert (type(told), str(told)) == (type(caught.value), str(caught.value))
    with pytest.raises(KafkaError):
        rig.send("t", b"b")
    rig.run_for(1)
    assert len(rig.log) == asked


@pytest.mark.parametrize("code", [31, 53])
def test_a_refusal_to_initialize_may_be_tried_again(code):
    """Requirement 69."""
    rig = rig_before(V2, INIT_PRODUCER_ID)
    rig.script(INIT_PRODUCER_ID, code)
    with pytest.raises(BrokerError) as caught:
        rig.init()
    assert caught.value.code == code
    assert rig.state is TxnState.UNINITIALIZED
    rig.init()
    a_transaction(rig)


def test_an_initialization_that_must_be_aborted_is_made_again_by_the_abort():
    """Requirement 69."""
    rig = rig_before(V2, INIT_PRODUCER_ID)
    rig.script(INIT_PRODUCER_ID, 120)
    with pytest.raises(BrokerError):
        rig.init()
    rig.abort()
    assert rig.state is TxnState.READY
    a_transaction(rig)


def test_a_group_that_may_not_be_found_is_not_searched_for_again_and_again():
    """Requirement 69."""
    rig = rig_before(V2, TXN_OFFSET_COMMIT)
    rig.script(FIND_COORDINATOR, 30)
    with pytest.raises(BrokerError) as caught:
        flow(rig, TXN_OFFSET_COMMIT)
    assert caught.value.code == 30
    rig.run_for(1)
    assert len(rig.asked(FIND_COORDINATOR)) == 1
    rig.abort()
    a_transaction(rig)


@flows
def test_no_common_version_is_fatal(protocol, api):
    """Requirement 69."""
    if api is INIT_PRODUCER_ID:
        rig = GateRig(protocol=protocol, transactional_id="x", versions={api.name: (90, 91)})
    else:
        rig = GateRig.transactional(protocol=protocol, versions={api.name: (90, 91)})
        rig.begin()
    rig.cluster.topics or rig.know("t", 2)
    rig.acknowledge_all()
    with pytest.raises(UnsupportedVersionError, match=api.name):
        flow(rig, api)
    assert rig.state is TxnState.FATAL_ERROR


def test_the_worst_answer_about_a_partition_decides():
    rig = GateRig.transactional(protocol=V1, linger_ms=5)
    rig.begin()
    rig.hold(ADD_PARTITIONS_TO_TXN)
    rig.send("t", b"a", partition=0)
    rig.send("t", b"b", partition=1)
    rig.run_until(lambda: rig.held(ADD_PARTITIONS_TO_TXN))
    (request,) = rig.held(ADD_PARTITIONS_TO_TXN)
    rig.brokers[1].answer(request, added_body(request, {0: 14, 1: 53}))
    rig.settle()
    with pytest.raises(KafkaError) as caught:
        rig.manager.check_send()
    assert isinstance(caught.value.__cause__, TransactionalIdAuthorizationError)


def added_body(request: Received, codes: dict[int, int]) -> dict[str, object]:
    rows = [{"partition_index": index, "partition_error_code": code} for index, code in codes.items()]
    name = request.body["v3_and_below_topics"][0]["name"]
    return {"results_by_topic_v3_and_below": [{"name": name, "results_by_partition": rows}]}


def test_a_partition_that_the_answer_leaves_out_was_not_added():
    rig = GateRig.transactional(protocol=V1)
    rig.begin()
    rig.hold(ADD_PARTITIONS_TO_TXN)
    delivery = rig.send("t", b"a", partition=0)
    rig.run_until(lambda: rig.held(ADD_PARTITIONS_TO_TXN))
    (request,) = rig.held(ADD_PARTITIONS_TO_TXN)
    rig.brokers[1].answer(request, {"results_by_topic_v3_and_below": []})
    rig.settle()
    assert rig.state is TxnState.ABORTABLE_ERROR
    assert isinstance(delivery.exception(0), BrokerError)
    assert rig.seen(PRODUCE) == []


def test_that_others_were_not_attempted_is_no_reason_to_abort():
    """A partition that is not known yet (3) is asked for again, with those (55) that wait because of it."""
    rig = GateRig.transactional(protocol=V1, linger_ms=5)
    rig.begin()
    rig.hold(ADD_PARTITIONS_TO_TXN)
    sent = [rig.send("t", b"a", partition=0), rig.send("t", b"b", partition=1)]
    rig.run_until(lambda: rig.held(ADD_PARTITIONS_TO_TXN))
    (request,) = rig.held(ADD_PARTITIONS_TO_TXN)
    rig.brokers[1].answer(request, added_body(request, {0: 3, 1: 55}))
    rig.release(ADD_PARTITIONS_TO_TXN)
    rig.acknowledge_all()
    rig.commit()
    assert [delivery.exception(0) for delivery in sent] == [None, None]


def test_an_answer_without_a_coordinator_is_fatal():
    """Requirement 69."""
    rig = GateRig(transactional_id="x")
    rig.hold(FIND_COORDINATOR)
    ticket = rig.manager.initialize()
    rig.network.after(1.0, rig.network.wakeup)  # long before the request times out
    rig.run_until(lambda: rig.held(FIND_COORDINATOR))
    (request,) = rig.held(FIND_COORDINATOR)
    rig.brokers[0].answer(request, {"coordinators": []})
    with pytest.raises(ProtocolError, match="FindCoordinator"):
        rig.finish(ticket)
    assert rig.state is TxnState.FATAL_ERROR


# --------------------------------------------------------------------------------------------- some offsets


def held_offsets(rig: GateRig) -> Received:
    rig.run_until(lambda: rig.held(TXN_OFFSET_COMMIT))
    return rig.held(TXN_OFFSET_COMMIT)[0]


def test_only_the_offsets_that_were_not_taken_are_sent_again():
    rig = GateRig.transactional(protocol=V2)
    rig.hold(TXN_OFFSET_COMMIT)
    rig.begin()
    ticket = rig.offsets_ticket({("t", 0): 5, ("t", 1): 7})
    request = held_offsets(rig)
    rig.brokers[1].answer(request, offset_commit_body(request, {1: 14}))
    again = held_offsets(rig)
    (row,) = again.body["topics"][0]["partitions"]
    assert (row["partition_index"], row["committed_offset"]) == (1, 7)
    assert not ticket.done
    rig.release(TXN_OFFSET_COMMIT)
    rig.finish(ticket)


def test_offsets_that_the_answer_leaves_out_are_sent_again():
    rig = GateRig.transactional(protocol=V2)
    rig.hold(TXN_OFFSET_COMMIT)
    rig.begin()
    ticket = rig.offsets_ticket({("t", 0): 5})
    rig.brokers[1].answer(held_offsets(rig), {"topics": []})
    held_offsets(rig)
    rig.release(TXN_OFFSET_COMMIT)
    rig.finish(ticket)


def test_the_worst_answer_about_an_offset_decides():
    rig = GateRig.transactional(protocol=V2)
    rig.hold(TXN_OFFSET_COMMIT)
    rig.begin()
    ticket = rig.offsets_ticket({("t", 0): 5, ("t", 1): 7})
    request = held_offsets(rig)
    rig.brokers[1].answer(request, offset_commit_body(request, {0: 14, 1: 25}))
    with pytest.raises(BrokerError) as caught:
        rig.finish(ticket)
    assert caught.value.name == "UNKNOWN_MEMBER_ID"
