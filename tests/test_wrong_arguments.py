# SPDX-License-Identifier: Apache-2.0
"""Arguments of a wrong type: the same TypeError, whichever form of the modules runs and whichever producer is asked.

The suite runs once with the compiled modules and once without; the texts here are what makes both say the same.
"""

from __future__ import annotations

import asyncio
import decimal
import enum
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import AsyncProducer, Header, Producer, ProducerRecord, TransactionHandle, complete_transaction
from penstock.control import complete_all, create_topic, describe_transactions, list_transactions
from penstock.errors import ConfigError, TransactionAbortableError
from penstock.partitioners import RoundRobinPartitioner, StickyPartitioner
from penstock.testing import FakeKafka, MockAsyncProducer, MockProducer

SOON = 60.0
HANDLE = TransactionHandle(
    transactional_id="x", producer_id=1, producer_epoch=0, end_txn_version=5, topic="t", partition=0, offset=0,
    record_count=1, timeout_ms=1000,
)  # fmt: skip


class Text(bytes):
    """As numpy.bytes_ is one."""


class Topic(enum.StrEnum):
    ORDERS = "t"


class Place(enum.IntEnum):
    SECOND = 1


@pytest.fixture(scope="module")
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(topics={"t": 2}) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def real(kafka: FakeKafka) -> Iterator[Producer]:
    with Producer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=0) as producer:
        producer.send("t", b"first").result(
            SOON
        )  # the topic is known: the fast path would take what is right
        yield producer


@pytest.fixture(scope="module")
def transactional(kafka: FakeKafka) -> Iterator[Producer]:
    with Producer(bootstrap_servers=kafka.bootstrap_servers, transactional_id="wrong") as producer:
        producer.init_transactions()
        yield producer


