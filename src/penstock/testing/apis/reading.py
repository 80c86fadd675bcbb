# SPDX-License-Identifier: Apache-2.0
"""The requests of those who read a log."""

from __future__ import annotations

from typing import Final

from penstock.error_codes import ErrorCode
from penstock.testing.apis.context import Answer, ApiRequest, Body, Pending
from penstock.testing.refused import Refused
from penstock.testing.security.rights import Operation

# ------------------------------------------------------------------------------------------------------- Fetch


_TOPIC_IDS_SINCE = 13
_NOT_THERE = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
)


def handle_fetch(request: ApiRequest) -> Answer:
    """Fetch (1): read, or wait for something to read.

    Behaviour:
    - Whole stored batches from the one that holds the offset asked for, control batches among them; one at least,
      whatever the limits say. Up to the high watermark, or with read_committed up to the last stable offset.
    - read_committed also gets the aborted transactions in what was read, for the reader to leave out.
    - Waits up to max_wait_ms until there are min_bytes.
    - An offset before the start or behind the end: OFFSET_OUT_OF_RANGE. A leader epoch that is not the present one:
      FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH.
    - Without the right READ: TOPIC_AUTHORIZATION_FAILED.
    - There are no fetch sessions: an answer always has session id 0, and a request for another one is
      FETCH_SESSION_ID_NOT_FOUND.

    Version notes:
    - 4: isolation level. 7: sessions. 9: leader epochs. 12: flexible. 13: topics by id.
    """
    body = request.body
    if body["session_id"] != 0:
        return {"error_code": ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "session_id": 0, "responses": []}
    deadline = request.now + body["max_wait_ms"] / 1000

    def try_answer(now: float) -> Body | None:
        answer, size, has_error = _read(request)
        if now < deadline and size < body["min_bytes"] and not has_error:
            return None
        return answer

    at_once = try_answer(request.now)
    return Pending(deadline, try_answer) if at_once is None else at_once


def refuse_fetch(request: ApiRequest, code: int) -> Body:
    """Answer with the error code for every partition."""
    return {
        "session_id": 0,
        "responses": [
            _fetched_topic(
                row, [_fetch_error(partition["partition"], code) for partition in row["partitions"]]
            )
            for row in request.body["topics"]
        ],
    }


def _read(request: ApiRequest) -> tuple[Body, int, bool]:
    """The answer as it would be now, its records' size, and whether a partition has an error."""
    left = request.body["max_bytes"]
    size, has_error = 0, False
    topics = []
    for topic_row in request.body["topics"]:
        partitions = []
        for row in topic_row["partitions"]:
            answer = _read_partition(request, topic_row, row, left - size)
            size += len(answer["records"] or b"")
            has_error = has_error or answer["error_code"] != 0
            partitions.append(answer)
        topics.append(_fetched_topic(topic_row, partitions))
    return {"session_id": 0, "responses": topics}, size, has_error


def _read_partition(request: ApiRequest, topic_row: Body, row: Body, left: int) -> Body:
    try:
        name = _topic_name(request, topic_row)
        partition = request.leader_partition(
            Operation.READ, name, row["partition"], row["current_leader_epoch"]
        )
        log, offset = partition.log, row["fetch_offset"]
        if not log.log_start_offset <= offset <= log.log_end_offset:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE)
    except Refused as error:
        # Kafka looks for the partition before it asks the log, whose answer has no list at all.
        found: Body = {} if error.code in _NOT_THERE else {"aborted_transactions": None}
        return _fetch_error(row["partition"], error.code) | found
    isolation = request.isolation
    records, end = b"", offset
    if left > 0:
        records, end = log.read(offset, min(left, row["partition_max_bytes"]), log.visible_end(isolation))
    aborted = None
    if isolation == "read_committed":
        aborted = [
            {"producer_id": each.producer_id, "first_offset": each.first_offset}
            for each in log.aborted_between(offset, end)
        ]
    return {
        "partition_index": row["partition"],
        "error_code": ErrorCode.NONE,
        "high_watermark": log.high_watermark,
        "last_stable_offset": log.last_stable_offset,
        "log_start_offset": log.log_start_offset,
        "aborted_transactions": aborted,
        "records": records,
    }


