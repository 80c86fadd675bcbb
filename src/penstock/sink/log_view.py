# SPDX-License-Identifier: Apache-2.0
"""What the log says: which records count, and what they add up to.

Rules:
1. A transactional record counts if the next control record of its producer id is a commit. Until there is one it does
   not count, and readers do not wait for it: whoever may decide has initialised the coordinator's id before it reads,
   by which every earlier transaction of that id has its end.
2. A plain record counts as it is: it is a fact.
3. Only the latest decision matters: before it was made, all earlier ones were done.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from penstock.control.markers import read_marker
from penstock.errors import SinkLogLostError
from penstock.records.reader import RecordBatch
from penstock.sink import log_records
from penstock.sink.log_records import Claim, Decision, Key, Owner
from penstock.sink.messages import TaskHandle
from penstock.sink.plan import Execution


@dataclass(frozen=True, slots=True)
class SinkView:
    """One sink, as the log has it.

    Attributes:
        claim: its name; None when the log has never heard of it.
        decision: the latest one; with its handles unless it is done.
        done: whether that decision is done.
        deciding: there are records in a transaction that has no end yet.
    """

    sink_key: str
    claim: Claim | None = None
    owner: Owner | None = None
    decision: Decision | None = None
    done: bool = False
    deciding: bool = False

    @property
    def undone(self) -> Decision | None:
        """The decision that must be rolled forward, if there is one."""
        return None if self.done else self.decision


class _Waiting(NamedTuple):
    """A record whose transaction has no end yet."""

    key: Key
    value: bytes | None


@dataclass
class _SinkRecords:
    claim: Claim | None = None
    owner: Owner | None = None
    head: Decision | None = None
    chunks: dict[tuple[Execution, int], bytes] = field(default_factory=dict)
    done: set[Execution] = field(default_factory=set)


class LogContents:
    """Takes in the batches of a log, and tells what they say of one sink or of all.

    Args:
        sink_key: the only one that is of interest; None for all.
    """

    def __init__(self, sink_key: str | None) -> None:
        self._only = sink_key
        self._hint = b"" if sink_key is None else sink_key.encode()
        self._sinks: defaultdict[str, _SinkRecords] = defaultdict(_SinkRecords)
        self._waiting: dict[int, list[_Waiting]] = {}  # by producer id

    def on_batch(self, batch: RecordBatch) -> None:
        """Take in the next batch of the log."""
        if batch.is_control:
            waiting = self._waiting.pop(batch.producer_id, [])
            if waiting and read_marker(batch).committed:
                for each in waiting:
                    self._count(each)
            return
        for record in batch.records():
            if record.key is None or self._hint not in record.key:
                continue
            key = log_records.parse_key(record.key)
            if key is None or (self._only is not None and key.sink_key != self._only):
                continue
            found = _Waiting(key, record.value)
            if batch.is_transactional:
                self._waiting.setdefault(batch.producer_id, []).append(found)
            else:
                self._count(found)

    def view(self, sink_key: str) -> SinkView:
        """What the log says of a sink.

        Raises:
            SinkLogLostError: the latest decision is not done, and not all of its handles are there.
        """
        records = self._sinks.get(sink_key, _SinkRecords())
        deciding = any(record.key.sink_key == sink_key for some in self._waiting.values() for record in some)
        head = records.head
        done = head is not None and head.execution in records.done
        if head is not None and not done:
            head = replace(head, handles=tuple(_handles(records, head)))
        return SinkView(sink_key, records.claim, records.owner, head, done, deciding)

    def sink_keys(self) -> list[str]:
        """All sinks that the log knows of."""
        waiting = {record.key.sink_key for some in self._waiting.values() for record in some}
        known = {key for key, records in self._sinks.items() if records != _SinkRecords()}
        return sorted(known | waiting)

    def _count(self, record: _Waiting) -> None:
        key, value = record
        records = self._sinks[key.sink_key]
        if key.kind == "sink":
            records.claim = None if value is None else log_records.parse_claim(value)
        elif key.kind == "owner":
            records.owner = None if value is None else log_records.parse_owner(value)
        elif key.kind == "decision":
            _replace_head(records, None if value is None else log_records.parse_decision(value))
        elif key.kind == "chunk" and key.execution is not None:
            if value is None:
                records.chunks.pop((key.execution, key.chunk), None)
            else:
                records.chunks[key.execution, key.chunk] = value
        elif key.kind == "done" and key.execution is not None:
            if value is None:
                records.done.discard(key.execution)
            else:
                records.done.add(key.execution)


def _replace_head(records: _SinkRecords, head: Decision | None) -> None:
    records.head = head
    # What belongs to earlier decisions is of no use any more, though compaction may not have come to it yet.
    kept = None if head is None else head.execution
    records.chunks = {place: chunk for place, chunk in records.chunks.items() if place[0] == kept}
    records.done = {execution for execution in records.done if execution == kept}


def _handles(records: _SinkRecords, head: Decision) -> list[TaskHandle]:
    handles = []
    for index in range(head.chunks):
        chunk = records.chunks.get((head.execution, index))
        if chunk is None:
            raise SinkLogLostError(
                f"batch {head.batch_id} of query {head.query_id!r} was decided, but part {index + 1} of "
                f"{head.chunks} of its decision is missing from the log, so that it cannot be finished. Was the topic "
                "changed or its records deleted? Nothing was written"
            )
        handles += log_records.parse_chunk(chunk)
    return handles
