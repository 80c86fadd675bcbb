# SPDX-License-Identifier: Apache-2.0
"""Who calls a producer as another client's is told what to call here."""

from __future__ import annotations

import inspect
from typing import Any
from unittest import mock

import pytest

from penstock import AsyncProducer, Producer
from penstock._other_clients import ASYNC, BLOCKING, names_of_other_clients
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
        ("purge", "close(timeout=0)"),
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
