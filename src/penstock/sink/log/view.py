# SPDX-License-Identifier: Apache-2.0
"""What the log says: which records count, and what they add up to.

Everyone with the permission to write to the topic may write anything, so a record counts only where the protocol has
put it.

Rules:
1. A transactional record counts if the next control record of its producer id is a commit, and no record of a later
   epoch stands between: one epoch carries one transaction. Until there is such a control record it does not count, and
   readers do not wait for it: a driver that may decide has initialised the coordinator's id before it reads, and by
   that every earlier transaction of that id has ended.
2. Owner, chunk and decision count from transactions only. A plain record counts where it is a fact: the name of a
   sink, and that a decision is done.
3. A plain tombstone counts for the chunks of a decision that is done or was replaced; and for everything of a one-off
   run, unless a decision of it is not done: such a run is forgotten as a whole. That it is one-off is assumed of a
   claim whose name is the sink's own: the key is made of it, so nobody can make a streaming query's sink one. A
   coordinator answers EndTxn before its markers are in the log, so the tombstones of a decision that is done may stand
   before the marker that makes it count: they delete it all the same.
4. Of each key the latest value counts, as compaction would leave it, so that it makes no difference how far compaction
   has come. A plain record that does not count may still have made compaction remove the one before it: where there is
   no other, the sink is refused instead of taken for one that has decided nothing. So it is where parts of a decision,
   or that it is done, are left of a decision that is not there.
5. Only the latest decision matters: before it was made, all earlier ones were done.
6. What cannot be read, or does not count by these rules, is noted and concerns at most the sink that its key names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

from penstock.control.markers import read_marker
from penstock.errors import ProtocolError, SinkLogLostError
from penstock.records.format import most_decoded_bytes
from penstock.records.reader import RecordBatch
from penstock.sink.log import records as log_records
from penstock.sink.log.records import Claim, Decision, Key, Owner, sink_key_in
from penstock.sink.messages import Execution, TaskHandle
from penstock.sink.settings import sink_key as key_of

T = TypeVar("T")


class SinkView(NamedTuple):
    """One sink, as the log has it.

    Attributes:
        claim: its name; None when the log does not have it.
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
    def is_one_off(self) -> bool:
        """Whether nobody will ask for the run again: assumed of a name that is the sink's own (rule 3)."""
        return self.claim is not None and _is_one_off(self.claim, self.sink_key)

    @property
    def undone(self) -> Decision | None:
        """The decision that must be rolled forward, if there is one."""
        return None if self.done else self.decision


class Stray(NamedTuple):
    """A record in the log that does not count; Penstock has not written it, or not like this.

    Attributes:
        offset: where it is.
        sink_key: the sink that its key names, if any.
        reason: why it does not count.
    """

    offset: int
    sink_key: str | None
    reason: str


class _Found(NamedTuple):
    """A record of the log.

    Attributes:
        value: None in a tombstone.
        timestamp: milliseconds since the epoch, as it says.
        is_of_repair: its transaction also gives up parts of another decision, as only a repair does.
        is_deleted: it waits for the end of its transaction, and a later tombstone has counted.
    """

    sink_key: str
    key: bytes
    value: bytes | None
    offset: int
    epoch: int = -1
    is_of_repair: bool = False
    is_deleted: bool = False
    timestamp: int = -1


class _SinkRecords:
    """What counts of one sink.

    Attributes:
        values: the latest value of each key; what has a tombstone is not there.
        shadows: offsets of plain records at keys where only a transaction may write, by key: what was there before them
            may have been removed by compaction.
    """

    __slots__ = ("shadows", "values")

    def __init__(self) -> None:
        self.values: dict[bytes, _Found] = {}
        self.shadows: dict[bytes, int] = {}

    def get(self, key: Key) -> _Found | None:
        return self.values.get(key.encode())

    def put(self, record: _Found) -> None:
        self.shadows.pop(record.key, None)
        if record.value is None:
            self.values.pop(record.key, None)
        else:
            self.values[record.key] = record


# Stray records that are remembered one by one, of each partition; of the others only how many there are.
MAX_STRAYS = 100


