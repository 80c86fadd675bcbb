# SPDX-License-Identifier: Apache-2.0
"""What Spark was told, and what readers of committed records can see of it.

The coordinator of the fake cluster is watched: the moment at which it decides the end of a transaction is the moment at
which the rows in it count, so a row that appears twice, or without a decision, is found when it happens.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.records.reader import Record
from penstock.sink import Execution
from penstock.testing.cluster import FakeCluster
from penstock.testing.transactions import Transaction

Key = tuple[str, int]  # query id and number of a batch
# Ends the names of a query, and of its rows, where they are those of a copy of its checkpoint. The sink sees neither.
COPIED = "@copy"


class RowRange(NamedTuple):
    """The rows that Spark has put into a batch, by their numbers in its source."""

    first: int
    count: int


@dataclass
class BatchEntry:
    """One batch of a query, whatever becomes of it.

    Attributes:
        plans: the rows that it was planned with, latest last; more than one where a checkpoint had lost the first.
        offered: commit() was called for it, by anybody.
        decided: the rows that were decided last.
        taken: the rows for which commit() returned, and Spark wrote that down.
        lost: a driver said, loudly, that some of it is lost.
        may_repeat: it may be written more than once, because the user wants it so.
    """

    query_id: str
    number: int
    plans: list[RowRange] = field(default_factory=list)
    offered: bool = False
    decided: RowRange | None = None
    taken: RowRange | None = None
    lost: bool = False
    may_repeat: bool = False

    def __str__(self) -> str:
        return f"batch {self.number} of {self.query_id}"

    def rows_of(self, planned: RowRange) -> list[bytes]:
        """The rows of one of its plans."""
        name, (first, count) = self.query_id.encode(), planned
        return [b"%s/%d/%d" % (name, self.number, index) for index in range(first, first + count)]


class PlannedBatch:
    """A batch, with the rows that one driver's checkpoint has for it."""

    def __init__(self, entry: BatchEntry, planned: RowRange) -> None:
        self.entry = entry
        self.planned = planned
        self.rows = entry.rows_of(planned)
        self.query_id = entry.query_id
        self.number = entry.number

    def __str__(self) -> str:
        return str(self.entry)


class PresentOwner(NamedTuple):
    """The last owner record of a sink."""

    generation: int
    driver: int


