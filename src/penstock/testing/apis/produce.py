# SPDX-License-Identifier: Apache-2.0
"""Produce (0).

Behaviour:
- One batch of format v2 for each partition; `penstock.testing.batches` has the checks, `producer_state` those of the
  sequences. A duplicate is answered like the batch it repeats, with the batch's largest timestamp as time of append.
- An error comes with a text only where single records are at fault, where a transaction is not open, or where the batch
  has no length that could be right.
- acks=0 gets no answer; when a partition fails, the connection is closed, as that is all the client can be told.
  acks=1 is answered when the leader has the records. acks=all (-1) needs min.insync.replicas (NOT_ENOUGH_REPLICAS),
  then waits for the high watermark: REQUEST_TIMED_OUT after the request's time, although the records stay.
- Without the right WRITE on a topic: TOPIC_AUTHORIZATION_FAILED, for its partitions alone.
- Before 2.8 numbered batches need IDEMPOTENT_WRITE on the cluster: CLUSTER_AUTHORIZATION_FAILED for all of it.
- Transactional batches need a transactional id in the request (TRANSACTIONAL_ID_AUTHORIZATION_FAILED for all of it,
  without one or without the right WRITE on it), and the partition in the transaction. Up to version 11
  that is looked up when the producer first writes to the partition (releases from 3.6): TRANSACTION_ABORTABLE, or
  INVALID_TXN_STATE before version 11. From version 12 on the partition is added to the transaction here.
- A stale epoch is INVALID_PRODUCER_EPOCH, also where the coordinator says PRODUCER_FENCED. CONCURRENT_TRANSACTIONS
  becomes NOT_ENOUGH_REPLICAS before version 12, which older clients know to retry.

- Before 4.0 a client may send message sets (magic 0 and 1) in versions 0 to 2; from 0.11 on also batches. They are
  stored in the format of the release, or of the topic (message.format.version, 0.10 to 2.8): what it cannot say is
  dropped, and batches with a producer id are UNSUPPORTED_FOR_MESSAGE_FORMAT there. 0.9 is the exception: it stores a
  set as it came. A set in version 3 or later is refused, or the connection is closed (before 2.1).

Version notes:
- 0: message sets. 1: throttle time. 2: time of append. 3: batches, transactional id.
- 5: log start offset. 7: zstd. 8: errors of single records, messages. 9: flexible. 10: the present leader, with its
  address, beside NOT_LEADER_OR_FOLLOWER. 11: TRANSACTION_ABORTABLE. 12: second protocol. 13: topics by id.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from penstock._identity import ProducerIdentity
from penstock.error_codes import ErrorCode
from penstock.protocol.messages.produce import FIRST_VERSION_WITH_BATCHES
from penstock.records.format import MAGIC, MAGIC_AT, Buffer
from penstock.records.reader import RecordBatch
from penstock.testing.apis.context import Answer, ApiRequest, Body, NoAnswer, Pending
from penstock.testing.batches import check_batch, looks_numbered, looks_transactional
from penstock.testing.message_sets import Plain, as_batch, as_stored, records_of_set
from penstock.testing.producer_state import SequenceRules
from penstock.testing.refused import Refused
from penstock.testing.security.rights import Operation
from penstock.testing.settings import NO_LIMIT, TopicSettings
from penstock.testing.topics import Partition, Topic

_ALL: Final = -1
_ABORTABLE_SINCE: Final = 11
_SECOND_PROTOCOL_SINCE: Final = 12
_TOPIC_IDS_SINCE: Final = 13

# Errors after which the answer does not say where the log begins.
_SILENT_ON_LOG_START: Final = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
)

# Errors that come with a text, when they are found before the log is asked.
_TOLD_BEFORE_THE_LOG: Final = (ErrorCode.INVALID_TXN_STATE, ErrorCode.CORRUPT_MESSAGE)


@dataclass(slots=True)
class _Result:
    """What becomes of one partition of the request."""

    index: int
    partition: Partition | None = None
    code: int = ErrorCode.NONE
    message: str | None = None
    record_errors: list[tuple[int, str]] = field(default_factory=list)
    base_offset: int = -1
    append_time_ms: int = -1
    log_start_offset: int = -1
    required_offset: int = 0  # the high watermark that acks=all waits for
    leader_epoch: int = -1  # in which the records were appended


def handle(request: ApiRequest) -> Answer:
    """Append the batches of a Produce request, and answer it."""
    acks = request.body["acks"]
    if _closes_for_sets(request):
        return NoAnswer.CLOSE
    if not _may_write_transactions(request):
        return refuse(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not _may_write_numbered(request):
        return refuse(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if acks not in (_ALL, 0, 1):
        return refuse(request, ErrorCode.INVALID_REQUIRED_ACKS)
    results = [
        [_append(request, topic_row, row) for row in topic_row["partition_data"]]
        for topic_row in request.body["topic_data"]
    ]
    flat = [result for topic_results in results for result in topic_results]
    if acks == 0:
        return NoAnswer.CLOSE if any(result.code for result in flat) else NoAnswer.KEEP
    if acks == 1:
        return _answer(request, results)
    deadline = request.now + request.body["timeout_ms"] / 1000
    waiting = [result for result in flat if not result.code]

    def try_answer(now: float) -> Body | None:
        if now < deadline and any(_waits(result) for result in waiting):
            return None
        for result in waiting:
            _conclude(result)
        return _answer(request, results)

    at_once = try_answer(request.now)
    return Pending(deadline, try_answer) if at_once is None else at_once


def refuse(request: ApiRequest, code: int) -> Body:
    """Answer with the error code for every partition."""
    results = [
        [_Result(row["index"], code=code) for row in topic_row["partition_data"]]
        for topic_row in request.body["topic_data"]
    ]
    return _answer(request, results)


def _may_write_transactions(request: ApiRequest) -> bool:
    """Whether the request has an id that it may use, if it needs one; looked at before anything else."""
    transactional_id = request.body["transactional_id"]
    if transactional_id is not None and request.rights.transactional_id(Operation.WRITE, transactional_id):
        return True
    return not any(
        looks_transactional(row["records"])
        for topic_row in request.body["topic_data"]
        for row in topic_row["partition_data"]
    )


def _may_write_numbered(request: ApiRequest) -> bool:
    """Whether numbered batches are taken; since 2.8 the right to write to the topic is enough."""
    if not request.cluster.release.wants_idempotent_write or request.rights.number_batches():
        return True
    return not any(
        looks_numbered(row["records"]) and not looks_transactional(row["records"])
        for topic_row in request.body["topic_data"]
        for row in topic_row["partition_data"]
    )


# ------------------------------------------------------------------------------------------------ one partition


def _append(request: ApiRequest, topic_row: Body, row: Body) -> _Result:
    result = _Result(row["index"])
    try:
        topic, partition = _find(request, topic_row, row["index"])
        result.partition = partition
        forced = request.forced_errors.get(partition.key)
        if forced is None or request.forced_after_effect:
            _append_to_leader(request, topic, row["records"], result)
        if forced is not None:
            result.code = forced
    except Refused as error:
        result.code, result.record_errors = error.code, error.record_errors
        if _is_told_why(error):
            result.message = error.message
        if result.partition is not None:
            silent = not error.reached_log or error.code in _SILENT_ON_LOG_START
            result.log_start_offset = -1 if silent else result.partition.log.log_start_offset
    return result


def _is_told_why(error: Refused) -> bool:
    """Whether the client gets a text; mostly Kafka leaves it at the code."""
    return bool(error.record_errors) or (not error.reached_log and error.code in _TOLD_BEFORE_THE_LOG)


def _find(request: ApiRequest, topic_row: Body, index: int) -> tuple[Topic, Partition]:
    topics = request.cluster.topics
    if request.version >= _TOPIC_IDS_SINCE:
        topic, missing = topics.by_id(topic_row["topic_id"]), ErrorCode.UNKNOWN_TOPIC_ID
    else:
        topic, missing = topics.by_name(topic_row["name"]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic is None and missing is ErrorCode.UNKNOWN_TOPIC_ID:
        raise Refused(missing)
    name = topic_row["name"] if topic is None else topic.name
    if not request.rights.topic(Operation.WRITE, name):
        raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if topic is None:
        raise Refused(missing)
    partition = topics.partition(topic.name, index)
    if partition is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic, partition


def _append_to_leader(request: ApiRequest, topic: Topic, records: Buffer | None, result: _Result) -> None:
    partition = result.partition
    assert partition is not None
    if partition.leader != request.broker_id:
        raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    needed = topic.settings.min_insync_replicas
    if request.release.caps_min_insync_replicas:
        needed = min(needed, len(partition.replicas))
    if request.body["acks"] == _ALL and len(partition.isr) < needed:
        raise Refused(ErrorCode.NOT_ENOUGH_REPLICAS)
    log = partition.log
    magic, settings = _stored_magic(request, topic, records), topic.settings
    if request.version < FIRST_VERSION_WITH_BATCHES and records is not None and _magic_of(records) < MAGIC:
        records = _batch_of_set(request, topic, records, magic)
        if magic < MAGIC:
            settings = replace(settings, max_message_bytes=NO_LIMIT)  # each message was looked at by itself
    elif request.release.message_format < MAGIC:
        raise Refused(ErrorCode.CORRUPT_MESSAGE)  # of a format that it does not know
    batch = _check(request, settings, records)
    if magic < MAGIC:
        records = _in_old_format(batch, magic)
    result.log_start_offset = log.log_start_offset
    result.leader_epoch = partition.leader_epoch
    if batch.producer_id >= 0:
        rules = _rules(request, batch)
        duplicate = log.producers.find_duplicate(batch, rules)
        if duplicate is not None:
            result.base_offset, result.append_time_ms = duplicate.base_offset, duplicate.timestamp_ms
            result.required_offset = duplicate.base_offset + batch.records_count
            return
        if batch.is_transactional:
            _check_transaction(request, partition, batch)
        log.producers.check(batch, rules)
    assert records is not None
    stamp_ms = request.cluster.wall_ms() if topic.settings.log_append_time else None
    appended = log.append(records, partition.leader_epoch, stamp_ms, magic)
    result.base_offset, result.append_time_ms = appended.base_offset, appended.append_time_ms
    result.required_offset = appended.next_offset


def _check(request: ApiRequest, settings: TopicSettings, records: Buffer | None) -> RecordBatch:
    try:
        return check_batch(records, settings, request.version, request.cluster.wall_ms())
    except Refused as error:
        if error.code == ErrorCode.INVALID_RECORD:
            error.code = request.release.code_for_records
        raise


def _rules(request: ApiRequest, batch: RecordBatch) -> SequenceRules:
    unknown = None
    if request.release.knows_unknown_producers:
        unknown = ErrorCode.UNKNOWN_PRODUCER_ID
    elif batch.is_transactional and request.version >= _SECOND_PROTOCOL_SINCE:
        unknown = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    settings = request.cluster.settings
    return SequenceRules(unknown, settings.tells_old_duplicates, request.release.batches_kept)


def _check_transaction(request: ApiRequest, partition: Partition, batch: RecordBatch) -> None:
    cluster, transactional_id = request.cluster, request.body["transactional_id"]
    producer = ProducerIdentity(batch.producer_id, batch.producer_epoch)
    if partition.log.producers.in_transaction(*producer):
        return
    if request.version >= _SECOND_PROTOCOL_SINCE:
        code = cluster.transactions.add_partitions(transactional_id, producer, [partition.key], request.now)
    elif request.release.verifies_transactions:
        code = cluster.transactions.verify_partition(transactional_id, producer, partition.key)
    else:
        return
    if code:
        text = "Partition was not added to the transaction"
        raise Refused(_as_produce_error(code, request.version), text, reached_log=False)


def _as_produce_error(code: ErrorCode, version: int) -> ErrorCode:
    """What a producer is told of the coordinator's answer."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    if code is ErrorCode.CONCURRENT_TRANSACTIONS and version < _SECOND_PROTOCOL_SINCE:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return code