class LogContents:
    """Takes in the batches of a log, and tells what they say of each sink.

    Values are kept as they came and read only when asked for: most sinks in a log are of no interest to one driver.

    Attributes:
        strays: the first records that do not count, in the order of the log.
        stray_count: how many there are.
    """

    def __init__(self) -> None:
        self._sinks: dict[str, _SinkRecords] = {}
        self._waiting: dict[int, list[_Found]] = {}  # by producer id
        self.strays: list[Stray] = []
        self.stray_count = 0

    def on_batch(self, batch: RecordBatch) -> None:
        """Take in the next batch of the log."""
        if batch.is_control:
            self._on_marker(batch)
            return
        try:
            found = list(self._ours_in(batch))
        except ProtocolError as error:
            # Its checksum is right, so that it is as somebody wrote it: brokers do not look into compressed records.
            self._note(batch.base_offset, None, f"the batch cannot be read: {error}")
            return
        if batch.is_transactional:
            if found:
                self._waiting.setdefault(batch.producer_id, []).extend(found)
        else:
            self._count_facts(found)

    def _ours_in(self, batch: RecordBatch) -> Iterator[_Found]:
        for record in batch.iter_records(most_decoded_bytes(batch.size)):
            sink_key = sink_key_in(record.key)
            if record.key is None or sink_key is None:
                self._note(record.offset, None, "its key is not one of a sink")
            else:
                yield _Found(
                    sink_key,
                    record.key,
                    record.value,
                    record.offset,
                    batch.producer_epoch,
                    timestamp=record.timestamp,
                )

    def _on_marker(self, batch: RecordBatch) -> None:
        waiting = self._waiting.pop(batch.producer_id, [])
        if not waiting or not read_marker(batch).committed:
            return
        # One epoch carries one transaction. Brokers before 3.6 take a batch that arrives after its transaction was
        # aborted, and nothing ends it: it would pass for part of the next one.
        newest = max(record.epoch for record in waiting)
        written = [record for record in waiting if record.epoch == newest]
        repairs = any(record.value is None and _CHUNK in record.key for record in written)
        for record in written:
            if not record.is_deleted:
                self._count(record._replace(is_of_repair=repairs))

    def _awaited(self) -> Iterator[_Found]:
        """The records that will count if their transactions are committed."""
        return (record for some in self._waiting.values() for record in some if not record.is_deleted)

    def view(self, sink_key: str) -> SinkView:
        """What the log says of a sink.

        Raises:
            SinkLogLostError: the latest decision is not done, and not all of its handles are there; a record cannot be
                read, or was put in the place of another.
        """
        records = self._sinks.get(sink_key, _SinkRecords())
        for key in records.values:
            log_records.check_format(key)
        claim = _read(records.get(Key("sink", sink_key)), log_records.parse_claim)
        owner = _read(records.get(Key("owner", sink_key)), log_records.parse_owner)
        decision = _read_head(records.get(Key("decision", sink_key)))
        if owner is None and claim is not None:
            _refuse_shadow(records, Key("owner", sink_key))
        if decision is None and owner is not None:
            _refuse_shadow(records, Key("decision", sink_key))
            if not self._awaits(Key("decision", sink_key)):
                _refuse_headless(records, sink_key)
        done = decision is not None and records.get(Key("done", sink_key, decision.execution)) is not None
        if decision is not None and not done:
            decision = decision._replace(handles=tuple(_handles(records, sink_key, decision)))
        deciding = any(record.sink_key == sink_key for record in self._awaited())
        return SinkView(sink_key, claim, owner, decision, done, deciding)

    def _awaits(self, key: Key) -> bool:
        """Whether a record waits for the end of its transaction.

        A coordinator answers EndTxn before its marker is in the log. So the records that follow a decision may be there
        before the decision counts.
        """
        wanted = key.encode()
        return any(record.key == wanted for record in self._awaited())

    def unfinished_runs(self, sink_id: str) -> list[SinkView]:
        """Sinks with that name that have decided nothing, or not finished it, or should be forgotten.

        Those that cannot be read are left out: the driver that uses them is told. A log holds every named run:
        most are passed over, and their records are not read.
        """
        quoted = json.dumps(sink_id).encode()
        found = []
        for sink_key, records in self._sinks.items():
            claim = records.get(Key("sink", sink_key))
            if claim is None or quoted not in (claim.value or b""):
                continue
            if _ONE_OFF not in (claim.value or b"") and any(_DONE in key for key in records.values):
                continue
            try:
                view = self.view(sink_key)
            except SinkLogLostError:
                continue
            # A key is made of its sink's name: with another name it is not the sink's own.
            name = view.claim
            if name is not None and key_of(sink_id, name.run_id) == sink_key and name.sink_id == sink_id:
                found.append(view)
        return found

    def sink_keys(self) -> list[str]:
        """All sinks that the log knows of."""
        waiting = {record.sink_key for record in self._awaited()}
        return sorted(waiting.union(key for key, records in self._sinks.items() if records.values))

    def _count(self, record: _Found) -> None:
        records = self._sinks.setdefault(record.sink_key, _SinkRecords())
        records.put(record)
        if not records.values and not records.shadows:
            del self._sinks[record.sink_key]

    # ---- plain records

    def _count_facts(self, facts: list[_Found]) -> None:
        """Take in plain records. The tombstones of a batch belong together: one must not change what the next means."""
        for fact in facts:
            if fact.value is not None:
                self._count_if(_why_value_does_not_count(fact), fact)
        tombstones = [fact for fact in facts if fact.value is None]
        before = {sink_key: self._standing(sink_key) for sink_key in {fact.sink_key for fact in tombstones}}
        for fact in tombstones:
            standing = before[fact.sink_key]
            problem = _why_tombstone_does_not_count(fact, standing)
            self._count_if(problem, fact)
            if problem is None:
                self._delete_awaited(fact, standing)

    def _delete_awaited(self, tombstone: _Found, standing: _Standing) -> None:
        """Let a tombstone count for what stands before it and waits for a marker: of a decision that is done only."""
        for some in self._waiting.values():
            for at, record in enumerate(some):
                if record.key == tombstone.key and _execution_of(record) in standing.done:
                    some[at] = record._replace(is_deleted=True)

    def _count_if(self, problem: str | None, fact: _Found) -> None:
        if problem is None:
            self._count(fact)
        else:
            self._note(fact.offset, fact.sink_key, problem)
            self._shadow(fact)

    def _standing(self, sink_key: str) -> _Standing:
        records = self._sinks.get(sink_key, _SinkRecords())
        claim, head = records.get(Key("sink", sink_key)), records.get(Key("decision", sink_key))
        one_off, undone = False, None
        try:
            one_off = claim is not None and _is_one_off(log_records.parse_claim(claim.value or b""), sink_key)
            decision = None if head is None else log_records.parse_decision(head.value or b"")
        except SinkLogLostError:
            return _Standing(one_off=False, undone=None, readable=False)
        if decision is not None and records.get(Key("done", sink_key, decision.execution)) is None:
            undone = decision.execution
        keys = (log_records.parse_key(key) for key in records.values if _DONE in key)
        done = frozenset(key.execution for key in keys if key is not None and key.execution is not None)
        known = any(_DONE not in key for key in records.values)
        return _Standing(one_off, undone, known=known, done=done)

    def _shadow(self, record: _Found) -> None:
        key = log_records.parse_key(record.key)
        if key is None or key.kind not in _ONLY_IN_TRANSACTIONS:
            return
        records = self._sinks.setdefault(record.sink_key, _SinkRecords())
        if record.value is None:
            records.shadows.pop(record.key, None)
        else:
            records.shadows[record.key] = record.offset

    def _note(self, offset: int, sink_key: str | None, reason: str) -> None:
        self.stray_count += 1
        if len(self.strays) < MAX_STRAYS:
            self.strays.append(Stray(offset, sink_key, reason))


