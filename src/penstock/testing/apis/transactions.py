# SPDX-License-Identifier: Apache-2.0
"""The requests about transactions: who a producer is, what its transaction has, how it ends, what is known of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import groupby
from typing import Final

from penstock._identity import ProducerIdentity
from penstock.error_codes import ErrorCode
from penstock.testing.apis.context import ApiRequest, Body
from penstock.testing.security.rights import Operation
from penstock.testing.topics import OFFSETS_TOPIC
from penstock.testing.transactions import IdentityAnswer, Transaction, TxnState
from penstock.types import TopicPartition

# The first version in which PRODUCER_FENCED is answered; INVALID_PRODUCER_EPOCH before.
_INIT_FENCED_SINCE: Final = 4
_FENCED_SINCE: Final = 2  # of the other requests
_SECOND_PROTOCOL_SINCE: Final = 5  # of EndTxn

# ---------------------------------------------------------------------------------------------- InitProducerId


def handle_init_producer_id(request: ApiRequest) -> Body:
    """InitProducerId (22): give a producer its identity.

    Behaviour:
    - Without a transactional id, any broker gives a new producer id with epoch 0, to who has the right
      IDEMPOTENT_WRITE on the cluster or, since 2.8, WRITE on any topic; CLUSTER_AUTHORIZATION_FAILED to others.
    - With one, the right WRITE on it is needed: TRANSACTIONAL_ID_AUTHORIZATION_FAILED.
    - With one, its coordinator raises the epoch. An open transaction is fenced and aborted first, and
      CONCURRENT_TRANSACTIONS says that the call is to be repeated; so is one whose markers are being written.
    - A producer that names its id and epoch goes on with them after an error; PRODUCER_FENCED when another has
      taken over.
    - A time-out above the cluster's limit is INVALID_TRANSACTION_TIMEOUT, an empty id or half an identity
      INVALID_REQUEST.

    Version notes:
    - 2: flexible. 3: the producer's own id and epoch. 4: PRODUCER_FENCED, which was INVALID_PRODUCER_EPOCH before.
    """
    answer = _init(request)
    return {
        "error_code": request.fenced_code(answer.code, _INIT_FENCED_SINCE),
        "producer_id": answer.identity.producer_id,
        "producer_epoch": answer.identity.epoch,
    }


def refuse_init_producer_id(request: ApiRequest, code: int) -> Body:
    return {"error_code": code, "producer_id": -1, "producer_epoch": -1}


def _init(request: ApiRequest) -> IdentityAnswer:
    body, cluster = request.body, request.cluster
    transactional_id = body["transactional_id"]
    expected = ProducerIdentity(body["producer_id"], body["producer_epoch"])
    if (expected.producer_id < 0) != (expected.epoch < 0):
        return IdentityAnswer(ErrorCode.INVALID_REQUEST)
    if transactional_id is None and not request.rights.number_batches():
        return IdentityAnswer(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if transactional_id is None:
        return IdentityAnswer(ErrorCode.NONE, ProducerIdentity(cluster.allocate_producer_id(), 0))
    if not request.rights.transactional_id(Operation.WRITE, transactional_id):
        return IdentityAnswer(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not transactional_id:
        return IdentityAnswer(ErrorCode.INVALID_REQUEST)
    if not request.coordinates_transaction(transactional_id):
        return IdentityAnswer(ErrorCode.NOT_COORDINATOR)
    return cluster.transactions.init_producer_id(
        transactional_id,
        body["transaction_timeout_ms"],
        expected if expected.valid else None,
        request.now,
    )


# ------------------------------------------------------------------------------------------ AddPartitionsToTxn


def handle_add_partitions_to_txn(request: ApiRequest) -> Body:
    """AddPartitionsToTxn (24): add the partitions.

    Behaviour:
    - Makes partitions part of the transaction; the first ones begin it, and its time-out starts.
    - All or nothing: when one partition is not there, or its topic may not be written to, it gets its error, the
      others OPERATION_NOT_ATTEMPTED.
    - Another producer id: INVALID_PRODUCER_ID_MAPPING. Another epoch: PRODUCER_FENCED. Markers being written:
      CONCURRENT_TRANSACTIONS.

    Version notes:
    - 2: PRODUCER_FENCED, which was INVALID_PRODUCER_EPOCH before. 3: flexible. 4 and 5 are for brokers and not
      implemented here.
    """
    body = request.body
    transactional_id = body["v3_and_below_transactional_id"]
    wanted = _wanted_partitions(request)
    code = _adding_refused(request, transactional_id)
    if code:
        return _added(request, dict.fromkeys(wanted, code))
    problems = {key: problem for key in wanted if (problem := _partition_problem(request, key))}
    if problems:
        return _added(request, dict.fromkeys(wanted, ErrorCode.OPERATION_NOT_ATTEMPTED) | problems)
    producer = ProducerIdentity(body["v3_and_below_producer_id"], body["v3_and_below_producer_epoch"])
    code = request.cluster.transactions.add_partitions(transactional_id, producer, wanted, request.now)
    return _added(request, dict.fromkeys(wanted, request.fenced_code(code, _FENCED_SINCE)))


def refuse_add_partitions_to_txn(request: ApiRequest, code: int) -> Body:
    """Answer with the error code for every partition."""
    return _added(request, dict.fromkeys(_wanted_partitions(request), code))


def _adding_refused(request: ApiRequest, transactional_id: str) -> ErrorCode:
    if not request.rights.transactional_id(Operation.WRITE, transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not transactional_id:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE if request.coordinates_transaction(transactional_id) else ErrorCode.NOT_COORDINATOR


def _partition_problem(request: ApiRequest, key: TopicPartition) -> ErrorCode:
    if not request.rights.topic(Operation.WRITE, key.topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    known = request.cluster.topics.partition(*key) is not None
    return ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _wanted_partitions(request: ApiRequest) -> list[TopicPartition]:
    return [
        TopicPartition(topic["name"], index)
        for topic in request.body["v3_and_below_topics"]
        for index in topic["partitions"]
    ]


def _added(request: ApiRequest, codes: Mapping[TopicPartition, int]) -> Body:
    return {
        "results_by_topic_v3_and_below": [
            {
                "name": topic["name"],
                "results_by_partition": [
                    {
                        "partition_index": index,
                        "partition_error_code": codes[TopicPartition(topic["name"], index)],
                    }
                    for index in topic["partitions"]
                ],
            }
            for topic in request.body["v3_and_below_topics"]
        ]
    }


# --------------------------------------------------------------------------------------------- AddOffsetsToTxn


def handle_add_offsets_to_txn(request: ApiRequest) -> Body:
    """AddOffsetsToTxn (25): add the group.

    Behaviour:
    - Makes a group's partition of the offsets topic part of the transaction, as AddPartitionsToTxn does for data,
      with the same errors. Without the right READ on the group: GROUP_AUTHORIZATION_FAILED.
    - Not needed under the second protocol, where TxnOffsetCommit does it.

    Version notes:
    - 2: PRODUCER_FENCED, which was INVALID_PRODUCER_EPOCH before. 3: flexible. 4: TRANSACTION_ABORTABLE may be
      answered.
    """
    return {"error_code": request.fenced_code(_add_group(request), _FENCED_SINCE)}


def refuse_add_offsets_to_txn(request: ApiRequest, code: int) -> Body:
    return {"error_code": code}


def _add_group(request: ApiRequest) -> ErrorCode:
    body, cluster = request.body, request.cluster
    transactional_id, group_id = body["transactional_id"], body["group_id"]
    if not request.rights.transactional_id(Operation.WRITE, transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not request.rights.group(group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if not transactional_id:
        return ErrorCode.INVALID_REQUEST
    if not request.coordinates_transaction(transactional_id):
        return ErrorCode.NOT_COORDINATOR
    partition = TopicPartition(OFFSETS_TOPIC, cluster.group_slots.slot_of(group_id))
    producer = ProducerIdentity(body["producer_id"], body["producer_epoch"])
    return cluster.transactions.add_partitions(transactional_id, producer, [partition], request.now)


# ------------------------------------------------------------------------------------------------------ EndTxn


def handle_end_txn(request: ApiRequest) -> Body:
    """EndTxn (26): end the transaction.

    Behaviour:
    - Decides commit or abort; the answer comes before the markers are written, and until then
      CONCURRENT_TRANSACTIONS answers whatever comes, be it the same end, the other one, or the end of what follows.
    - The same end again: NONE. The other end: INVALID_TXN_STATE. Nothing was added: INVALID_TXN_STATE, except that
      an abort under the second protocol succeeds and raises the epoch.
    - An old epoch: PRODUCER_FENCED. Another producer id: INVALID_PRODUCER_ID_MAPPING.

    Version notes:
    - 2: PRODUCER_FENCED, which was INVALID_PRODUCER_EPOCH before. 3: flexible. 4: TRANSACTION_ABORTABLE may be
      answered.
    - 5: the second protocol: every end raises the epoch, and the answer has the producer's next id and epoch. The
      version of the request decides, not the feature: that is how Kafka does it, and why one transaction must not
      mix versions.
    """
    answer = _end(request)
    body: Body = {"error_code": request.fenced_code(answer.code, _FENCED_SINCE)}
    if request.version >= _SECOND_PROTOCOL_SINCE and answer.code is ErrorCode.NONE:
        body |= {"producer_id": answer.identity.producer_id, "producer_epoch": answer.identity.epoch}
    return body


def refuse_end_txn(request: ApiRequest, code: int) -> Body:
    return {"error_code": code}


def _end(request: ApiRequest) -> IdentityAnswer:
    body, transactions = request.body, request.cluster.transactions
    transactional_id = body["transactional_id"]
    if not request.rights.transactional_id(Operation.WRITE, transactional_id):
        return IdentityAnswer(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not transactional_id:
        return IdentityAnswer(ErrorCode.INVALID_REQUEST)
    if not request.coordinates_transaction(transactional_id):
        return IdentityAnswer(ErrorCode.NOT_COORDINATOR)
    end = transactions.end_v2 if request.version >= _SECOND_PROTOCOL_SINCE else transactions.end_v1
    producer = ProducerIdentity(body["producer_id"], body["producer_epoch"])
    return end(transactional_id, producer, commit=body["committed"], now=request.now)


# ---------------------------------------------------------------------------------------- DescribeTransactions


def handle_describe_transactions(request: ApiRequest) -> Body:
    """DescribeTransactions (65): describe them.

    Behaviour:
    - State, producer id and epoch, time-out, start and partitions of transactional ids that the broker coordinates.
    - Elsewhere: NOT_COORDINATOR. Never initialised: TRANSACTIONAL_ID_NOT_FOUND. Without the right DESCRIBE:
      TRANSACTIONAL_ID_AUTHORIZATION_FAILED, and topics without it are left out. Empty: INVALID_REQUEST.

    Version notes:
    - 0 only.
    """
    return {"transaction_states": [_describe(request, name) for name in request.body["transactional_ids"]]}


def refuse_describe_transactions(request: ApiRequest, code: int) -> Body:
    """Answer with the error code for every transactional id."""
    return {"transaction_states": [_not_described(name, code) for name in request.body["transactional_ids"]]}


def _describe(request: ApiRequest, transactional_id: str) -> Body:
    if not request.rights.transactional_id(Operation.DESCRIBE, transactional_id):
        return _not_described(transactional_id, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not transactional_id:
        return _not_described(transactional_id, ErrorCode.INVALID_REQUEST)
    if not request.coordinates_transaction(transactional_id):
        return _not_described(transactional_id, ErrorCode.NOT_COORDINATOR)
    txn = request.cluster.transactions.find(transactional_id)
    if txn is None:
        return _not_described(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    return {
        "error_code": ErrorCode.NONE,
        "transactional_id": transactional_id,
        "transaction_state": txn.state.value,
        "transaction_timeout_ms": txn.timeout_ms,
        "transaction_start_time_ms": txn.started_ms,
        "producer_id": txn.producer_id,
        "producer_epoch": txn.epoch,
        "topics": _topics(request, txn),
    }


def _topics(request: ApiRequest, txn: Transaction) -> list[Body]:
    by_topic = groupby(sorted(txn.partitions), key=lambda key: key.topic)
    return [
        {"topic": topic, "partitions": [key.partition for key in keys]}
        for topic, keys in by_topic
        if request.rights.topic(Operation.DESCRIBE, topic)
    ]


def _not_described(transactional_id: str, code: int) -> Body:
    return {"error_code": code, "transactional_id": transactional_id}


# -------------------------------------------------------------------------------------------- ListTransactions


# States that Kafka has a name for, and that a transaction here is never in.
_UNUSED_STATES: Final = {"Dead", "PrepareEpochFence"}


def handle_list_transactions(request: ApiRequest) -> Body:
    """ListTransactions (66): list them.

    Behaviour:
    - The transactional ids that the broker coordinates, so that a client has to ask every broker. Those without the
      right DESCRIBE are left out.
    - Filters by state, producer id, age and pattern; all that are given must fit. A state that Kafka does not know
      is told back. The pattern must match the whole id; one that is no regular expression is
      INVALID_REGULAR_EXPRESSION.

    Version notes:
    - 1: age. 2: pattern.
    """
    body = request.body
    try:
        pattern = re.compile(body["transactional_id_pattern"] or ".*", re.DOTALL)
    except re.error:
        return refuse_list_transactions(request, ErrorCode.INVALID_REGULAR_EXPRESSION)
    known = {state.value for state in TxnState} | _UNUSED_STATES
    found = [
        txn
        for txn in request.cluster.transactions
        if _fits(request, txn) and pattern.fullmatch(txn.transactional_id)
    ]
    return {
        "error_code": ErrorCode.NONE,
        "unknown_state_filters": [name for name in body["state_filters"] if name not in known],
        "transaction_states": [
            {
                "transactional_id": txn.transactional_id,
                "producer_id": txn.producer_id,
                "transaction_state": txn.state.value,
            }
            for txn in found
        ],
    }


def refuse_list_transactions(request: ApiRequest, code: int) -> Body:
    return {"error_code": code, "unknown_state_filters": [], "transaction_states": []}


def _fits(request: ApiRequest, txn: Transaction) -> bool:
    body = request.body
    if not request.coordinates_transaction(txn.transactional_id):
        return False
    if not request.rights.transactional_id(Operation.DESCRIBE, txn.transactional_id):
        return False
    if body["state_filters"] and txn.state.value not in body["state_filters"]:
        return False
    if body["producer_id_filters"] and txn.producer_id not in body["producer_id_filters"]:
        return False
    age: int = body["duration_filter"]
    return age < 0 or request.cluster.wall_ms() - txn.started_ms > age
