# SPDX-License-Identifier: Apache-2.0
"""Reads from the log how a transaction ended: the first control record of its producer id behind its first batch.

The fetch is read-uncommitted, because a marker is what is looked for, and open transactions of others must not hide it.
The log is paged through, so that memory stays bounded however much others have written; a search that found no marker
goes on later where it stopped.

Rules:
1. What is found counts only if the first batch at or behind the handle's place is the transaction's own. If it is gone
   (retention, compaction, a topic that was made anew), the marker may be gone as well, and the first one found would
   belong to a later transaction of the same producer.
2. Only what is below the high watermark is seen: a marker that could still be lost does not count.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock.control.rights import answered
from penstock.control.steps import Ask, LeaderOf, Steps
from penstock.error_codes import ErrorCode
from penstock.errors import KafkaError, ProtocolError, broker_error
from penstock.protocol.messages import FETCH, LIST_OFFSETS
from penstock.protocol.requests import SchemaRequest
from penstock.records.format import most_decoded_bytes
from penstock.records.reader import RecordBatch, read_batches

# Later versions name topics by id, which would have to be found out first.
LAST_VERSION_WITH_NAMES = 12
PAGE_BYTES = 1024 * 1024

_READ_UNCOMMITTED = 0
_EARLIEST = -2

_ABORT, _COMMIT = 0, 1
_CONTROL_KEY = struct.Struct(
    ">"
    "h"  # version
    "h"  # type: 0 abort, 1 commit
)
_END_TXN_VALUE = struct.Struct(
    ">"
    "h"  # version
    "i"  # coordinator epoch
)


class Marker(NamedTuple):
    """The control record that ended a transaction in one partition.

    Attributes:
        producer_epoch: of the marker; that of the transaction, or a newer one.
        coordinator_epoch: that of the coordinator which wrote it.
        timestamp_ms: when, by the coordinator's clock.
    """

    committed: bool
    offset: int
    producer_epoch: int
    coordinator_epoch: int
    timestamp_ms: int


class SearchEnd(enum.Enum):
    """How a search ended without a marker."""

    OPEN = "the log has no marker yet"
    GONE = "the log has lost the transaction's batch"
    TROUBLE = "the log could not be read now"
    FORBIDDEN = "the log may not be read"


class Found(NamedTuple):
    """What a search gave.

    Attributes:
        marker: how the transaction ended, or None.
        end: why there is none; None when there is.
        error: what the broker said.
    """

    marker: Marker | None = None
    end: SearchEnd | None = None
    error: KafkaError | None = None


class MarkerSearch:
    """Looks for the marker of one transaction in one partition.

    Args:
        topic: where the transaction's batch is.
        partition: likewise.
        offset: likewise.
        producer_id: whose marker is looked for.
        producer_epoch: the epoch of that batch.

    Attributes:
        position: the offset at which the search goes on.
    """

    def __init__(
        self, topic: str, partition: int, offset: int, producer_id: int, producer_epoch: int
    ) -> None:
        self.leader = LeaderOf(topic, partition)
        self.position = offset
        self._first_offset = offset
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._batch_seen = False
        self._leader_doubtful = False

    def look(self) -> Steps[Found]:
        """Read on to the present end of the log, or to the marker."""
        found: Found | None = None
        while found is None:
            reply = yield Ask(self.leader, self._fetch_request(), fresh=self._leader_doubtful)
            if reply.error is not None:
                found = _trouble(reply.error)
                break
            part = _only_partition(reply.body, "responses", self.leader)
            code = reply.body["error_code"] or part["error_code"]
            if code == ErrorCode.OFFSET_OUT_OF_RANGE:
                found = yield from self._out_of_range()
            elif code:
                found = _trouble(self._answered(code, "READ"))
            else:
                found = self._read_fetched(part)
        self._leader_doubtful = found.end is SearchEnd.TROUBLE
        return found

    def _read_fetched(self, part: Mapping[str, Any]) -> Found | None:
        try:
            return self.read_page(part["records"] or b"", part["high_watermark"])
        except ProtocolError as error:
            return _trouble(error)  # damaged, perhaps only on its way

    def read_page(self, records: bytes | memoryview, high_watermark: int) -> Found | None:
        """Take in a page that was fetched from `position`; what it tells, or None when the next page may tell."""
        before = self.position
        for batch in read_batches(records, allow_partial=True):
            if batch.last_offset < self.position:
                continue  # a page begins with the whole batch that holds the position
            self.position = batch.last_offset + 1
            if not self._batch_seen:
                if not self._is_ours(batch):
                    return Found(end=SearchEnd.GONE)
                self._batch_seen = True
            elif batch.producer_id == self._producer_id:
                found = self._judge(batch)
                if found is not None:
                    return found
        if self.position == before or self.position >= high_watermark:
            return Found(end=SearchEnd.OPEN)
        return None

    def _is_ours(self, batch: RecordBatch) -> bool:
        # Not by its offset: where compaction took the first batch, a later one of the transaction does as well.
        ours = (self._producer_id, self._producer_epoch)
        return not batch.is_control and (batch.producer_id, batch.producer_epoch) == ours

    def _judge(self, batch: RecordBatch) -> Found | None:
        """What another batch of the same producer id says."""
        if batch.is_control:
            return Found(marker=read_marker(batch))
        if batch.producer_epoch != self._producer_epoch:
            # A later transaction before any marker: the one looked for is missing.
            return Found(end=SearchEnd.GONE)
        return None

    def _out_of_range(self) -> Steps[Found]:
        """Tell a batch that retention has removed from a leader that lags behind."""
        where = {"partition_index": self.leader.partition, "timestamp": _EARLIEST}
        body = {"topics": [{"name": self.leader.topic, "partitions": [where]}]}
        reply = yield Ask(self.leader, SchemaRequest.of(LIST_OFFSETS, body))
        if reply.error is not None:
            return _trouble(reply.error)
        part = _only_partition(reply.body, "topics", self.leader)
        if part["error_code"]:
            return _trouble(self._answered(part["error_code"], "DESCRIBE"))
        out_of_range = broker_error(ErrorCode.OFFSET_OUT_OF_RANGE)
        if part["offset"] > self._first_offset:
            return Found(end=SearchEnd.GONE, error=out_of_range)
        return Found(end=SearchEnd.TROUBLE, error=out_of_range)

    def _answered(self, code: int, right: str) -> KafkaError:
        return answered(code, right, f"topic {self.leader.topic!r}")

    def _fetch_request(self) -> SchemaRequest:
        part = {
            "partition": self.leader.partition,
            "fetch_offset": self.position,
            "partition_max_bytes": PAGE_BYTES,
        }
        body = {
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_bytes": PAGE_BYTES,
            "isolation_level": _READ_UNCOMMITTED,
            "topics": [{"topic": self.leader.topic, "partitions": [part]}],
        }
        return SchemaRequest.of(FETCH, body, max_version=LAST_VERSION_WITH_NAMES)


def _only_partition(body: Mapping[str, Any], list_name: str, asked: LeaderOf) -> Mapping[str, Any]:
    for topic in body[list_name]:
        for part in topic["partitions"]:
            if part["partition_index"] == asked.partition:
                row: Mapping[str, Any] = part
                return row
    # A broker leaves it out when the whole request failed; the code of that is at the top.
    return {
        "error_code": body.get("error_code") or ErrorCode.UNKNOWN_SERVER_ERROR,
        "records": None,
        "high_watermark": -1,
    }


def _trouble(error: KafkaError) -> Found:
    if error.retriable or isinstance(error, ProtocolError):
        return Found(end=SearchEnd.TROUBLE, error=error)
    return Found(end=SearchEnd.FORBIDDEN, error=error)


def read_marker(batch: RecordBatch) -> Marker:
    """Read a batch of control records, which holds exactly one."""
    records = batch.records(most_decoded_bytes(batch.size))
    key = records[0].key if records else None
    if key is None or len(key) < _CONTROL_KEY.size:
        raise ProtocolError(f"the control record at offset {batch.base_offset} has no key")
    _, kind = _CONTROL_KEY.unpack_from(key)
    if kind not in (_ABORT, _COMMIT):
        raise ProtocolError(f"the control record at offset {batch.base_offset} is of the unknown type {kind}")
    value = records[0].value or b""
    coordinator_epoch = _END_TXN_VALUE.unpack_from(value)[1] if len(value) >= _END_TXN_VALUE.size else -1
    return Marker(
        committed=kind == _COMMIT,
        offset=batch.base_offset,
        producer_epoch=batch.producer_epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp_ms=batch.max_timestamp,
    )
