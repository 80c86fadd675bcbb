# SPDX-License-Identifier: Apache-2.0
"""The transaction calls of the real Producer, with its thread, against the fake cluster on TCP."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from fix_patience import SOON, is_waiting, silent, wait_until

from penstock import Producer, complete_transaction
from penstock.config.config import ProducerConfig
from penstock.errors import (
    ConfigError,
    IllegalStateError,
    InvalidRecordError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionAbortedError,
)
from penstock.producer._interceptors_cy import Interceptor
from penstock.protocol.messages import END_TXN, FIND_COORDINATOR, INIT_PRODUCER_ID, PRODUCE, TXN_OFFSET_COMMIT
from penstock.protocol.schema import ApiSchema
from penstock.serializers import StringSerializer
from penstock.testing import FakeKafka, Fault
from penstock.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

Make = Callable[..., Producer]
CALLS: dict[str, Callable[[Producer], object]] = {
    "init_transactions": lambda producer: producer.init_transactions(),
    "begin_transaction": lambda producer: producer.begin_transaction(),
    "send_offsets_to_transaction": lambda producer: producer.send_offsets_to_transaction({("t", 0): 1}, "g"),
    "commit_transaction": lambda producer: producer.commit_transaction(),
    "abort_transaction": lambda producer: producer.abort_transaction(),
    "detach_transaction": lambda producer: producer.detach_transaction(),
    "transaction": lambda producer: producer.transaction().__enter__(),
}
BLOCKING = [name for name in CALLS if name not in ("begin_transaction", "transaction")]


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def kafka(request: pytest.FixtureRequest) -> Iterator[FakeKafka]:
    with FakeKafka(topics={"t": 2}, features={"transaction.version": request.param}) as kafka:
        yield kafka


@pytest.fixture
def make(kafka: FakeKafka) -> Iterator[Make]:
    made = []

    def make(initialized: bool = True, **options: object) -> Producer:
        options = {"transactional_id": "x", "linger_ms": 0, "retry_backoff_ms": 10} | options
        made.append(Producer(bootstrap_servers=kafka.bootstrap_servers, **options))
        if initialized:
            made[-1].init_transactions()
        return made[-1]

    yield make
    for producer in made:
        producer.close(0)


def values(kafka: FakeKafka, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in kafka.records("t", partition)]


def asked(kafka: FakeKafka, api: ApiSchema) -> int:
    with kafka.locked() as cluster:
        return sum(request.api is api for request in cluster.received)


def refuse_next_record(kafka: FakeKafka) -> None:
    kafka.add_fault(Fault(api=PRODUCE, error=87))


# ---------------------------------------------------------------------------------------------- the options


def test_two_phase_commit_is_refused_with_and_without_a_time_out():
    """Requirement 3."""
    options = {"bootstrap_servers": "localhost:9092", "transactional_id": "x"}
    for more in ({}, {"transaction_timeout_ms": 1000}):
        with pytest.raises(ConfigError, match="two-phase commit"):
            ProducerConfig.from_user(None, options | {"transaction_two_phase_commit_enable": True} | more)
    assert (
        ProducerConfig.from_user(None, options | {"transaction_timeout_ms": 1000}).transaction_timeout_ms
        == 1000
    )


def test_an_initialization_whose_first_answer_was_lost_is_in_doubt_until_the_next_one(
    make: Make, kafka: FakeKafka
):
    producer = make(initialized=False)
    assert not producer.initialization_in_doubt
    kafka.add_fault(Fault(api=INIT_PRODUCER_ID, cut="after"))
    producer.init_transactions()
    assert producer.initialization_in_doubt
    producer.begin_transaction()
    producer.detach_transaction()
    producer.init_transactions("y")
    assert not producer.initialization_in_doubt


def test_a_producer_without_transactions_is_never_in_doubt(make: Make):
    assert make(initialized=False, transactional_id=None).initialization_in_doubt is False


@pytest.mark.parametrize("call", CALLS)
def test_every_call_needs_a_transactional_id(make: Make, call: str):
    producer = make(initialized=False, transactional_id=None)
    with pytest.raises(IllegalStateError, match=rf"({call}|begin_transaction)\(\) needs a transactional\.id"):
        CALLS[call](producer)


@pytest.mark.parametrize("call", CALLS)
def test_every_call_is_refused_when_the_producer_is_closed(make: Make, call: str):
    producer = make()
    producer.close()
    with pytest.raises(ProducerClosedError):
        CALLS[call](producer)


def test_an_empty_id_is_refused(make: Make):
    with pytest.raises(ValueError, match="transactional_id"):
        make(initialized=False).init_transactions("")


# ----------------------------------------------------------------------------------------------- the block


def test_the_block_commits(kafka: FakeKafka, make: Make):
    producer = make()
    with producer.transaction():
        delivery = producer.send("t", b"a", partition=0)
        assert values(kafka) == []
    assert delivery.done()
    assert values(kafka) == [b"a"]


def test_a_block_that_raises_is_aborted_and_raises_on(kafka: FakeKafka, make: Make):
    producer = make()

    def fail() -> None:
        with producer.transaction():
            producer.send("t", b"a", partition=0).result(60)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with producer.transaction():
        producer.send("t", b"b", partition=0)
    assert values(kafka) == [b"b"]


def test_a_block_with_a_record_that_fails_is_aborted_and_tells_why(kafka: FakeKafka, make: Make):
    producer = make(linger_ms=60_000)  # the record leaves with the commit, and fails while that waits
    refuse_next_record(kafka)
    with pytest.raises(InvalidRecordError), producer.transaction():
        producer.send("t", b"a", partition=0)
    with producer.transaction():
        producer.send("t", b"b", partition=0)
    assert values(kafka) == [b"b"]


def test_a_block_with_a_record_that_has_failed_before_its_end_is_aborted_and_tells_why(
    kafka: FakeKafka, make: Make
):
    producer = make()
    refuse_next_record(kafka)
    with pytest.raises(TransactionAbortableError) as caught, producer.transaction():
        producer.send("t", b"a", partition=0).exception(60)
    assert isinstance(caught.value.__cause__, InvalidRecordError)
    with producer.transaction():
        producer.send("t", b"b", partition=0)
    assert values(kafka) == [b"b"]


@pytest.mark.slow
def test_a_block_whose_commit_has_no_answer_is_not_aborted(kafka: FakeKafka, make: Make):
    producer = make()

    def block() -> None:
        with producer.transaction():
            producer.send("t", b"a", partition=0).result(60)
            silence.enter_context(silent(kafka))
            producer._core.max_block = 0.1

    with contextlib.ExitStack() as silence, pytest.raises(KafkaTimeoutError):
        block()
    finish(producer.commit_transaction)
    assert values(kafka) == [b"a"]


def test_a_block_that_was_fenced_raises_that(kafka: FakeKafka, make: Make):
    older, newer = make(), make()
    newer.begin_transaction()
    with (
        pytest.raises(ProducerFencedError, match=r"the transactional id 'x'.*Close this producer") as caught,
        older.transaction(),
    ):
        older.send("t", b"a", partition=0)
    assert caught.value.fatal
    with pytest.raises(ProducerFencedError):
        older.abort_transaction()
    for call in ("begin_transaction", "commit_transaction", "init_transactions"):
        with pytest.raises(ProducerFencedError):
            CALLS[call](older)
    with pytest.raises(ProducerFencedError):
        older.send("t", b"b")
    newer.send("t", b"c", partition=0)
    newer.commit_transaction()
    assert values(kafka) == [b"c"]


@pytest.mark.parametrize("release", ["2.4", "3.9", "4.3"])
@pytest.mark.parametrize("look", [False, True], ids=["commit finds out", "the block looks"])
def test_a_fence_is_named_wherever_it_shows_first(release: str, look: bool):
    """The broker says that an epoch is old, the coordinator why: the block raises the reason."""
    with FakeKafka(topics={"t": 1}, release=release) as kafka:
        options = {"transactional_id": "x", "linger_ms": 0, "retry_backoff_ms": 10}
        with (
            Producer(bootstrap_servers=kafka.bootstrap_servers, **options) as older,
            Producer(bootstrap_servers=kafka.bootstrap_servers, **options) as newer,
        ):
            older.init_transactions()
            with older.transaction():
                older.send("t", b"a", partition=0)

            def work() -> None:
                older.send("t", b"b", partition=0).result(60)
                newer.init_transactions()
                delivery = older.send("t", b"c", partition=0)
                if look:
                    delivery.result(60)

            with pytest.raises(ProducerFencedError, match="'x'"), older.transaction():
                work()
        assert values(kafka) == [b"a"]


def test_an_error_of_the_users_own_is_not_replaced_by_a_fence(kafka: FakeKafka, make: Make):
    older = make()

    def work() -> None:
        older.send("t", b"a", partition=0).result(60)
        make()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught, older.transaction():
        work()
    assert "taken over" in caught.value.__notes__[0]


# ------------------------------------------------------------------------------------------ time, threads


def finish(call: Callable[[], object]) -> None:
    """Make a call until it has its answer, as a caller does whose time was too short."""
    deadline = time.monotonic() + SOON
    while time.monotonic() < deadline:
        try:
            call()
        except KafkaTimeoutError:
            continue
        return
    raise AssertionError("no answer")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("api", "call", "other"),
    [
        (INIT_PRODUCER_ID, "init_transactions", "begin_transaction"),
        (TXN_OFFSET_COMMIT, "send_offsets_to_transaction", "commit_transaction"),
        (END_TXN, "commit_transaction", "abort_transaction"),
        (END_TXN, "abort_transaction", "commit_transaction"),
    ],
)
def test_after_a_time_out_the_same_call_is_made_again(kafka: FakeKafka, make: Make, api, call, other):
    """Requirement 71."""
    producer = make(initialized=False)
    if api is not INIT_PRODUCER_ID:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"a", partition=0).result(60)
    producer._core.max_block = 0.1
    with silent(kafka):
        with pytest.raises(KafkaTimeoutError, match=rf"call {call}\(\) again"):
            CALLS[call](producer)
        with pytest.raises(IllegalStateError, match=rf"{call}\(\) is not known"):
            CALLS[other](producer)
    finish(lambda: CALLS[call](producer))
    assert asked(kafka, api) == 1


@pytest.mark.slow
def test_two_threads_may_commit_the_same_transaction(kafka: FakeKafka, make: Make):
    """Requirement 71."""
    producer = make()
    producer.begin_transaction()
    producer.send("t", b"a", partition=0)
    outcomes: list[BaseException | None] = []

    def commit() -> None:
        try:
            producer.commit_transaction()
            outcomes.append(None)
        except BaseException as error:
            outcomes.append(error)

    threads = [threading.Thread(target=commit) for _ in range(2)]
    with silent(kafka):
        for thread in threads:
            thread.start()
        wait_until(lambda: all(is_waiting(thread) for thread in threads))
    for thread in threads:
        thread.join(60)
    assert outcomes == [None, None]
    assert asked(kafka, END_TXN) == 1
    assert values(kafka) == [b"a"]


@pytest.mark.parametrize("call", BLOCKING)
def test_a_callback_must_not_wait_and_begins_nothing(kafka: FakeKafka, make: Make, call: str):
    producer = make()
    caught: list[BaseException] = []

    def on_delivery(metadata: object, error: object) -> None:
        try:
            CALLS[call](producer)
        except BaseException as refusal:
            caught.append(refusal)

    producer.begin_transaction()
    producer.send("t", b"a", partition=0, on_delivery=on_delivery).result(60)
    (refusal,) = caught
    assert isinstance(refusal, KafkaError)
    assert "callback" in str(refusal)
    producer.commit_transaction()  # the transaction is as open as before
    assert values(kafka) == [b"a"]


# ------------------------------------------------------------------------------------------------- records


class Watcher(Interceptor):
    """Notes what it sees."""

    def __init__(self) -> None:
        self.sent: list[object] = []
        self.outcomes: list[str] = []

    def on_send(self, record):
        self.sent.append(record.value)
        return record

    def on_acknowledgement(self, metadata, error, headers=()):
        self.outcomes.append(type(error).__name__)


def test_interceptors_and_serializers_work_inside_a_transaction(kafka: FakeKafka, make: Make):
    watcher = Watcher()
    producer = make(value_serializer=StringSerializer(), interceptors=[watcher], linger_ms=60_000)
    with producer.transaction():
        producer.send("t", "committed", partition=0)
    producer.begin_transaction()
    dropped = producer.send("t", "dropped", partition=0)
    producer.abort_transaction()
    assert isinstance(dropped.exception(0), TransactionAbortedError)
    with pytest.raises(IllegalStateError):
        producer.send("t", "refused", partition=0)
    assert watcher.sent == ["committed", "dropped", "refused"]
    assert watcher.outcomes == ["NoneType", "TransactionAbortedError", "IllegalStateError"]
    assert values(kafka) == [b"committed"]


def test_records_are_refused_outside_a_transaction(kafka: FakeKafka, make: Make):
    producer = make(initialized=False)
    for prepare in (lambda: None, producer.init_transactions):
        prepare()
        with pytest.raises(IllegalStateError, match="begin_transaction"):
            producer.send("t", b"a", partition=0)
    with producer.transaction():
        producer.send("t", b"b", partition=0)
    with pytest.raises(IllegalStateError, match="begin_transaction"):
        producer.send("t", b"c", partition=0)
    assert values(kafka) == [b"b"]


def test_the_fast_path_is_closed_after_an_error(kafka: FakeKafka, make: Make):
    producer = make()
    producer.begin_transaction()
    producer.send("t", b"a", partition=0).result(60)
    refuse_next_record(kafka)
    assert isinstance(producer.send("t", b"b", partition=0).exception(60), InvalidRecordError)
    with pytest.raises(KafkaError, match="abort_transaction"):
        producer.send("t", b"c", partition=0)
    producer.abort_transaction()


def test_a_flush_inside_a_transaction_ends_nothing(kafka: FakeKafka, make: Make):
    producer = make(linger_ms=60_000)
    producer.begin_transaction()
    delivery = producer.send("t", b"a", partition=0)
    producer.flush(60)
    assert delivery.done()
    assert values(kafka) == []
    producer.commit_transaction()
    assert values(kafka) == [b"a"]


# ------------------------------------------------------------------------------------------------- offsets


def test_offsets_become_visible_with_the_transaction(kafka: FakeKafka, make: Make):
    producer = make()
    for number, end in enumerate((producer.commit_transaction, producer.abort_transaction)):
        producer.begin_transaction()
        offsets = {TopicPartition("t", 0): number, ("t", 1): OffsetAndMetadata(10 + number, "note", 3)}
        producer.send_offsets_to_transaction(offsets, "g")
        end()
    with kafka.locked() as cluster:
        found = cluster.groups.offsets("g")
    assert found[TopicPartition("t", 0)].offset == 0
    assert found[TopicPartition("t", 1)] == (10, 3, "note")


def test_no_offsets_are_nothing_to_do(kafka: FakeKafka, make: Make):
    producer = make()
    producer.begin_transaction()
    producer.send_offsets_to_transaction({}, "g")
    assert asked(kafka, TXN_OFFSET_COMMIT) == 0


@pytest.mark.parametrize(
    ("offsets", "group", "error"),
    [
        ({("t", 0): -1}, "g", ValueError),
        ({("t", 0): 2**63}, "g", ValueError),
        ({("t", 0): "5"}, "g", TypeError),
        ({("t", "0"): 5}, "g", TypeError),
        ({"t": 5}, "g", TypeError),
        ({("t", 0): OffsetAndMetadata(5, 7)}, "g", TypeError),  # type: ignore[arg-type]
        ({("t", 0): 1}, "", ValueError),
        ({("t", 0): 1}, None, TypeError),
        ({}, None, TypeError),
        ({}, ConsumerGroupMetadata("g", 5, ""), ValueError),
    ],
)
def test_wrong_offsets_and_groups_are_refused(make: Make, offsets, group, error):
    producer = make()
    producer.begin_transaction()
    with pytest.raises(error):
        producer.send_offsets_to_transaction(offsets, group)
    producer.abort_transaction()


# -------------------------------------------------------------------------------------------------- closing


def test_closing_aborts_what_is_open(kafka: FakeKafka, make: Make):
    """Requirement 76."""
    with make() as producer:
        producer.begin_transaction()
        delivery = producer.send("t", b"a", partition=0)
    assert delivery.exception(0) is None
    assert values(kafka) == []
    with kafka.locked() as cluster:
        assert str(cluster.transactions.find("x").state) == "CompleteAbort"


@pytest.mark.parametrize("api", [FIND_COORDINATOR, INIT_PRODUCER_ID], ids=lambda api: api.name)
def test_a_forced_close_ends_a_wait_for_the_coordinator(kafka: FakeKafka, make: Make, api: ApiSchema):
    """Requirement 17."""
    kafka.add_fault(Fault(api=api, error=14, times=None))
    producer = make(initialized=False, max_block_ms=60_000)
    refused: list[BaseException] = []

    def initialize() -> None:
        try:
            producer.init_transactions()
        except BaseException as error:
            refused.append(error)

    thread = threading.Thread(target=initialize)
    thread.start()
    while not asked(kafka, api):
        assert thread.is_alive()
    producer.close(0)
    thread.join(60)
    assert not thread.is_alive()
    assert [type(error) for error in refused] == [ProducerClosedError]


# --------------------------------------------------------------------------------------------------- detach


def test_a_detached_transaction_is_ended_from_elsewhere(kafka: FakeKafka, make: Make):
    producer = make()
    config = {"bootstrap.servers": kafka.bootstrap_servers}
    handles = []
    for number in range(2):
        if number:
            producer.init_transactions(f"x-{number}")
        producer.begin_transaction()
        producer.send("t", b"%d" % number, partition=0)  # not waited for: the detach does
        handles.append(producer.detach_transaction())
        for call in ("begin_transaction", "commit_transaction", "abort_transaction"):
            with pytest.raises(IllegalStateError):
                CALLS[call](producer)
    assert values(kafka) == []
    complete_transaction(handles[1], commit=False, config=config)
    complete_transaction(handles[0], config=config)
    complete_transaction(handles[0], config=config)  # as often as it takes
    assert values(kafka) == [b"0"]
    assert [handle.transactional_id for handle in handles] == ["x", "x-1"]
    assert handles[0].record_count == 1


@pytest.mark.parametrize("release", ["0.11.0", "1.1", "2.1", "2.4", "2.8", "3.9"])
@pytest.mark.parametrize("commit", [True, False])
def test_a_detached_transaction_of_an_old_release_is_ended(release: str, commit: bool):
    with FakeKafka(topics={"t": 1}, release=release) as kafka:
        address = {"bootstrap.servers": kafka.bootstrap_servers}
        with Producer(address, transactional_id="x", linger_ms=0) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"a", partition=0)
            handle = producer.detach_transaction()
        for _ in range(2):
            assert complete_transaction(handle, commit, config=address).committed is commit
        assert values(kafka) == [b"a"] * commit
        with kafka.locked() as cluster:
            used = {request.version for request in cluster.received if request.api is END_TXN}
        assert (
            used == {handle.end_txn_version} == {{"0.11.0": 0, "1.1": 0, "2.1": 1, "2.4": 1}.get(release, 3)}
        )


@pytest.mark.parametrize("release", ["0.11.0", "2.4"])
def test_a_detached_transaction_of_an_old_release_is_aborted_by_the_next_owner_of_the_id(release: str):
    with FakeKafka(topics={"t": 1}, release=release) as kafka:
        address = {"bootstrap.servers": kafka.bootstrap_servers}
        with Producer(address, transactional_id="x", linger_ms=0, retry_backoff_ms=10) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"a", partition=0)
            handle = producer.detach_transaction()
            producer.init_transactions()
        with pytest.raises(TransactionAbortedError, match="fence"):
            complete_transaction(handle, config=address)


def test_a_transaction_with_a_record_that_failed_is_not_detached(kafka: FakeKafka, make: Make):
    producer = make()
    refuse_next_record(kafka)
    producer.begin_transaction()
    producer.send("t", b"a", partition=0)
    with pytest.raises(KafkaError, match="abort_transaction"):
        producer.detach_transaction()
    producer.abort_transaction()