def _topic_name(request: ApiRequest, topic_row: Body) -> str:
    if request.version < _TOPIC_IDS_SINCE:
        return str(topic_row["topic"])
    topic = request.cluster.topics.by_id(topic_row["topic_id"])
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_ID)
    return topic.name


def _fetched_topic(topic_row: Body, partitions: list[Body]) -> Body:
    return {"topic": topic_row["topic"], "topic_id": topic_row["topic_id"], "partitions": partitions}


def _fetch_error(index: int, code: int) -> Body:
    return {"partition_index": index, "error_code": code, "high_watermark": -1, "records": b""}


# ------------------------------------------------------------------------------------------------- ListOffsets


_LATEST: Final = -1
_EARLIEST: Final = -2
_LARGEST_TIMESTAMP: Final = -3
_EARLIEST_LOCAL: Final = -4
_LATEST_TIERED: Final = -5
_EPOCHS_SINCE: Final = 4
# The first version in which a timestamp with a meaning may be asked for; UNSUPPORTED_VERSION before.
_SINCE: Final = {_LATEST: 0, _EARLIEST: 0, _LARGEST_TIMESTAMP: 7, _EARLIEST_LOCAL: 8, _LATEST_TIERED: 9}
_NEVER: Final = 2**15


def handle_list_offsets(request: ApiRequest) -> Body:
    """ListOffsets (2): look the offsets up.

    Behaviour:
    - The latest offset (timestamp -1): the high watermark, or with read_committed the last stable offset. The
      earliest (-2): the start of the log. Any other timestamp: the first record that is not older, or offset -1.
    - The record with the largest timestamp (-3). The start of what is not in tiered storage (-4): that of the log,
      as there is none. The end of what is (-5): offset -1.
    - Without the right DESCRIBE: TOPIC_AUTHORIZATION_FAILED.

    Version notes:
    - 2: isolation level. 4: leader epochs. 6: flexible. 7: timestamp -3. 8: timestamp -4. 9: timestamp -5. 10: a
      time-out, which means nothing here.
    """
    return _offsets(request, None)


def refuse_list_offsets(request: ApiRequest, code: int) -> Body:
    """Answer with the error code for every partition."""
    return _offsets(request, code)


def _offsets(request: ApiRequest, forced: int | None) -> Body:
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [_offset(request, topic["name"], row, forced) for row in topic["partitions"]],
            }
            for topic in request.body["topics"]
        ]
    }


def _offset(request: ApiRequest, topic: str, row: Body, forced: int | None) -> Body:
    index = row["partition_index"]
    if forced is not None:
        return {"partition_index": index, "error_code": forced}
    try:
        partition = request.leader_partition(Operation.DESCRIBE, topic, index, row["current_leader_epoch"])
    except Refused as error:
        return {"partition_index": index, "error_code": error.code}
    log, wanted = partition.log, row["timestamp"]
    if wanted < 0 and request.version < _SINCE.get(wanted, _NEVER):
        return {"partition_index": index, "error_code": ErrorCode.UNSUPPORTED_VERSION}
    timestamp, offset = -1, -1
    end = log.visible_end(request.isolation)
    if wanted == _LATEST:
        offset = end
    elif wanted in (_EARLIEST, _EARLIEST_LOCAL):
        offset = log.log_start_offset
    elif wanted == _LARGEST_TIMESTAMP:
        newest = max(log.records("read_uncommitted"), key=lambda record: record.timestamp, default=None)
        if newest is not None:
            timestamp, offset = newest.timestamp, newest.offset
    elif wanted == _LATEST_TIERED:
        pass  # nothing is
    elif (found := log.first_at_or_after(wanted, end)) is not None:
        timestamp, offset = found.timestamp, found.offset
    answer: Body = {
        "partition_index": index,
        "error_code": ErrorCode.NONE,
        "timestamp": timestamp,
        "offset": offset,
    }
    if request.version >= _EPOCHS_SINCE and offset >= 0:
        answer["leader_epoch"] = partition.leader_epoch
    return answer