@dataclass
class Ledger:
    """All batches of a seed, and how often each row is committed.

    Args:
        cluster: where the rows are.
        log_topic: the one topic that holds no rows.
        violate: told what does not hold.
    """

    cluster: FakeCluster
    log_topic: str
    violate: Callable[[str], None]
    batches: dict[Key, BatchEntry] = field(default_factory=dict)
    committed: Counter[bytes] = field(default_factory=Counter)
    decided_rows: int = 0
    # By the id of a sink's coordinator: when its decisions were made, and which drivers had it since when.
    decided_at: dict[str, list[float]] = field(default_factory=dict)
    owners: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    # Likewise, with the execution: what commit() was called with.
    offers: dict[tuple[str, Execution], PlannedBatch] = field(default_factory=dict)
    present_owners: dict[str, PresentOwner] = field(default_factory=dict)
    # Likewise: the executions that were planned, and when.
    executions: dict[str, list[tuple[Execution, float]]] = field(default_factory=dict)

    def batch(self, query_id: str, number: int, planned: RowRange, *, may_repeat: bool) -> PlannedBatch:
        """The batch, with these rows."""
        entry = self.batches.setdefault(
            (query_id, number), BatchEntry(query_id, number, may_repeat=may_repeat)
        )
        if planned not in entry.plans:
            entry.plans.append(planned)
        return PlannedBatch(entry, planned)

    def try_last_plan(self, query_id: str, number: int) -> RowRange | None:
        """What the batch was planned with last, by anybody."""
        entry = self.batches.get((query_id, number))
        return None if entry is None else entry.plans[-1]

    def try_visible_plan(self, entry: BatchEntry) -> RowRange | None:
        """The plan of which all rows are committed, and none of another one."""
        seen = self._seen(entry)
        return next((plan for plan in entry.plans if seen and set(entry.rows_of(plan)) == seen), None)

    def _seen(self, entry: BatchEntry) -> set[bytes]:
        return {row for plan in entry.plans for row in entry.rows_of(plan) if self.committed[row]}

    def watch(self) -> None:
        """Look at every end of a transaction from now on."""
        coordinator = self.cluster.transactions
        prepare = coordinator._prepare

        def watched(txn: Transaction, *, commit: bool, now: float) -> None:
            if commit:
                for topic, record in self._records_in(txn):
                    if topic != self.log_topic:
                        self._on_committed(record.value or b"")
                    elif b'"decision"' in (record.key or b""):
                        self._on_decision(txn.transactional_id, record.value, now)
                    elif b'"owner"' in (record.key or b"") and record.value is not None:
                        value = json.loads(record.value)
                        self.present_owners[txn.transactional_id] = PresentOwner(
                            value["generation"], value["jvm"][1]
                        )
                        self._on_owner(txn.transactional_id, value["jvm"][1], now)
            prepare(txn, commit=commit, now=now)

        coordinator._prepare = watched  # type: ignore[method-assign]

    def _on_decision(self, coordinator: str, head: bytes | None, now: float) -> None:
        self.decided_at.setdefault(coordinator, []).append(now)
        if head is not None:
            offer = self.offers.get((coordinator, Execution(*json.loads(head)["execution"])))
            if offer is not None:
                offer.entry.decided = offer.planned

    def on_offered(self, coordinator: str, execution: Execution, batch: PlannedBatch) -> None:
        """commit() is called for a batch."""
        batch.entry.offered = True
        self.offers[coordinator, execution] = batch

    def _on_owner(self, coordinator: str, driver: int, now: float) -> None:
        owners = self.owners.setdefault(coordinator, [])
        if owners and owners[-1][0] == driver:
            return  # another planner process of the same driver
        if any(number == driver for number, _ in owners):
            self.violate(
                f"driver {driver} takes the sink over again; owners were {[each for each, _ in owners]}"
            )
        owners.append((driver, now))

    def present_owner(self, coordinator: str) -> PresentOwner | None:
        """Who has a sink now, by the id of its coordinator."""
        return self.present_owners.get(coordinator)

    def on_execution(self, coordinator: str, execution: Execution, begun_at: float, now: float) -> None:
        """A batch was planned: its execution has a number of its own, and a greater one than all that were there."""
        given = self.executions.setdefault(coordinator, [])
        if any(execution == other for other, _ in given):
            self.violate(f"the execution {execution} of {coordinator} is given a second time")
        newest = max((other for other, at in given if at < begun_at), default=execution)
        if newest > execution:
            self.violate(f"the execution {execution} of {coordinator} is planned after {newest}")
        given.append((execution, now))

    def last_decision_before(self, coordinator: str, driver: int) -> float:
        """When the last decision was made that a driver can know of: before another one took the sink over."""
        owners = [number for number, _ in self.owners[coordinator]]
        later = self.owners[coordinator][owners.index(driver) + 1 :] if driver in owners else []
        replaced_at = later[0][1] if later else math.inf
        return max(at for at in self.decided_at[coordinator] if at < replaced_at)

    def is_owner(self, coordinator: str, driver: int) -> bool:
        """Whether the sink belongs to the driver now."""
        owners = self.owners.get(coordinator)
        return bool(owners) and owners[-1][0] == driver

    def replaced(self, coordinator: str, driver: int, since: float) -> int | None:
        """The driver that had the sink already at that time, if it was another one."""
        owner, from_then_on = self.owners.get(coordinator, [(driver, since)])[-1]
        return owner if owner != driver and from_then_on < since else None

    def _records_in(self, txn: Transaction) -> Iterator[tuple[str, Record]]:
        for where in sorted(txn.partitions):
            partition = self.cluster.topics.partition(*where)
            if partition is None:
                continue
            entry = partition.log.producers.entries.get(txn.producer_id)
            if entry is None or entry.transaction_start is None:
                continue
            for batch in partition.log.batches:
                if batch.producer_id == txn.producer_id and batch.base_offset >= entry.transaction_start:
                    yield from ((where.topic, record) for record in batch.records())

    def _on_committed(self, row: bytes) -> None:
        self.committed[row] += 1
        self.decided_rows += 1
        batch = self.find(row)
        if not batch.offered:
            self.violate(f"{batch} was never given to commit(), and its row {row!r} is committed")
        if self.committed[row] > 1 and not batch.may_repeat:
            self.violate(f"row {row!r} is committed twice")

    def find(self, row: bytes) -> BatchEntry:
        query_id, number, _ = row.decode().rsplit("/", 2)
        return self.batches[query_id, int(number)]

    # ---- checks

    def check_whole(self, of: Callable[[BatchEntry], bool], when: str) -> None:
        """Of each batch all rows are committed, or none."""
        for batch in self.batches.values():
            if not of(batch) or batch.lost or batch.may_repeat:
                continue
            seen = self._seen(batch)
            if seen and self.try_visible_plan(batch) is None:
                plans = " or ".join(str(plan.count) for plan in batch.plans)
                self.violate(f"{when}, {len(seen)} of the {plans} rows of {batch} are visible")

    def check_end(self) -> None:
        """After everything has come to rest: by what a consumer reads."""
        visible: Counter[bytes] = Counter()
        for partition in self.cluster.topics.partitions():
            log = partition.log
            if log.last_stable_offset != log.log_end_offset:
                self.violate(
                    f"{partition.key} has a transaction that never ended, from {log.last_stable_offset}"
                )
            if partition.key.topic != self.log_topic:
                visible.update(record.value or b"" for record in log.records("read_committed"))
        if +visible != +self.committed:
            extra = (visible - self.committed) or (self.committed - visible)
            self.violate(f"readers do not see what the coordinator decided: {dict(extra)}")
        for batch in self.batches.values():
            if batch.taken is not None and not batch.lost:
                missing = [row for row in batch.rows_of(batch.taken) if not visible[row]]
                if missing:
                    self.violate(
                        f"{batch} was taken as committed, and {len(missing)} of its {batch.taken.count} rows are not "
                        f"there, for example {missing[0]!r}"
                    )
        self.check_whole(lambda _: True, "at the end")


def open_transactions(cluster: FakeCluster, prefix: str) -> list[Any]:
    """Transactions of the sinks that nobody has ended."""
    return [
        txn for txn in cluster.transactions
        if txn.transactional_id.startswith(prefix) and str(txn.state) in ("Ongoing", "PrepareCommit", "PrepareAbort")
    ]  # fmt: skip
