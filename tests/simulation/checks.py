# SPDX-License-Identifier: Apache-2.0
"""What must hold after every seed, and a few things that must hold all the time.

Each check yields sentences that say what is wrong; none is what is hoped for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from penstock import _locks
from penstock.producer.assembly import ProducerParts
from penstock.producer.batch._accumulator_cy import RecordAccumulator
from penstock.records.format import HEADER_SIZE
from penstock.testing.cluster import FakeCluster
from penstock.types import TopicPartition
from simulation.ledger import Entry, Ledger, Txn, TxnEnd, number_of
from simulation.plan import PLAIN, TRANSACTIONAL, Plan

Found = dict[int, list[tuple[TopicPartition, int]]]  # where each record is, by its number

# A record takes a little more or less room in one batch than in another: its deltas are written as varints.
_VARINT_SLACK = 12


# ------------------------------------------------------------------------------------------------ at all times


def held_locks() -> list[str]:
    """The locks of the package that this thread holds, which runs all threads in turn; a compiled one has no name."""
    return ["the producer"] if _locks.inside() else []


class OpenBatches:
    """Watches that no batch is opened behind one that is open and has room: the second look of the append.

    Compares what the queues look like after each step with what they looked like before it.
    """

    def __init__(self, accumulator: RecordAccumulator) -> None:
        self._accumulator = accumulator
        self._open: dict[Any, tuple[Any, int]] = {}  # by queue: its only batch, while open, and its size

    def look(self) -> str | None:
        """What is wrong after a step, if anything is."""
        before, self._open = self._open, {}
        problem = None
        for queue in self._accumulator._active:
            batches = queue.batches
            if len(batches) == 1:
                batch, full = queue.head()
                if not full:
                    self._open[queue] = (batch, batch.writer.raw_size)
            elif len(batches) == 2 and queue in before:
                batch, size = before[queue]
                if batch is batches[0] and batch.writer.raw_size == size and _would_fit(batch, batches[1]):
                    problem = f"a new batch was opened for {batch.topic_partition} behind one with room"
        return problem


def _would_fit(batch: Any, following: Any) -> bool:
    writer = batch.writer
    if batch.attempts or following.attempts or writer.sealed or following.writer.sealed:
        return False  # they were put back
    room = writer.limit - writer.raw_size
    first = following.writer.raw_size - HEADER_SIZE + _VARINT_SLACK
    return following.record_count == 1 and writer.ratio == 1.0 and first <= room


# ------------------------------------------------------------------------------------------------ at the end


def check_producer(parts: ProducerParts, open_transports: int) -> Iterator[str]:
    """A producer that was closed has given everything back."""
    pool = parts.accumulator.pool
    if pool.available() != pool.total:
        yield f"{pool.total - pool.available()} bytes of buffer.memory did not come back"
    if parts.accumulator.has_incomplete():
        yield f"{parts.accumulator.incomplete_records()} records have no outcome after close()"
    if parts.client.in_flight_count():
        yield f"{parts.client.in_flight_count()} requests are still in flight after close()"
    if open_transports:
        yield f"{open_transports} connections are still open after close()"
    for name in held_locks():
        yield f"the lock of {name} is held after close()"


def check_outcomes(ledger: Ledger) -> Iterator[str]:
    """Every accepted record has exactly one outcome, told once; a refused one has none."""
    for entry in ledger.entries:
        if not entry.accepted:
            if entry.calls:
                yield f"{entry} was refused ({entry.refused!r}), and its callback was called"
            elif entry.refused is None:
                yield f"{entry} was neither accepted nor refused"
            continue
        if entry.calls != 1:
            yield f"the callback of {entry} was called {entry.calls} times"
        delivery = entry.delivery
        if delivery is None or not delivery.done():
            yield f"the Delivery of {entry} is still open"
        elif entry.calls and (delivery.exception(0) is None) != entry.acknowledged:
            yield f"{entry}: the callback was told {entry.error!r}, the Delivery {delivery.exception(0)!r}"


def find_records(cluster: FakeCluster, ledger: Ledger, problems: list[str]) -> Found:
    """Where each record is in the logs, also those of aborted transactions."""
    found: Found = defaultdict(list)
    for partition in cluster.topics.partitions():
        for batch in partition.log.batches:
            if batch.is_control:
                continue
            records = list(batch.records())
            if batch.max_timestamp != max(record.timestamp for record in records):
                problems.append(
                    f"{partition.key} has a batch at {batch.base_offset} with a wrong largest timestamp"
                )
            for record in records:
                number = number_of(record.value or b"-1:")
                if not 0 <= number < len(ledger.entries) or ledger.entries[number].value != record.value:
                    problems.append(f"{partition.key} has a record at {record.offset} that nobody sent")
                    continue
                entry = ledger.entries[number]
                if (record.key, record.headers) != (entry.key, entry.headers):
                    problems.append(
                        f"{entry} is in the log with key {record.key!r} and headers {record.headers}"
                    )
                found[number].append((partition.key, record.offset))
    return found


def check_identities(plan: Plan, cluster: FakeCluster) -> Iterator[str]:
    """With idempotence, each batch has a producer id."""
    if plan.mode == PLAIN:
        return
    for partition in cluster.topics.partitions():
        for batch in partition.log.batches:
            if batch.producer_id < 0:
                yield f"{partition.key} has a batch at {batch.base_offset} without a producer id"


def check_log(plan: Plan, ledger: Ledger, found: Found, loses: bool) -> Iterator[str]:
    """Acknowledged records are in the log, once where that is promised; failed ones at most once, refused never."""
    once = plan.mode != PLAIN
    may_lose = loses and plan.acks == "1"
    for entry in ledger.entries:
        places = found.get(entry.number, [])
        if not entry.accepted:
            if places:
                yield f"{entry} was refused ({entry.refused!r}), and is in the log: {places}"
            continue
        if once and len(places) > 1:
            yield f"{entry} ({_told(entry)}) is in the log {len(places)} times: {places}"
        if not entry.acknowledged or plan.acks == "0":
            continue
        if not places and not may_lose:
            yield f"{entry} was acknowledged, and is not in the log"
        where = (TopicPartition(entry.topic, entry.partition), entry.offset)
        if places and entry.offset >= 0 and where not in places and not may_lose:
            yield f"{entry} was acknowledged at {where}, and is at {places}"


def check_places(ledger: Ledger, found: Found) -> Iterator[str]:
    """A record is where it was sent to, and those with the same key are in the same partition."""
    by_key: dict[tuple[str, bytes], tuple[int, Entry]] = {}
    for entry in ledger.entries:
        for place, _ in found.get(entry.number, []):
            if place.topic != entry.topic or entry.wanted not in (None, place.partition):
                yield f"{entry} was sent to {entry.topic}-{entry.wanted}, and is in {place}"
            elif entry.key is not None and entry.wanted is None:
                partition, first = by_key.setdefault((entry.topic, entry.key), (place.partition, entry))
                if partition != place.partition:
                    yield f"{entry} is in {place}, and {first}, with the same key, in partition {partition}"


def check_order(plan: Plan, ledger: Ledger, found: Found, late: bool, loses: bool) -> Iterator[str]:
    """In each partition the records of one sender are in the order in which it sent them.

    Args:
        late: requests of cut connections arrived late. Without sequence numbers one of a record that has failed comes
            behind what was sent after it; so does one of a record that was acknowledged with acks=1, and then lost.
        loses: records that were acknowledged with acks=1 may be lost.
    """
    if not plan.ordered or plan.acks == "0":
        return
    last: dict[tuple[int, TopicPartition], tuple[int, Entry]] = {}
    only_acknowledged = late and plan.mode == PLAIN
    may_be_lost = only_acknowledged and loses and plan.acks == "1"
    for entry in ledger.entries:
        if only_acknowledged and not entry.acknowledged:
            continue
        places = found.get(entry.number, [])
        if may_be_lost and (TopicPartition(entry.topic, entry.partition), entry.offset) not in places:
            continue
        for partition, offset in places[:1]:
            before = last.get((entry.sender, partition))
            if before is not None and before[0] > offset:
                yield f"{entry} is at {partition} {offset}, before {before[1]} which is at {before[0]}"
            last[entry.sender, partition] = (offset, entry)


def check_transactions(plan: Plan, cluster: FakeCluster, ledger: Ledger, found: Found) -> Iterator[str]:
    """Who reads what is committed sees whole transactions, or nothing of them."""
    if plan.mode != TRANSACTIONAL:
        return
    visible: set[int] = set()
    for partition in cluster.topics.partitions():
        log = partition.log
        if log.last_stable_offset != log.log_end_offset:
            yield f"{partition.key} has a transaction that never ended, from offset {log.last_stable_offset}"
        visible |= {number_of(record.value or b"-1:") for record in log.records("read_committed")}
    for txn in ledger.txns:
        yield from _check_transaction(txn, sum(entry.number in visible for entry in txn.entries))
    positions = cluster.groups.offsets(plan.group)
    told = next((position.offset for position in positions.values()), -1)
    possible = _possible_offsets(ledger)
    if told not in possible:
        yield f"the group is at {told}; by its transactions it can be at {sorted(possible)}"


def _possible_offsets(ledger: Ledger) -> set[int]:
    """Where the group can be: at the last transaction that was committed, or at one of unknown end or late commit."""
    last, in_doubt = {-1}, set()
    for txn in ledger.txns:
        if txn.offset < 0:
            continue
        if txn.end is TxnEnd.UNKNOWN or (txn.detached and txn.end is TxnEnd.COMMITTED):
            in_doubt.add(txn.offset)
        elif txn.end is TxnEnd.COMMITTED:
            last = {txn.offset}
    return last | in_doubt


def _check_transaction(txn: Txn, seen: int) -> Iterator[str]:
    count = len(txn.entries)
    told = f"transaction {txn.number} ({txn.end.value}): {seen} of its {count} records are visible"
    if (
        seen not in (0, count)
        or (txn.end is TxnEnd.COMMITTED and seen != count)
        or (txn.end in (TxnEnd.ABORTED, TxnEnd.OPEN) and seen)
    ):
        yield told
    if txn.end is TxnEnd.COMMITTED:
        failed = [entry for entry in txn.entries if not entry.acknowledged]
        if failed:
            yield f"transaction {txn.number} was committed although {failed[0]} failed: {failed[0].error!r}"


def _told(entry: Entry) -> str:
    return "acknowledged" if entry.acknowledged else f"failed: {entry.error!r}"


def describe_threads(threads: list[Any]) -> str:
    return ", ".join(f"{thread.name} waits for {thread.waits_for or 'nothing'}" for thread in threads)