# ------------------------------------------------------------------------------------------------ older formats


def _magic_of(records: Buffer) -> int:
    return records[MAGIC_AT] if len(records) > MAGIC_AT else MAGIC


def _stored_magic(request: ApiRequest, topic: Topic, records: Buffer | None) -> int:
    """The format in which this broker stores the records."""
    release = request.release
    if release.message_format == 0 and records is not None:
        return min(_magic_of(records), 1)  # it does not look at the magic
    if not release.keeps_message_format:
        return release.message_format
    return min(release.message_format, topic.settings.message_format)


def _batch_of_set(request: ApiRequest, topic: Topic, records: Buffer, magic: int) -> bytes:
    """A message set as a batch, which the checks of batches go on with."""
    found = records_of_set(records, topic.settings, verifies_old_lz4=request.release.message_format == 0)
    return as_batch(as_stored(found, magic))


def _in_old_format(batch: RecordBatch, magic: int) -> bytes:
    """What is left of a batch in a topic with an older message format. Headers are lost, and nobody is told."""
    if batch.producer_id >= 0:
        raise Refused(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
    found = [Plain(record.timestamp, record.key, record.value, record.headers) for record in batch.records()]
    return as_batch(as_stored(found, magic))


def _closes_for_sets(request: ApiRequest) -> bool:
    """Whether the broker closes the connection because it finds a message set where batches belong."""
    if request.version < FIRST_VERSION_WITH_BATCHES or not request.release.closes_for_sets:
        return False
    return any(
        row["records"] is not None and _magic_of(row["records"]) < MAGIC
        for topic_row in request.body["topic_data"]
        for row in topic_row["partition_data"]
    )


# ------------------------------------------------------------------------------------------------ the answer


def _waits(result: _Result) -> bool:
    """Whether acks=all has to wait for this partition."""
    partition = result.partition
    assert partition is not None
    if partition.leader_epoch != result.leader_epoch:
        return False
    return partition.log.high_watermark < result.required_offset


def _conclude(result: _Result) -> None:
    """Say how the wait of acks=all ended."""
    partition = result.partition
    assert partition is not None
    if partition.leader_epoch != result.leader_epoch:
        result.code, result.base_offset = ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
    elif partition.log.high_watermark < result.required_offset:
        result.code = ErrorCode.REQUEST_TIMED_OUT


def _answer(request: ApiRequest, results: list[list[_Result]]) -> Body:
    cluster = request.cluster
    body: Body = {
        "responses": [
            {
                "name": topic_row["name"],
                "topic_id": topic_row["topic_id"],
                "partition_responses": [_row(request, result) for result in topic_results],
            }
            for topic_row, topic_results in zip(request.body["topic_data"], results, strict=True)
        ]
    }
    leaders = {
        result.partition.leader
        for topic_results in results
        for result in topic_results
        if result.code == ErrorCode.NOT_LEADER_OR_FOLLOWER and result.partition is not None
    }
    if request.version >= 10 and leaders & cluster.live:
        body["node_endpoints"] = [
            {"node_id": node.id, "host": node.host, "port": node.port, "rack": node.rack}
            for node in (cluster.nodes[leader] for leader in sorted(leaders & cluster.live))
        ]
    return body


def _row(request: ApiRequest, result: _Result) -> Body:
    row: Body = {
        "index": result.index,
        "error_code": result.code,
        "base_offset": result.base_offset,
        "log_append_time_ms": result.append_time_ms,
        "log_start_offset": result.log_start_offset,
        "record_errors": [
            {"batch_index": index, "batch_index_error_message": text} for index, text in result.record_errors
        ],
        "error_message": result.message,
    }
    moved = result.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    if moved and result.partition is not None and request.version >= 10:
        row["current_leader"] = {
            "leader_id": result.partition.leader,
            "leader_epoch": result.partition.leader_epoch,
        }
    return row
