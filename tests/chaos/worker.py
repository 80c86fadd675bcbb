# SPDX-License-Identifier: Apache-2.0
"""A producer in a process of its own. Run as a script with one argument: its `WorkerPlan` as JSON.

Sends at a steady rate, and makes up for what a stall has cost, until "stop" comes on standard input; then settles what
is open and leaves with 0. When the input ends without it, the one who started this process is gone, and so it goes too.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from chaos.journal import KnownState, SentNote, TransactionHistory, TransactionJournal
from penstock import Producer
from penstock.errors import KafkaError, KafkaTimeoutError

VALUE_BYTES = 100
FLUSH_SECONDS = 150.0
_NO_OFFSET = -1
_MOST_AT_ONCE = 500


@dataclass(frozen=True)
class WorkerPlan:
    """What one process is to do.

    Attributes:
        name: client id, transactional id and the beginning of each record.
        rate: records per second.
        journal: where it notes what became of them.
        compression: of its batches.
        security: dotted options by which it connects.
    """

    name: str
    transactional: bool
    servers: str
    topic: str
    partitions: int
    rate: float
    journal: str
    compression: str = "none"
    security: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def options(self) -> dict[str, Any]:
        """Return the options of the producer."""
        options: dict[str, Any] = {
            **{name.replace(".", "_"): value for name, value in self.security.items()},
            "bootstrap_servers": self.servers,
            "client_id": self.name,
            "compression_type": self.compression,
            "acks": "all",
            "max_in_flight_requests_per_connection": 5,
            "linger_ms": 5,
            "request_timeout_ms": 5000,
            "delivery_timeout_ms": 120_000,
            "metadata_max_age_ms": 10_000,
            # A killed broker comes back within seconds.
            "reconnect_backoff_max_ms": 500,
        }
        if self.transactional:
            options |= {
                "transactional_id": self.name,
                "transaction_timeout_ms": 60_000,
                "max_block_ms": 20_000,
            }
        else:
            options |= {"max_block_ms": 120_000}
        return options


class Pace:
    """Says how many records are due; one that was late is made up for."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._started = time.monotonic()
        self._given = 0

    def wait(self, stop: threading.Event) -> int:
        """The number of records to be sent now, at least one; waits until one is due, or for the stop."""
        while True:
            due = int((time.monotonic() - self._started) * self._rate) - self._given
            if due > 0 or stop.is_set():
                # Not all at once after a stall: the stop must be seen, and the journal kept.
                share = min(max(due, 1), _MOST_AT_ONCE)
                self._given += share
                return share
            stop.wait(0.01)


class PlainWorker:
    """Sends records with numbers to each partition; idempotent, five requests in flight."""

    def __init__(self, plan: WorkerPlan) -> None:
        self._plan = plan
        self._sent = [0] * plan.partitions
        # Written by the I/O thread.
        self._offsets: list[array[int]] = [array("q") for _ in range(plan.partitions)]
        self._failed: defaultdict[int, list[int]] = defaultdict(list)
        self._errors: Counter[str] = Counter()
        self._settled = 0
        self._settled_twice = 0
        self._settled_at = 0.0
        self._longest_stall = 0.0

    def run(self, stop: threading.Event) -> None:
        pace = Pace(self._plan.rate)
        self._settled_at = time.monotonic()
        with Producer(**self._plan.options()) as producer:
            turn = 0
            while not stop.is_set():
                for _ in range(pace.wait(stop)):
                    self._send(producer, turn % self._plan.partitions)
                    turn += 1
            producer.flush(FLUSH_SECONDS)
            renewed = producer.metrics()["producer-metrics"]["successful-reauthentication-total"]
        if self._plan.security and not renewed:
            raise AssertionError("no session was renewed")
        if self._settled != sum(self._sent):
            raise AssertionError(f"{sum(self._sent)} records were sent, {self._settled} have an outcome")
        if self._settled_twice:
            raise AssertionError(f"{self._settled_twice} records were settled more than once")
        note = SentNote(self._sent, self._failed, self._errors, self._longest_stall, self._offsets)
        note.write(Path(self._plan.journal))

    def _send(self, producer: Producer, partition: int) -> None:
        number = self._sent[partition]
        value = pad(b"%s %d @%d " % (self._plan.name.encode(), number, partition))
        if self._settled == sum(self._sent):
            self._settled_at = time.monotonic()  # nothing was waiting: no stall
        self._sent[partition] += 1
        producer.send(
            self._plan.topic,
            value,
            partition=partition,
            on_delivery=partial(self._on_delivery, partition, number),
        )

    def _on_delivery(self, partition: int, number: int, metadata: Any, error: KafkaError | None) -> None:
        now = time.monotonic()
        self._longest_stall = max(self._longest_stall, now - self._settled_at)
        self._settled_at = now
        offsets, failed = self._offsets[partition], self._failed[partition]
        if number < len(offsets):
            # What the former leader has not answered is settled after what the next one has.
            if offsets[number] != _NO_OFFSET or number in failed:
                self._settled_twice += 1
                return
            self._errors["a callback that came out of turn"] += 1
        offsets.extend([_NO_OFFSET] * (number + 1 - len(offsets)))
        self._settled += 1
        if error is None:
            offsets[number] = metadata.offset
        else:
            failed.append(number)
            self._errors[f"{type(error).__name__}: {error}"[:300]] += 1


