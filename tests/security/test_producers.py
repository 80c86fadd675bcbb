# SPDX-License-Identifier: Apache-2.0
"""Producers whose authentication blocks, hangs, finds no thread or is refused by one of two servers."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from penstock import Producer
from penstock.errors import AuthenticationError
from penstock.security.sasl import mechanism as mechanism_module
from penstock.security.sasl.mechanism import register_mechanism
from penstock.testing import FakeKafka, FakeSecurity

SASL = FakeSecurity(protocol="SASL_PLAINTEXT")
ALICE = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "alice",
    "sasl.password": "alice-secret",
}


def refuse_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python does from 3.12 on, once the program ends."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "OAUTHBEARER"])
@pytest.mark.parametrize("first", [True, False], ids=["first record", "another broker"])
def test_a_record_is_sent_when_no_thread_can_be_started_any_more(mechanism, first, monkeypatch, caplog):
    with FakeKafka(brokers=2, topics={"t": 2}, security=SASL) as kafka:
        with Producer({**kafka.client_options(mechanism), "linger.ms": "0"}) as producer:
            if not first:
                producer.send("t", b"x", partition=0).result(60)
            refuse_threads(monkeypatch)
            for partition in (0, 1):
                producer.send("t", b"y", partition=partition).result(60)
        monkeypatch.undo()
    assert not caplog.records


class Hanging:
    """A mechanism whose first token does not come, and its credentials."""

    name = "PLAIN"
    user = "alice"

    def __init__(self, settings: Any) -> None:
        self.asked = 0
        self.release = threading.Event()

    def mechanism(self, host: str) -> Hanging:
        return self

    def first(self) -> bytes:
        self.asked += 1
        if not self.release.wait(60):
            raise AssertionError("nobody released it")
        return b"\0alice\0alice-secret"

    def next(self, challenge: bytes) -> None:
        return None

    def close(self) -> None:
        pass


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Hanging]]:
    made: list[Hanging] = []

    def make(settings: Any) -> Hanging:
        made.append(Hanging(settings))
        return made[-1]

    monkeypatch.setattr(mechanism_module, "_registered", {})
    register_mechanism("PLAIN", make)
    yield made
    for one in made:
        one.release.set()


def aside() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock-aside")]


def test_a_mechanism_that_hangs_is_told_and_its_threads_do_not_pile_up(hanging, caplog):
    brokers = 3
    with FakeKafka(brokers=brokers, topics={"t": 3}, security=SASL) as kafka:
        options = {
            **kafka.client_options("PLAIN"),
            "socket.connection.setup.timeout.ms": "500",
            "socket.connection.setup.timeout.max.ms": "500",
            "reconnect.backoff.max.ms": "50",
            "max.block.ms": "60000",
            "linger.ms": "0",
        }
        with Producer(options) as producer:
            began = time.monotonic()
            with pytest.raises(AuthenticationError) as caught:
                producer.send("t", b"x")
            assert time.monotonic() - began < 30, "long before max.block.ms"
            assert re.search(r"the mechanism has not come back after \d+\.\d", str(caught.value))
            assert (caught.value.mechanism, caught.value.user) == ("PLAIN", "alice")
            assert "refused" not in str(caught.value)
            time.sleep(2.5)  # ten attempts and more
            assert 1 <= len(aside()) <= brokers
            assert hanging[0].asked <= brokers
            hanging[0].release.set()
            delivery = None
            while delivery is None and time.monotonic() - began < 100:
                with suppress(AuthenticationError):  # of the last attempt, told to the next who asks
                    delivery = producer.send("t", b"y")
            assert delivery is not None
            delivery.result(60)
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) <= brokers, "each once"
    end = time.monotonic() + 60
    while aside() and time.monotonic() < end:
        time.sleep(0.005)
    assert not aside()


def test_a_session_of_less_than_a_second_goes_on_without_bad_advice(caplog):
    security = FakeSecurity(protocol="SASL_PLAINTEXT", session_seconds=0.3)
    with FakeKafka(brokers=1, topics={"t": 1}, security=security) as kafka:
        options = {**kafka.client_options("PLAIN"), "linger.ms": "0"}
        with caplog.at_level("DEBUG", "penstock"), Producer(options) as producer:
            end = time.monotonic() + 1.5
            while time.monotonic() < end:
                producer.send("t", b"x").result(60)
                time.sleep(0.02)
    assert "PLAINTEXT" not in caplog.text
    assert "renew" not in caplog.text
    told = [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert all("is sent again" in text for text in told), told


def test_a_server_that_refuses_does_not_matter_while_another_one_accepts():
    refusing = FakeSecurity(protocol="SASL_PLAINTEXT", users={"alice": "another password"})
    with (
        FakeKafka(1, topics={"t": 1}, security=refusing) as one,
        FakeKafka(1, topics={"t": 1}, security=SASL) as other,
    ):
        both = f"{one.bootstrap_servers},{other.bootstrap_servers}"
        for _ in range(10):  # they are tried in random order
            with Producer({**other.client_options("PLAIN"), "bootstrap.servers": both}) as producer:
                producer.send("t", b"x").result(60)


def test_servers_that_all_refuse_are_told_at_once():
    refusing = FakeSecurity(protocol="SASL_PLAINTEXT", users={"alice": "another password"})
    with FakeKafka(3, topics={"t": 1}, security=refusing) as kafka:
        options = {**ALICE, "bootstrap.servers": kafka.bootstrap_servers}
        with Producer(options) as producer:
            began = time.monotonic()
            with pytest.raises(AuthenticationError, match="no connection to"):
                producer.send("t", b"x")
            assert time.monotonic() - began < 30


def test_the_file_that_a_jvm_is_given_for_its_logins(tmp_path):
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    login = f'{module} required username="alice" password="alice-secret";'
    (tmp_path / "jaas.conf").write_text(f"// for all\nKafkaClient {{\n    {login}\n}};\nClient {{}};\n")
    with FakeKafka(topics={"t": 1}, security=SASL) as kafka:
        options = {
            "bootstrap.servers": kafka.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": f"${{file:{tmp_path}/jaas.conf}}",
        }
        with Producer(options) as producer:
            assert producer.send("t", b"x").result(60).offset == 0
