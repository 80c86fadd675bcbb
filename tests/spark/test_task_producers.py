# SPDX-License-Identifier: Apache-2.0
"""One producer for each process and configuration."""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Iterator

import pytest

from penstock.errors import BootstrapError, ConfigError
from penstock.spark import task as task_module
from penstock.spark.task import forget_producer, shared_producer
from penstock.testing import FakeKafka


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    monkeypatch.setattr(task_module, "_producers", {})
    with FakeKafka(topics={"orders": 1}) as kafka:
        yield {"bootstrap.servers": kafka.bootstrap_servers}
        for producer in list(task_module._producers.values()):
            producer.close(1)


def test_a_configuration_has_one_producer(config: dict[str, str]) -> None:
    producer = shared_producer(config)
    assert shared_producer(dict(reversed(config.items()))) is producer
    assert shared_producer(config | {"linger.ms": "9"}) is not producer


def test_an_option_that_only_the_driver_could_use(
    config: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KAFKA_SECRET", raising=False)
    with pytest.raises(
        ConfigError, match=r"client\.id: the environment variable KAFKA_SECRET is not"
    ) as caught:
        shared_producer(config | {"client.id": "${env:KAFKA_SECRET}"})
    assert f"wrong in a task on {platform.node()}, and was right on the driver" in str(caught.value)
    assert caught.value.option == "client.id"
    monkeypatch.setenv("KAFKA_SECRET", "it is there now")
    shared_producer(config | {"client.id": "${env:KAFKA_SECRET}"})


def test_an_address_that_cannot_be_resolved_says_so_itself(config: dict[str, str]) -> None:
    with pytest.raises(BootstrapError):
        shared_producer(config | {"bootstrap.servers": "no-such-host.invalid:9092"})


def test_after_an_error_there_is_a_new_one(config: dict[str, str]) -> None:
    producer = shared_producer(config)
    forget_producer(producer)
    forget_producer(producer)
    again = shared_producer(config)
    assert again is not producer
    again.send("orders", b"x").result(60)


def test_configurations_that_are_not_used_any_more_are_let_go(config: dict[str, str]) -> None:
    first, *_ = [shared_producer(config | {"linger.ms": str(number)}) for number in range(4)]
    assert shared_producer(config | {"linger.ms": "0"}) is first  # used again, so that it is not the oldest
    shared_producer(config | {"linger.ms": "4"})
    assert shared_producer(config | {"linger.ms": "0"}) is first
    assert len(task_module._producers) == 4


def test_a_child_of_a_fork_makes_its_own(config: dict[str, str]) -> None:
    producer = shared_producer(config)
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads
        child = os.fork()
    if child == 0:  # in the child: nothing of pytest must run here
        try:
            own = shared_producer(config)
            sent = own is not producer and own.send("orders", b"x").result(60).offset >= 0
            os.write(writing, b"yes" if sent else b"no")
        finally:
            os._exit(0)
    os.close(writing)
    try:
        os.waitpid(child, 0)
        assert os.read(reading, 3) == b"yes"
    finally:
        os.close(reading)
