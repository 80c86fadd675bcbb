# SPDX-License-Identifier: Apache-2.0
"""A whole producer whose brokers' answers are corrupted on their way.

Answers that cannot be read cost a connection and a retry, never a record: idempotence makes that exactly once. Answers
that can be read and are wrong may cost anything but a hang, a crash or memory, and each record has one outcome.
"""

from __future__ import annotations

import random
import struct

import pytest
from fuzz.corrupting import PARTITIONS, TOPIC, CorruptingNetwork, ThreadlessProducer
from fuzz.mutations import EFFORT, Mutation, corrupt, mutations
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import KafkaError
from penstock.types import RecordMetadata

quick = settings(max_examples=40 * EFFORT, deadline=None, suppress_health_check=[HealthCheck.too_slow])
RECORDS = 60

protocols = pytest.mark.parametrize("level", [1, 2], ids=["v1", "v2"])


def unreadable(frame: bytes, rng: random.Random) -> bytes:
    """An answer that no reader can take for one."""
    correlation_id, body = frame[4:8], frame[8:]
    choice = rng.randrange(4)
    if choice == 0:
        body = body[: rng.randrange(len(body))] if body else b"\0"
    elif choice == 1:
        body += rng.randbytes(rng.randint(1, 20))
    elif choice == 2:
        correlation_id = bytes(byte ^ 0x55 for byte in correlation_id)
    else:
        return struct.pack(">i", rng.choice((-1, 0, 3, 2**31 - 1))) + frame[4:]
    return struct.pack(">i", 4 + len(body)) + correlation_id + body