# As they are in keys and values that this format writes; only to save time.
_DONE = b'"kind":"done"'
_CHUNK = b'"kind":"chunk"'
_ONE_OFF = b'"one_off":true'

# What only a transaction of the sink's coordinator may say.
_ONLY_IN_TRANSACTIONS = ("owner", "decision", "chunk")


class _Standing(NamedTuple):
    """How a sink stood before a batch of plain records.

    Attributes:
        undone: the execution of a decision that is not done.
        readable: whether that is known.
        known: whether the log had anything of it but *done*, which somebody who is slow may write after the run was
            forgotten.
        done: the executions whose decision the log says to be done.
    """

    one_off: bool
    undone: Execution | None
    readable: bool = True
    known: bool = True
    done: frozenset[Execution] = frozenset()


def _execution_of(record: _Found) -> Execution | None:
    """The execution whose decision, or part of it, a record is."""
    key = log_records.parse_key(record.key)
    if key is None or key.kind != "decision":
        return None if key is None or key.kind != "chunk" else key.execution
    try:
        return log_records.parse_decision(record.value or b"").execution
    except SinkLogLostError:
        return None


def _why_value_does_not_count(fact: _Found) -> str | None:
    key = log_records.parse_key(fact.key)
    if key is None:
        # Of another format: what it means is not known, so that the sink that it names must not go on.
        return None if not log_records.is_of_this_format(fact.key) else "its key is not one of a sink"
    if key.kind in _ONLY_IN_TRANSACTIONS:
        return f"it is to be the {key.kind} record of a sink, and was not written in a transaction"
    return None