class TransactionalWorker:
    """Runs transactions one after the other; one in seven is aborted on purpose."""

    def __init__(self, plan: WorkerPlan) -> None:
        self._plan = plan
        path = Path(plan.journal)
        self._number = TransactionHistory.read(path).last_number
        self._journal = TransactionJournal(path)
        self._rng = random.Random(f"{plan.name} {self._number}")
        self._pace = Pace(plan.rate)
        self._allowance = 0

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            with Producer(**self._plan.options()) as producer:
                until_answered(producer.init_transactions)
                try:
                    while not stop.is_set():
                        self._transaction(producer, stop)
                except KafkaError as error:
                    # The producer is of no use any more, and said so: the next one takes over its id.
                    self._trouble("a new producer is needed", error)
        # What the last producer left open, if anything, is ended by the producer that takes the id.
        with Producer(**self._plan.options()) as producer:
            until_answered(producer.init_transactions)

    def _transaction(self, producer: Producer, stop: threading.Event) -> None:
        self._number += 1
        number = self._number
        records = self._rng.randint(20, 400)
        wanted = KnownState.ABORTED if self._rng.random() < 1 / 7 else KnownState.COMMITTED
        started = time.monotonic()
        self._journal.note(number, KnownState.BEGUN, records)
        try:
            producer.begin_transaction()
            self._send(producer, number, records, stop)
            if wanted is KnownState.COMMITTED:
                self._journal.note(number, KnownState.COMMITTING)
                until_answered(producer.commit_transaction)
            else:
                until_answered(producer.abort_transaction)
        except KafkaError as error:
            self._trouble(f"transaction {number}", error)
            until_answered(producer.abort_transaction)
            wanted = KnownState.ABORTED
        self._journal.note(number, wanted, f"{time.monotonic() - started:.3f}")

    def _send(self, producer: Producer, number: int, records: int, stop: threading.Event) -> None:
        name = self._plan.name.encode()
        for index in range(records):
            if not self._allowance:
                self._allowance = self._pace.wait(stop)
            self._allowance -= 1
            value = pad(b"%s %d %d " % (name, number, index))
            producer.send(self._plan.topic, value, partition=index % self._plan.partitions)

    def _trouble(self, where: str, error: KafkaError) -> None:
        causes = []
        cause: BaseException | None = error
        while cause is not None:
            causes.append(f"{type(cause).__name__}: {cause}")
            cause = cause.__cause__
        self._journal.line(f"trouble {where}: {' <- '.join(causes)}".replace("\n", " "))


def until_answered(call: Callable[[], None]) -> None:
    """Make a transaction call until it has an outcome; a time-out is none, and the call may be repeated."""
    while True:
        try:
            return call()
        except KafkaTimeoutError:
            continue


def pad(text: bytes) -> bytes:
    """The record's value: its identity, and something to carry."""
    return text.ljust(VALUE_BYTES, b".")


def _listen(stop: threading.Event) -> None:
    for line in sys.stdin:
        if line.strip() == "stop":
            stop.set()
    if not stop.is_set():
        os._exit(3)


def main(argument: str) -> None:
    """Do what the plan says."""
    plan = WorkerPlan(**json.loads(argument))
    stop = threading.Event()
    threading.Thread(target=_listen, args=[stop], daemon=True).start()
    worker = TransactionalWorker(plan) if plan.transactional else PlainWorker(plan)
    worker.run(stop)


if __name__ == "__main__":
    main(sys.argv[1])