def send_all(producer: ThreadlessProducer, mark: str) -> tuple[list[KafkaError | None], int]:
    """Send to all partitions; the outcomes as they were told, and how many records were accepted."""
    told: list[KafkaError | None] = []
    accepted = 0

    def on_delivery(metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        told.append(error)
        if error is None and metadata is not None:
            producer.offsets.add((metadata.partition, metadata.offset))

    for number in range(RECORDS):
        try:
            producer.send(b"%s %d" % (mark.encode(), number), number % PARTITIONS, on_delivery)
        except KafkaError:
            continue
        accepted += 1
    producer.run_until(lambda: len(told) == accepted, 400)
    return told, accepted


def read_back(around: CorruptingNetwork) -> list[list[bytes | None]]:
    return [[r.value for r in around.cluster.records(TOPIC, number)] for number in range(PARTITIONS)]


def as_sent(*marks: str) -> list[list[bytes]]:
    return [
        [
            b"%s %d" % (mark.encode(), n)
            for mark in marks
            for n in range(RECORDS)
            if n % PARTITIONS == partition
        ]
        for partition in range(PARTITIONS)
    ]


@quick
@given(seed=st.integers(0, 2**32), share=st.sampled_from((0.1, 0.3, 0.6)), in_flight=st.integers(1, 5))
def test_answers_that_cannot_be_read_cost_no_record(seed: int, share: float, in_flight: int) -> None:
    around = CorruptingNetwork()
    rng = random.Random(seed)
    around.corrupt = lambda frame: unreadable(frame, rng) if rng.random() < share else frame
    around.drops_request = lambda: rng.random() < share / 2
    producer = ThreadlessProducer(
        around,
        max_in_flight_requests_per_connection=in_flight,
        batch_size=200,
        delivery_timeout_ms=10_000_000,
    )
    told, accepted = send_all(producer, "a")
    around.corrupt, around.drops_request = bytes, lambda: False
    producer.run_until(lambda: len(told) == accepted, 400)
    assert told == [None] * RECORDS
    assert read_back(around) == as_sent("a")
    assert producer.offsets == {
        (number, record.offset)
        for number in range(PARTITIONS)
        for record in around.cluster.records(TOPIC, number)
    }
    assert producer.memory_is_back
    producer.close()


class Transactions:
    """Runs transactions one after the other; a producer that says that it cannot go on is replaced, as its text asks.

    Attributes:
        committed: those whose commit was told.
        doubtful: those whose commit was asked for, and not told.
        reasons: what the errors said.
    """

    def __init__(self, around: CorruptingNetwork) -> None:
        self.committed: list[str] = []
        self.doubtful: list[str] = []
        self.reasons: list[str] = []
        self._around = around
        self._producer: ThreadlessProducer | None = None

    def run(self, mark: str, *, commit: bool) -> None:
        try:
            producer = self._ready_producer()
            manager = producer.parts.transactions
            assert manager is not None
            manager.begin()
            told, accepted = send_all(producer, mark)
            assert len(told) == accepted
            if commit and told == [None] * RECORDS:
                self.doubtful.append(mark)
            producer.settle(manager.commit() if commit else manager.abort(), 4000)
        except KafkaError as error:
            self.reasons.append(f"{error} {error.__cause__}")
            self.close()
            return
        if commit:
            self.doubtful.remove(mark)
            self.committed.append(mark)

    def _ready_producer(self) -> ThreadlessProducer:
        if self._producer is None:
            self._producer = ThreadlessProducer(
                self._around, transactional_id="x", batch_size=200, delivery_timeout_ms=10_000_000
            )
            assert self._producer.parts.transactions is not None
            self._producer.settle(self._producer.parts.transactions.initialize(), 4000)
        return self._producer

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None


@protocols
@quick
@given(seed=st.integers(0, 2**32), share=st.sampled_from((0.02, 0.1, 0.3)))
def test_transactions_are_whole_or_nothing_when_answers_cannot_be_read(
    level: int, seed: int, share: float
) -> None:
    around = CorruptingNetwork(features={"transaction.version": level})
    rng = random.Random(seed)
    around.corrupt = lambda frame: unreadable(frame, rng) if rng.random() < share else frame
    around.drops_request = lambda: rng.random() < share / 2
    transactions = Transactions(around)
    for mark in ("one", "two", "three"):
        transactions.run(mark, commit=mark != "two")
    around.corrupt, around.drops_request = bytes, lambda: False
    transactions.close()  # the next producer takes the id, which ends what is open
    transactions.run("last", commit=True)
    assert "last" in transactions.committed
    assert all("sent data that cannot be read" in reason for reason in transactions.reasons)
    seen = read_back(around)
    first_words = {value.split()[0].decode() for partition in seen for value in partition if value}
    assert first_words >= set(transactions.committed)
    assert first_words - set(transactions.committed) <= set(transactions.doubtful)
    assert seen == as_sent(*(mark for mark in ("one", "three", "last") if mark in first_words))
    transactions.close()


@quick
@given(
    seed=st.integers(0, 2**32),
    changes=st.lists(mutations, min_size=1, max_size=5),
    transactional=st.booleans(),
    share=st.sampled_from((0.1, 0.5, 1.0)),
)
def test_wrong_answers_never_hang_the_producer(
    seed: int, changes: list[list[Mutation]], transactional: bool, share: float
) -> None:
    around = CorruptingNetwork()
    rng = random.Random(seed)

    def corrupt_readably(frame: bytes) -> bytes:
        if rng.random() >= share:
            return frame
        body = corrupt(frame[8:], rng.choice(changes))
        return struct.pack(">i", 4 + len(body)) + frame[4:8] + body

    around.corrupt = corrupt_readably
    options = {"transactional_id": "x"} if transactional else {}
    producer = ThreadlessProducer(
        around, batch_size=200, max_block_ms=5000, delivery_timeout_ms=20_000, **options
    )
    manager = producer.parts.transactions
    try:
        if manager is not None:
            producer.settle(manager.initialize())
            manager.begin()
    except KafkaError:
        pass  # it may well fail; what follows must then fail too, and not hang
    told, accepted = send_all(producer, "a")
    assert len(told) == accepted
    around.corrupt = bytes
    # A request that a corrupt answer has throttled, or whose answer never came, gives its memory back when it is given
    # up.
    assert producer.run_until(lambda: producer.memory_is_back, 400)
    producer.close()