def _why_tombstone_does_not_count(fact: _Found, standing: _Standing) -> str | None:
    key = log_records.parse_key(fact.key)
    if key is None:
        return None
    if not standing.known:
        return None  # of a run that was forgotten; compaction has removed the rest before
    if standing.readable and standing.one_off and standing.undone is None:
        return None
    if standing.readable and key.kind == "chunk" and key.execution != standing.undone:
        return None
    return f"it is to delete the {key.kind} record of a sink, and was not written in a transaction"


def _is_one_off(claim: Claim, sink_key: str) -> bool:
    return claim.one_off and claim.run_id is not None and key_of(claim.sink_id, claim.run_id) == sink_key


def _read_head(record: _Found | None) -> Decision | None:
    is_of_repair = record is not None and record.is_of_repair
    head = _read(record, partial(log_records.parse_decision, is_of_repair=is_of_repair))
    return head if head is None or record is None else head._replace(written_ms=record.timestamp)


def _read(record: _Found | None, parse: Callable[[bytes], T]) -> T | None:
    """A record's meaning.

    Raises:
        SinkLogLostError: it cannot be read; the error says where it is.
    """
    if record is None:
        return None
    try:
        return parse(record.value or b"")
    except SinkLogLostError as error:
        raise SinkLogLostError(f"{error} (offset {record.offset} of the decision topic)") from error


def _refuse_shadow(records: _SinkRecords, key: Key) -> None:
    """Refuse a sink of which a record may have been replaced by one that does not count."""
    offset = records.shadows.get(key.encode())
    if offset is not None:
        raise SinkLogLostError(
            f"the record at offset {offset} of the decision topic is to be the {key.kind} record of sink key "
            f"{key.sink_key}, and was not written in a transaction. It does not count, but compaction may have removed "
            "the one that did, so that what was decided is not known. Nothing was written: find out who may write to "
            "the topic, restore it, or go on with another sinkId"
        )


def _refuse_headless(records: _SinkRecords, sink_key: str) -> None:
    """Refuse a sink that has decided, and whose decision is not there: a head is replaced, and never deleted alone."""
    for key, record in records.values.items():
        if _DONE in key or _CHUNK in key:
            raise SinkLogLostError(
                f"sink key {sink_key} has decided a batch (offset {record.offset} of the decision topic), but the "
                "decision itself was deleted, so that what was written is not known. Nothing was written: find out who "
                "may write to the topic, restore it, or go on with another sinkId"
            )


def _handles(records: _SinkRecords, sink_key: str, head: Decision) -> list[TaskHandle]:
    handles: list[TaskHandle] = []
    for number in range(head.chunks):
        chunk = records.get(Key("chunk", sink_key, head.execution, number))
        if chunk is None:
            raise SinkLogLostError(
                f"batch {head.batch_id} of query {head.query_id!r} was decided, but part {number + 1} of "
                f"{head.chunks} of its decision is missing from the log, so that it cannot be finished. Was the topic "
                "changed or its records deleted? Nothing was written"
            )
        handles += _read(chunk, log_records.parse_chunk) or ()
    for handle in handles:
        log_records.check_belongs(handle, sink_key)
    return handles
