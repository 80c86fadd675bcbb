# SPDX-License-Identifier: Apache-2.0
"""Who writes the names of another client is told what to write here."""

from __future__ import annotations

import asyncio
import copy
import importlib
import inspect
import pickle
import pydoc
import re
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from operator import attrgetter
from typing import Any
from unittest import mock

import pytest

import penstock
from penstock import AsyncProducer, Producer, RecordMetadata
from penstock._other_clients import (
    ASYNC,
    BLOCKING,
    OF_ERROR_CLASSES,
    OF_ERRORS,
    OF_ERRORS_IN_METADATA,
    OF_MESSAGES_IN_ERRORS,
    OF_METADATA,
    OF_PACKAGES,
    names_of_other_clients,
)
from penstock.errors import BrokerError, DeliveryTimeoutError, KafkaError, TopicAuthorizationError
from penstock.testing import FakeKafka, MockAsyncProducer, MockProducer

KINDS: dict[type, Any] = {
    Producer: BLOCKING, MockProducer: BLOCKING, AsyncProducer: ASYNC, MockAsyncProducer: ASYNC,
}  # fmt: skip


@pytest.fixture(params=[MockProducer, MockAsyncProducer])
def producer(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("produce", "use send(topic, value, key, on_delivery=...)"),
        ("poll", "leave it out: nothing need be called for callbacks to run"),
        ("list_topics", "use partitions_for(topic)"),
        ("list_topics", "penstock.control.ControlClient(config).brokers(timeout=5)"),
        ("purge", "close(timeout=0)"),
        # Not partitions_for: it answers from memory once it knows the topic.
        ("bootstrap_connected", "use penstock.control.ControlClient(config).brokers(timeout=5)"),
        ("set_sasl_credentials", "write the password as ${file:...}: a changed file is read again"),
        ("begin", "use begin_transaction()"),
        ("start", "leave it out: the producer is ready when it is made"),
        ("stop", "close()"),
    ],
)
def test_a_call_of_another_client_is_answered(producer: Any, name: str, advice: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(producer, name)
    assert advice in str(caught.value)
    assert str(caught.value).startswith(f"{type(producer).__name__!r} has no {name!r}, which another")
    assert (caught.value.name, caught.value.obj) == (name, producer)


def test_each_kind_of_producer_names_its_own_way_to_close() -> None:
    with pytest.raises(AttributeError, match=r"use `await producer.aclose\(\)`"):
        MockAsyncProducer().close  # noqa: B018
    with pytest.raises(AttributeError, match=r"use close\(\)"):
        MockProducer().aclose  # noqa: B018


@pytest.mark.parametrize("kind", KINDS)
def test_every_name_of_the_table_is_told_and_is_no_attribute(kind: type) -> None:
    for name, advice in KINDS[kind].items():
        assert not hasattr(kind, name)
        assert advice
        assert "{" not in advice.replace("${file:...}", "")


@pytest.mark.parametrize("kind", KINDS)
def test_help_says_that_they_are_not_here(kind: type) -> None:
    shown = pydoc.render_doc(kind, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
    for name, advice in KINDS[kind].items():
        assert f" |  {name}\n |      Not here, but at another client's producer: {advice}." in shown


@pytest.mark.parametrize("kind", [DeliveryTimeoutError, TopicAuthorizationError])
def test_an_error_answers_for_the_methods_of_another_clients(kind: type[KafkaError]) -> None:
    error = kind("the text")
    for name in OF_ERRORS.keys() - vars(BrokerError).keys():
        assert not hasattr(error, name)
        assert name not in dir(error)
    with pytest.raises(AttributeError) as caught:
        error.txn_requires_abort()  # type: ignore[attr-defined]
    assert str(caught.value) == (
        f"{kind.__name__!r} has no 'txn_requires_abort', which another client's error has; abort after every "
        "KafkaError that is not `fatal`; but after KafkaTimeoutError or AuthenticationError of commit_transaction() "
        "call it again"
    )
    assert {"retriable", "fatal", "twin"} <= set(dir(error))
    assert str(pickle.loads(pickle.dumps(error))) == str(copy.copy(error)) == str(error)


def test_a_callback_in_the_order_of_another_client_is_told_the_order() -> None:
    swapped = r"; a callback is called with \(metadata, error\), in this order$"
    metadata, error = RecordMetadata("t", 0, 1, 2, 3, 4), DeliveryTimeoutError("late")
    for name in OF_ERRORS_IN_METADATA:
        with pytest.raises(
            AttributeError, match=f"has no '{name}', which another client's error has{swapped}"
        ):
            getattr(metadata, name)
    for name in OF_MESSAGES_IN_ERRORS:
        with pytest.raises(
            AttributeError, match=f"has no '{name}', which another client's message has{swapped}"
        ):
            getattr(error, name)


def test_only_errors_of_brokers_have_a_code() -> None:
    assert TopicAuthorizationError().code == 29
    assert "code" in dir(TopicAuthorizationError())
    with pytest.raises(AttributeError, match="only a BrokerError has a code"):
        DeliveryTimeoutError().code  # type: ignore[attr-defined]  # noqa: B018


def test_only_errors_of_brokers_have_a_name() -> None:
    assert TopicAuthorizationError().name == "TOPIC_AUTHORIZATION_FAILED"
    error = DeliveryTimeoutError("late")
    assert not hasattr(error, "name")
    with pytest.raises(AttributeError) as caught:
        error.name  # type: ignore[attr-defined]  # noqa: B018
    assert str(caught.value) == (
        "'DeliveryTimeoutError' has no 'name', which another client's error has; only a BrokerError has a name; of all "
        "others the class says what happened"
    )
    assert (caught.value.name, caught.value.obj) == ("name", error)
    with pytest.raises(AttributeError, match="no attribute 'anything'"):
        error.anything  # type: ignore[attr-defined]  # noqa: B018


def test_the_name_that_another_base_has_is_its_own() -> None:
    class Missing(KafkaError, ImportError):
        """As errors of other libraries that are ours, too."""

    assert Missing("no module").name is None  # as of an ImportError that was not told one


def test_metadata_answers_for_what_another_clients_message_has() -> None:
    metadata = RecordMetadata("t", 0, 1, 2, 3, 4)
    for name in OF_METADATA:
        assert not hasattr(metadata, name)
        assert name not in dir(metadata)
    with pytest.raises(AttributeError) as caught:
        metadata.key()  # type: ignore[attr-defined]
    assert str(caught.value) == (
        "'RecordMetadata' has no 'key', which another client's message has; bind what the callback needs: "
        "on_delivery=functools.partial(report, key)"
    )
    assert pickle.loads(pickle.dumps(metadata)) == metadata
    assert {"offset", "topic_partition"} <= set(dir(metadata))


def test_the_latency_of_another_clients_message_is_the_time_until_it_is_delivered() -> None:
    with pytest.raises(AttributeError, match=r"metrics\(\) has record-delivery-time-avg, for all records$"):
        RecordMetadata("t", 0, 1, 2, 3, 4).latency()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", OF_PACKAGES)
def test_the_package_answers_for_names_of_other_packages(name: str) -> None:
    assert not hasattr(penstock, name)
    assert name not in dir(penstock)
    with pytest.raises(AttributeError) as caught:
        getattr(penstock, name)
    assert str(caught.value) == f"module 'penstock' has no attribute {name!r}; {OF_PACKAGES[name]}"
    for path in re.findall(r"penstock\.(\w+(?:\.\w+)?)", OF_PACKAGES[name]):
        assert (
            importlib.import_module("penstock.control") if path == "control" else attrgetter(path)(penstock)
        )


@pytest.mark.parametrize("name", OF_ERROR_CLASSES)
def test_the_errors_answer_for_classes_of_other_clients(name: str) -> None:
    assert not hasattr(penstock.errors, name)
    with pytest.raises(AttributeError) as caught:
        getattr(penstock.errors, name)
    assert (
        str(caught.value) == f"module 'penstock.errors' has no attribute {name!r}; {OF_ERROR_CLASSES[name]}"
    )
    (here,) = re.findall(r"use penstock\.errors\.(\w+)", OF_ERROR_CLASSES[name])
    assert issubclass(getattr(penstock.errors, here), KafkaError)


def test_another_missing_name_of_the_errors_is_missed_as_ever() -> None:
    with pytest.raises(AttributeError, match=r"^module 'penstock\.errors' has no attribute 'KafkaErorr'$"):
        penstock.errors.KafkaErorr  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("send", ["send", "send_many"])
def test_what_send_returns_is_no_future_of_kafka_python(send: str) -> None:
    with FakeKafka(topics={"t": 1}) as kafka, Producer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        for sender in (producer, MockProducer()):
            sent = getattr(sender, send)("t", b"v" if send == "send" else [b"v"])
            with pytest.raises(AttributeError, match=r"use result\(timeout=\.\.\.\), in seconds") as caught:
                sent.get(timeout=10)
            text = f"{type(sent).__name__!r} has no 'get', which another client's future has; "
            assert str(caught.value).startswith(text)
            assert not hasattr(sent, "get")
            assert "get" not in dir(sent)
            assert sent.result(10)


def test_dir_and_hasattr_do_not_know_them(producer: Any) -> None:
    table = KINDS[type(producer)]
    assert not any(hasattr(producer, name) for name in table)
    assert set(table).isdisjoint(dir(producer))
    assert {"send", "flush", "history"} <= set(dir(producer))
    assert set(table).isdisjoint(name for name, _ in inspect.getmembers(producer))
    assert not hasattr(mock.Mock(spec=producer), "produce")


def test_a_subclass_may_have_one_of_the_names() -> None:
    class Mine(MockProducer):
        def poll(self) -> str:
            return "mine"

    mine = Mine()
    assert mine.poll() == "mine"
    assert "poll" in dir(mine)
    assert "produce" not in dir(mine)


def test_other_missing_names_are_missed_as_ever(producer: Any) -> None:
    with pytest.raises(AttributeError, match="object has no attribute 'sned'"):
        producer.sned  # noqa: B018


def test_a_name_that_a_producer_has_is_no_entry() -> None:
    with pytest.raises(TypeError, match="has 'poll' itself"):

        @names_of_other_clients({"poll": "leave it out"})
        class WithPoll:
            def poll(self) -> None: ...


# ---- what `with` and `async with` ask for


def test_with_in_place_of_async_with_is_told() -> None:
    producer: Any = MockAsyncProducer(transactional_id="t")
    told = "use `async with` in place of `with`"
    with pytest.raises((AttributeError, TypeError)) as caught, producer:
        pass
    python_tells = "Did you mean to use 'async with'?" in str(caught.value)  # since 3.14
    assert python_tells or str(caught.value) == f"'MockAsyncProducer' has no '__enter__'; {told}"


def test_async_with_in_place_of_with_is_told() -> None:
    async def main() -> None:
        producer: Any = MockProducer()
        async with producer:
            pass

    with pytest.raises((AttributeError, TypeError)) as caught:
        asyncio.run(main())
    python_tells = "Did you mean to use 'with'?" in str(caught.value)  # since 3.14
    assert python_tells or str(caught.value) == (
        "'MockProducer' has no '__aenter__'; use `with` in place of `async with`; or penstock.AsyncProducer, which "
        "has it"
    )


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Producer, "__aenter__"), (MockProducer, "__aenter__"), (AsyncProducer, "__enter__"),
        (MockAsyncProducer, "__enter__"),
    ],
)  # fmt: skip
def test_a_producer_passes_for_no_block_of_the_other_kind(kind: type, name: str) -> None:
    assert not hasattr(kind, name)
    other = AbstractAsyncContextManager if name == "__aenter__" else AbstractContextManager
    assert not issubclass(kind, other)
    shown = pydoc.render_doc(kind, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
    assert f" |  {name}\n |      Not here: use " in shown
