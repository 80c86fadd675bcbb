# SPDX-License-Identifier: Apache-2.0
"""What the log says: which records count, and what they add up to.

Rules:
1. A transactional record counts if the next control record of its producer id is a commit, and no record of a later
   epoch stands between: one epoch carries one transaction. Until there is one it does
   not count, and readers do not wait for it: whoever may decide has initialised the coordinator's id before it reads,
   by which every earlier transaction of that id has its end.
2. A plain record counts as it is: it is a fact.
3. Of each key the latest value counts, as compaction would leave it, so that it makes no difference how far compaction
   has come.
4. Only the latest decision matters: before it was made, all earlier ones were done.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.control.markers import read_marker
from penstock.errors import SinkLogLostError
from penstock.records.reader import RecordBatch
from penstock.sink import log_records
from penstock.sink.log_records import Claim, Decision, Key, Owner, sink_key_in
from penstock.sink.messages import TaskHandle


class SinkView(NamedTuple):
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


# The latest value of each key, as compaction would leave it; what has a tombstone is not there.
_Records = dict[bytes, bytes]


class _Waiting(NamedTuple):
    """A record whose transaction has no end yet."""

    sink_key: str
    key: bytes
    value: bytes | None
    epoch: int = -1


class LogContents:
    """Takes in the batches of a log, and tells what they say of each sink.

    Values are kept as they came and read only when asked for: most sinks in a log are of no interest to one driver.
    """

    def __init__(self) -> None:
        self._sinks: dict[str, _Records] = {}
        self._waiting: dict[int, list[_Waiting]] = {}  # by producer id

    def on_batch(self, batch: RecordBatch) -> None:
        """Take in the next batch of the log."""
        if batch.is_control:
            self._on_marker(batch)
            return
        for record in batch.records():
            sink_key = sink_key_in(record.key)
            if record.key is None or sink_key is None:
                continue  # somebody else's
            found = _Waiting(sink_key, record.key, record.value, batch.producer_epoch)
            if batch.is_transactional:
                self._waiting.setdefault(batch.producer_id, []).append(found)
            else:
                self._count(found)

    def _on_marker(self, batch: RecordBatch) -> None:
        waiting = self._waiting.pop(batch.producer_id, [])
        if not waiting or not read_marker(batch).committed:
            return
        # One epoch carries one transaction. Brokers before 3.6 take a batch that arrives after its transaction was
        # aborted, and nothing ends it: it would pass for part of the next one.
        newest = max(record.epoch for record in waiting)
        for record in waiting:
            if record.epoch == newest:
                self._count(record)

    def view(self, sink_key: str) -> SinkView:
        """What the log says of a sink.

        Raises:
            SinkLogLostError: the latest decision is not done, and not all of its handles are there; or a record cannot
                be read.
        """
        records = self._sinks.get(sink_key, {})
        for key in records:
            log_records.check_format(key)
        claim = records.get(Key("sink", sink_key).encode())
        owner = records.get(Key("owner", sink_key).encode())
        head = records.get(Key("decision", sink_key).encode())
        decision = None if head is None else log_records.parse_decision(head)
        done = decision is not None and Key("done", sink_key, decision.execution).encode() in records
        if decision is not None and not done:
            decision = decision._replace(handles=tuple(_handles(records, sink_key, decision)))
        return SinkView(
            sink_key,
            None if claim is None else log_records.parse_claim(claim),
            None if owner is None else log_records.parse_owner(owner),
            decision,
            done,
            any(record.sink_key == sink_key for some in self._waiting.values() for record in some),
        )

    def sink_keys(self) -> list[str]:
        """All sinks that the log knows of."""
        waiting = {record.sink_key for some in self._waiting.values() for record in some}
        return sorted(waiting.union(self._sinks))

    def _count(self, record: _Waiting) -> None:
        records = self._sinks.setdefault(record.sink_key, {})
        if record.value is None:
            records.pop(record.key, None)
            if not records:
                del self._sinks[record.sink_key]
        else:
            records[record.key] = record.value


def _handles(records: _Records, sink_key: str, head: Decision) -> list[TaskHandle]:
    handles = []
    for number in range(head.chunks):
        chunk = records.get(Key("chunk", sink_key, head.execution, number).encode())
        if chunk is None:
            raise SinkLogLostError(
                f"batch {head.batch_id} of query {head.query_id!r} was decided, but part {number + 1} of "
                f"{head.chunks} of its decision is missing from the log, so that it cannot be finished. Was the topic "
                "changed or its records deleted? Nothing was written"
            )
        handles += log_records.parse_chunk(chunk)
    return handles
