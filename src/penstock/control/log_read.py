# SPDX-License-Identifier: Apache-2.0
"""Reads a whole partition up to its present end, uncommitted records and control records among the rest.

What counts is for the reader to decide: a read-committed fetch would stop before the first open transaction, whosever
it is. Read page by page, so that memory stays bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from penstock.control.markers import LAST_VERSION_WITH_NAMES
from penstock.control.steps import Ask, LeaderOf, Rest, Steps, ask_until_answered, with_last_trouble
from penstock.error_codes import ErrorCode
from penstock.errors import KafkaError, KafkaTimeoutError, ProtocolError, broker_error
from penstock.protocol.messages import FETCH, LIST_OFFSETS
from penstock.protocol.requests import SchemaRequest
from penstock.records.reader import RecordBatch, read_batches

PAGE_BYTES = 1024 * 1024
# From this version on a leader that does not know its high watermark yet says so, instead of an old one.
FIRST_LIST_OFFSETS_WITHOUT_STALE_ENDS = 5

_LATEST, _EARLIEST = -1, -2
_READ_UNCOMMITTED = 0


class LogEnd(NamedTuple):
    """The end of a partition, or its beginning.

    Attributes:
        offset: of the next record, or of the first one.
        leader_epoch: which reign of a leader told it; -1 when it did not say.
    """

    offset: int
    leader_epoch: int


def log_end(leader: LeaderOf) -> Steps[LogEnd]:
    """The high watermark of a partition."""
    return (yield from _offset_of(leader, _LATEST))


def log_start(leader: LeaderOf) -> Steps[LogEnd]:
    """The first offset that a partition still has."""
    return (yield from _offset_of(leader, _EARLIEST))


def read_log(leader: LeaderOf, start: int, end: int, on_batch: Callable[[RecordBatch], None]) -> Steps[int]:
    """Hand over all batches from the one that holds `start` up to `end`; the offset behind the last one.

    Raises:
        KafkaError: the log cannot be read; OFFSET_OUT_OF_RANGE (code 1) where it does not begin at `start` any more.
    """
    position = start
    trouble: KafkaError | None = None
    attempts = 0
    try:
        while position < end:
            reply = yield Ask(leader, _fetch(leader, position), fresh=trouble is not None)
            try:
                before, position = position, _take(reply.error, reply.body, position, on_batch)
                trouble = None if position > before else ProtocolError("a page of the log is empty")
            except KafkaError as error:
                if not (error.retriable or isinstance(error, ProtocolError)):
                    raise
                trouble = error
            if trouble is not None:
                yield Rest(attempts)
                attempts += 1
    except KafkaTimeoutError as up:
        raise with_last_trouble(up, trouble) from trouble
    return position


def _take(
    failure: KafkaError | None,
    body: Mapping[str, Any],
    position: int,
    on_batch: Callable[[RecordBatch], None],
) -> int:
    if failure is not None:
        raise failure
    rows = [part for topic in body["responses"] for part in topic["partitions"]]
    code = body["error_code"] or (rows[0]["error_code"] if rows else ErrorCode.UNKNOWN_SERVER_ERROR)
    if code:
        raise broker_error(code)
    # All of a page is read before any of it is handed over: what is damaged on its way is fetched again.
    batches = list(read_batches(rows[0]["records"] or b"", allow_partial=True))
    for batch in batches:
        if batch.last_offset >= position:
            position = batch.last_offset + 1
            on_batch(batch)
    return position


def _offset_of(leader: LeaderOf, which: int) -> Steps[LogEnd]:
    row = {"partition_index": leader.partition, "timestamp": which}
    body = {
        "isolation_level": _READ_UNCOMMITTED,
        "topics": [{"name": leader.topic, "partitions": [row]}],
    }
    request = SchemaRequest.of(LIST_OFFSETS, body, FIRST_LIST_OFFSETS_WITHOUT_STALE_ENDS)
    answer = yield from ask_until_answered(leader, request, _list_offsets_error)
    part = answer["topics"][0]["partitions"][0]
    return LogEnd(part["offset"], part["leader_epoch"])


def _list_offsets_error(body: Mapping[str, Any]) -> KafkaError | None:
    rows = [part for topic in body["topics"] for part in topic["partitions"]]
    if len(rows) != 1:
        return ProtocolError(f"ListOffsets was asked for one partition and answered for {len(rows)}")
    code = rows[0]["error_code"]
    return broker_error(code) if code else None


def _fetch(leader: LeaderOf, position: int) -> SchemaRequest:
    part = {"partition": leader.partition, "fetch_offset": position, "partition_max_bytes": PAGE_BYTES}
    body = {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": PAGE_BYTES,
        "isolation_level": _READ_UNCOMMITTED,
        "topics": [{"topic": leader.topic, "partitions": [part]}],
    }
    return SchemaRequest.of(FETCH, body, max_version=LAST_VERSION_WITH_NAMES)