@pytest.fixture(params=["real", "mock"])
def producer(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("real") if request.param == "real" else MockProducer(topics={"t": 2})


Call = Callable[[Any], object]
NO_NUMBERS = [1.5, True, decimal.Decimal(1), "1", b"1"]
NO_TIMES = ["1", True, decimal.Decimal(1), b"1"]


def name(value: object) -> str:
    return type(value).__name__


SENDING: list[tuple[Call, str]] = [
    *[
        (
            lambda p, v=value, k=key: p.send("t", b"v", **{k: v}),
            f"{key} must be an int or None, not {name(value)}",
        )
        for key in ("partition", "timestamp_ms")
        for value in NO_NUMBERS
    ],
    *[
        (lambda p, v=value: p.send(v, b"v"), f"topic must be a str, not {name(value)}")
        for value in (5, b"t", None, ["t"])
    ],
    (lambda p: p.send("t", b"v", headers=5), r"headers must be pairs \(name, value\) or a mapping, not int"),
    (
        lambda p: p.send("t", b"v", headers="ab"),
        r"headers must be pairs \(name, value\) or a mapping, not str",
    ),
    (lambda p: p.send("t", b"v", headers=[5]), r"a header is a pair \(name, value\), not 5"),
    (lambda p: p.send("t", b"v", headers=[(b"a", b"b")]), "a header's name must be a str, not bytes"),
    (
        lambda p: p.send("t", b"v", headers=[("a", "b")]),
        "the value of header 'a' must be bytes or None, not str",
    ),
    (lambda p: p.send("t", b"v", on_delivery=5), "on_delivery must be callable, not int"),
    (
        lambda p: p.send("t", b"v", timestamp=5),
        r"^send\(\) has no timestamp=; use timestamp_ms=, milliseconds",
    ),
    (lambda p: p.send("t", b"v", callback=print), r"^send\(\) has no callback=; use on_delivery="),
    (lambda p: p.send("t", b"v", b"k", [("h", b"1")]), r"^send\(\) takes topic, value and key by position"),
    (lambda p: p.send("t", b"v", b"k", 1), "write headers=, partition=, timestamp_ms= or on_delivery="),
    (lambda p: p.send_record("t"), "record must be a ProducerRecord, not str"),
    (lambda p: p.send_record(ProducerRecord("t"), 5), "on_delivery must be callable, not int"),
    (lambda p: p.partitions_for(5), "topic must be a str, not int"),
    (lambda p: p.send_many(5, [b"v"]), "topic must be a str, not int"),
    (lambda p: p.send_many("t", [b"v"], partition=1.5), "partition must be an int"),
    (lambda p: p.send_many("t", [b"v"], partition=True), "partition must be an int"),
    (
        lambda p: p.send_many("t", [b"v"], timestamps_ms=[1.5]),
        "timestamps_ms of row 0 must be an int or None, not float",
    ),
    (lambda p: p.send_many("t", [b"v"], headers=[5]), "headers must be pairs"),
    (lambda p: p.send_arrow(5, None), "topic must be a str, not int"),
]

WAITING: list[tuple[Call, str]] = [
    (
        lambda p, v=value, call=call: call(p, v),
        f"timeout must be a number of seconds or None, not {name(value)}",
    )
    for value in NO_TIMES
    for call in (
        lambda p, v: p.flush(v),
        lambda p, v: p.close(v),
        lambda p, v: p.send("t", b"v").result(v),
        lambda p, v: p.send("t", b"v").exception(v),
        lambda p, v: p.send_many("t", [b"v"]).result(v),
        lambda p, v: p.send_many("t", [b"v"]).exception(v),
    )
]

NAMED: list[tuple[Call, str]] = [
    (
        lambda p, v=value: p.client_instance_id(v),
        f"^timeout must be a number of seconds, not {name(value)}$",
    )
    for value in [None, *NO_TIMES]
]

FOLLOWING: list[tuple[Call, str]] = [
    (lambda p: p.send("t", b"v").add_done_callback(5), "fn must be callable, not int"),
    (lambda p: p.send_many("t", [b"v"]).add_done_callback(None), "fn must be callable, not NoneType"),
]

IN_TRANSACTIONS: list[tuple[Call, str]] = [
    *[
        (call, rf"^{text}\(\) takes no time-out; max\.block\.ms is how long it waits$")
        for text, call in (
            ("init_transactions", lambda p: p.init_transactions(0.5)),
            ("init_transactions", lambda p: p.init_transactions(10)),
            ("init_transactions", lambda p: p.init_transactions(timeout=10)),
            ("commit_transaction", lambda p: p.commit_transaction(10)),
            ("commit_transaction", lambda p: p.commit_transaction(timeout=10.0)),
            ("abort_transaction", lambda p: p.abort_transaction(10)),
            ("send_offsets_to_transaction", lambda p: p.send_offsets_to_transaction({}, "g", 10)),
        )
    ],
    (lambda p: p.init_transactions(b"x"), "transactional_id must be a str, not bytes"),
    (lambda p: p.commit_transaction(incomplete="no"), "incomplete must be True or False, not str"),
    (lambda p: p.detach_transaction(incomplete=1), "incomplete must be True or False, not int"),
    (lambda p: p.transaction(incomplete=1).__enter__(), "incomplete must be True or False, not int"),
]


@pytest.mark.parametrize("number", range(len(SENDING) + len(WAITING) + len(NAMED) + len(FOLLOWING)))
def test_a_wrong_type_is_a_type_error_with_the_same_text(producer, number):
    call, text = [*SENDING, *WAITING, *NAMED, *FOLLOWING][number]
    with pytest.raises(TypeError, match=text):
        call(producer)
    producer.send("t", b"after").result(SOON)  # whatever it was, the producer goes on


@pytest.mark.parametrize("number", range(len(IN_TRANSACTIONS)))
@pytest.mark.parametrize("kind", ["real", "mock"])
def test_transactions_refuse_a_wrong_type_before_anything_is_begun(request, kind, number):
    call, text = IN_TRANSACTIONS[number]
    producer: Any = MockProducer(transactional_id="wrong", topics={"t": 2})
    if kind == "real":
        producer = request.getfixturevalue("transactional")
    else:
        producer.init_transactions()
    with pytest.raises(TypeError, match=text):
        call(producer)
    with producer.transaction():
        producer.send("t", b"after")


def test_a_wrong_transactional_id_leaves_the_producer_usable(kafka):
    with Producer(bootstrap_servers=kafka.bootstrap_servers, transactional_id="poison") as producer:
        with pytest.raises(TypeError):
            producer.init_transactions(0.5)
        with pytest.raises(ValueError, match="cannot be sent"):
            producer.init_transactions("caf\udce9")
        with pytest.raises(ValueError, match="cannot be sent"):
            producer.init_transactions("x" * 40_000)
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", b"v")


def test_a_partition_below_0_is_to_be_left_out(producer):
    with pytest.raises(ValueError, match=r"^partition must not be negative: -1; leave it out where"):
        producer.send("t", b"v", partition=-1)
    with pytest.raises(ValueError, match=r"-1; None lets the producer choose$"):
        producer.send_many("t", [b"v"], partition=[-1])


def test_coroutines_refuse_the_arguments_of_other_clients(kafka):
    async def main(producer: Any) -> None:
        for call in (producer.send, producer.send_and_wait):
            with pytest.raises(TypeError, match=r"^send\(\) has no timestamp=; use timestamp_ms="):
                await call("t", b"v", timestamp=5)
        with pytest.raises(TypeError, match=r"^send\(\) takes topic, value and key by position"):
            producer.try_send("t", b"v", b"k", [("h", b"1")])
        for call in (producer.init_transactions, producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(TypeError, match=r"takes no time-out; max.block.ms is how long it waits"):
                await call(10)
        with pytest.raises(TypeError, match="takes no time-out"):
            await producer.send_offsets_to_transaction({}, "g", 10)
        with pytest.raises(TypeError, match=r"^timeout must be a number of seconds, not NoneType$"):
            await producer.client_instance_id(None)
        await producer.aclose()

    for made in (AsyncProducer(bootstrap_servers=kafka.bootstrap_servers), MockAsyncProducer()):
        asyncio.run(main(made))


def test_a_refused_argument_is_told_to_the_transaction(transactional):
    transactional.begin_transaction()
    with pytest.raises(TypeError):
        transactional.send("t", b"v", timestamp=5)
    with pytest.raises(TransactionAbortableError, match="use timestamp_ms="):
        transactional.commit_transaction()
    transactional.abort_transaction()


def test_nan_is_no_time():
    producer = MockProducer()
    for call in (producer.flush, producer.close, producer.send("t", b"v").result):
        with pytest.raises(ValueError, match="nan"):
            call(float("nan"))


NEGATIVE = "timeout must not be negative, and is -1; leave it out to wait until every record has its outcome"


def test_a_negative_time_is_refused_also_where_nothing_is_left_to_wait_for(real):
    for call in (real.flush, real.close, MockProducer().flush, MockProducer().close):
        with pytest.raises(ValueError, match=f"^{NEGATIVE}$"):
            call(-1)
    for producer in (real, MockProducer()):
        with pytest.raises(ValueError, match=r"^timeout must not be negative, and is -0\.5$"):
            producer.client_instance_id(-0.5)


@pytest.mark.parametrize("kind", [AsyncProducer, MockAsyncProducer])
def test_a_negative_time_of_an_awaited_call_is_refused(kind, kafka):
    async def main() -> None:
        async with kind(bootstrap_servers=kafka.bootstrap_servers) as producer:
            for call in (producer.flush, producer.aclose):
                with pytest.raises(ValueError, match=f"^{NEGATIVE}$"):
                    await call(-1)
            with pytest.raises(ValueError, match=r"^timeout must not be negative"):
                await producer.client_instance_id(-1)

    asyncio.run(main())


def test_control_functions_refuse_wrong_types(kafka):
    config = {"bootstrap.servers": kafka.bootstrap_servers}
    calls: list[Callable[[], object]] = [
        lambda: complete_transaction("handle", config=config),
        lambda: complete_transaction(HANDLE, "yes", config=config),
        lambda: complete_transaction(HANDLE, config=config, timeout="1"),
        lambda: complete_all([HANDLE], "yes", config=config),
        lambda: create_topic(5, config=config),
        lambda: create_topic("n", 1.5, config=config),
        lambda: create_topic("n", True, config=config),
        lambda: create_topic("n", 1, "1", config=config),
        lambda: create_topic("n", config=config, timeout="1"),
        lambda: describe_transactions([5], config),
        lambda: describe_transactions("x", config),
        lambda: describe_transactions(["x"], config, timeout="1"),
        lambda: list_transactions(config, states=5),
        lambda: list_transactions(config, states=[5]),
        lambda: list_transactions(config, pattern=5),
        lambda: list_transactions(config, timeout="1"),
    ]
    outcomes = []
    for number, call in enumerate(calls):
        try:
            outcomes.append((number, call()))
        except Exception as error:
            outcomes.append((number, error))
    assert [outcome for outcome in outcomes if not isinstance(outcome[1], TypeError)] == []


@pytest.mark.parametrize("make", [RoundRobinPartitioner, StickyPartitioner])
def test_partitioners_refuse_a_key_that_is_not_bytes(make):
    class Cluster:
        def partition_count(self, topic: str) -> int:
            return 3

        def available_partitions(self, topic: str) -> list[int]:
            return [0, 1, 2]

    partitioner = make()
    if make is RoundRobinPartitioner:
        assert partitioner.partition("t", None, None, None, b"v", Cluster()) in range(3)
        return
    with pytest.raises(TypeError):
        partitioner.partition("t", "k", "k", None, b"v", Cluster())


# ---------------------------------------------------------------------------------------------- subclasses


def subclasses() -> list[bytes]:
    found: list[bytes] = [Text(b"x")]
    try:
        import numpy
    except ModuleNotFoundError:
        return found
    return [*found, numpy.bytes_(b"x")]


@pytest.mark.parametrize("data", subclasses(), ids=name)
@pytest.mark.parametrize("part", ["value", "key", "header", "a Header"])
@pytest.mark.parametrize("many", [False, True], ids=["send", "send_many"])
def test_subclasses_of_bytes_are_bytes(producer, data, part, many):
    value, key, headers = b"v", b"k", [("h", b"h")]
    if part == "value":
        value = data
    elif part == "key":
        key = data
    else:
        headers = [("h", data)] if part == "header" else [Header("h", data)]
    if many:
        assert producer.send_many("t", [value], keys=[key], headers=[headers]).result(SOON).records == 1
    else:
        assert producer.send("t", value, key, headers=headers).result(SOON).serialized_key_size == 1
        record = ProducerRecord("t", value, key, headers=tuple(headers))
        assert producer.send_record(record).result(SOON).serialized_value_size == 1


def test_what_arrives_of_a_subclass_is_its_bytes(kafka, real):
    metadata = real.send("t", Text(b"value"), Text(b"key"), headers=[("h", Text(b"header"))]).result(SOON)
    (record,) = (
        record for record in kafka.records("t", metadata.partition) if record.offset == metadata.offset
    )
    assert (record.key, record.value, record.headers[0].value) == (b"key", b"value", b"header")


def test_members_of_enumerations_are_their_values(producer):
    metadata = producer.send(Topic.ORDERS, b"v", partition=Place.SECOND, timestamp_ms=Place.SECOND).result(
        SOON
    )
    assert (type(metadata.topic), metadata.partition, metadata.timestamp) == (str, 1, 1)
    assert producer.send_many(Topic.ORDERS, [b"v"]).result(SOON).records == 1


# ---------------------------------------------------------------------------------------------- names in requests


@pytest.mark.parametrize("option", ["client_id", "transactional_id"])
@pytest.mark.parametrize("text", ["x" * 40_000, "caf\udce9"], ids=["too long", "not UTF-8"])
def test_names_that_no_request_can_carry_are_refused_by_the_configuration(kafka, option, text):
    with pytest.raises(ConfigError, match="32767 bytes of UTF-8") as caught:
        Producer(bootstrap_servers=kafka.bootstrap_servers, **{option: text})
    assert caught.value.option == option.replace("_", ".")
    if option == "client_id":
        with pytest.raises(ConfigError, match="32767 bytes of UTF-8"):
            list_transactions({"bootstrap.servers": kafka.bootstrap_servers, "client.id": text})
