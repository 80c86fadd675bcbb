# SPDX-License-Identifier: Apache-2.0
"""Finalizers that run on the threads of security and call the producer: they are refused, and it goes on."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fix_lines import BeforeLine
from security.tls.certificates import the_ca

from penstock import Producer
from penstock.errors import ReentrantCallError
from penstock.security import aside
from penstock.security.oauth import refresh
from penstock.security.tls.context import TlsContext
from penstock.security.tls.settings import TlsSettings
from penstock.testing import FakeKafka, FakeSecurity

SOON = 30.0  # seconds that a test that passes never needs


class Collection:
    """A run of the garbage collector that finalizes one object, on a chosen thread, once."""

    def __init__(self) -> None:
        self.armed = False
        self.ran_on = ""
        self.error: BaseException | None = None
        self._over = threading.Event()

    def was_refused_on(self, thread: str) -> bool:
        """Whether the finalizer ran on such a thread, and its call was refused. Waits until it has ended."""
        assert self._over.wait(SOON), "the finalizer waits"
        assert self.ran_on.startswith(thread), self.ran_on
        return isinstance(self.error, ReentrantCallError)

    def arm(self, call: Callable[[], object]) -> None:
        gc.disable()  # until somebody comes by where it shall run
        _Cycle(self, call)
        self.armed = True

    def come_by(self, thread: str) -> None:
        """Collect, if this is such a thread: as an allocation at this place may do."""
        if self.armed and threading.current_thread().name.startswith(thread):
            self.armed = False
            gc.collect()
            self._over.set()


class _Cycle:
    def __init__(self, owner: Collection, call: Callable[[], object]) -> None:
        self.me = self
        self.owner = owner
        self.call = call

    def __del__(self) -> None:
        self.owner.ran_on = threading.current_thread().name
        try:
            self.call()
        except BaseException as error:  # the test looks at it
            self.owner.error = error


@pytest.fixture
def collection() -> Iterator[Collection]:
    yield Collection()
    gc.enable()


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(topics={"t": 1}, security=FakeSecurity(protocol="SASL_PLAINTEXT")) as cluster:
        yield cluster


def in_time(call: Callable[[], object]) -> bool:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(SOON)
    return not thread.is_alive()


def test_one_that_flushes_inside_the_lock_of_the_helpers(
    kafka: FakeKafka, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_needed = aside.Helpers._is_needed_locked

    def come_by(self: aside.Helpers, number: int) -> bool:
        collection.come_by("penstock-aside")
        return is_needed(self, number)

    monkeypatch.setattr(aside.Helpers, "_is_needed_locked", come_by)
    producer = Producer({**kafka.client_options("SCRAM-SHA-512"), "linger.ms": 0})
    producer.send("t", b"1").result(SOON)
    collection.arm(producer.flush)
    with kafka.locked() as cluster:
        cluster.drop_connections()
    producer.send("t", b"2").result(SOON)
    assert collection.was_refused_on("penstock-aside")
    producer.close()


@pytest.fixture
def refreshers(monkeypatch: pytest.MonkeyPatch) -> list[refresh.TokenRefresher]:
    """Those that were made."""
    made: list[refresh.TokenRefresher] = []
    make = refresh.TokenRefresher.__init__

    def note(self: refresh.TokenRefresher, *args: Any, **more: Any) -> None:
        made.append(self)
        make(self, *args, **more)

    monkeypatch.setattr(refresh.TokenRefresher, "__init__", note)
    return made


def want_another_token(refreshers: list[refresh.TokenRefresher]) -> refresh.TokenRefresher:
    (refresher,) = refreshers
    refresher._quite_new_seconds = 0.0
    refresher.refused(refresher.token())
    return refresher


def test_one_that_closes_inside_the_lock_of_the_token(
    kafka: FakeKafka,
    collection: Collection,
    refreshers: list[refresh.TokenRefresher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Clock:
        time = staticmethod(time.time)

        @staticmethod
        def monotonic() -> float:
            collection.come_by("penstock-token")
            return time.monotonic()

    monkeypatch.setattr(refresh, "time", Clock)
    producer = Producer({**kafka.client_options("OAUTHBEARER"), "linger.ms": 0})
    producer.send("t", b"1").result(SOON)
    refresher = want_another_token(refreshers)
    collection.arm(producer.close)
    assert in_time(refresher.token), "the next token never came"
    assert collection.was_refused_on("penstock-token")
    producer.send("t", b"2").result(SOON)
    assert in_time(producer.close)


def test_one_that_waits_while_a_look_at_tls_files_is_ended(tmp_path: Path) -> None:
    """At each line of what tells the I/O thread that the look has ended."""
    place = tmp_path / "ca.pem"
    place.write_text(the_ca().pem)
    number = 0
    is_reached = True
    while is_reached:
        io_goes_on = threading.Event()
        aside_ended = threading.Event()
        before = BeforeLine(number, ("set", "_refresh"), lambda event=io_goes_on: event.wait(2 * SOON))

        def run_aside(
            work: Callable[[], None], before: BeforeLine = before, ended: threading.Event = aside_ended
        ) -> None:
            def traced() -> None:
                with before:
                    work()
                ended.set()

            threading.Thread(target=traced, daemon=True).start()

        context = TlsContext(TlsSettings(trust_location=str(place)), run_aside, patience=0.02)
        assert in_time(context.current), f"the I/O thread waits, at line {number}"
        io_goes_on.set()
        assert aside_ended.wait(SOON)
        is_reached = before.reached
        number += 1
    assert number >= 3


@pytest.mark.parametrize("thread", ["penstock-aside", "penstock-token"])
def test_one_that_flushes_on_a_thread_that_is_idle(
    kafka: FakeKafka,
    collection: Collection,
    refreshers: list[refresh.TokenRefresher],
    monkeypatch: pytest.MonkeyPatch,
    thread: str,
) -> None:
    """Work is left to such a thread: it must not wait for what that work is for."""

    class CollectsWhileWaiting(aside.Latch):
        def wait(self, timeout: float | None = None) -> bool:
            collection.come_by(thread)
            return super().wait(timeout)

    module, words = {
        "penstock-aside": (aside, "on a thread of the client that waits"),
        "penstock-token": (refresh, "on the thread that fetches"),
    }[thread]
    monkeypatch.setattr(module, "Latch", CollectsWhileWaiting)
    with Producer({**kafka.client_options("OAUTHBEARER"), "linger.ms": 0}) as producer:
        producer.send("t", b"1").result(SOON)
        want_another_token(refreshers)
        collection.arm(producer.flush)
        with kafka.locked() as cluster:
            cluster.drop_connections()
        producer.send("t", b"2").result(SOON)
        assert collection.was_refused_on(
            thread
        )  # before the end: a closed producer refuses for another reason
    assert words in str(collection.error)
