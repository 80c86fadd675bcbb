# SPDX-License-Identifier: Apache-2.0
"""Looking up the bootstrap servers aside, within a budget of time."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence

import pytest
from network.harness import Harness

from penstock.errors import BootstrapError
from penstock.network.bootstrap import BootstrapSettings, DeferredBootstrap, run_on_daemon_thread
from penstock.network.resolver import Endpoint

SERVERS = [Endpoint("b0", 9092)]


class Desk:
    """A bootstrap whose helper thread is the test: each look-up waits in `pending` until it is answered."""

    def __init__(self, timeout_ms: float = 1000, backoff_ms: float = 100) -> None:
        self.pending: list[Callable[[], None]] = []
        self.answer: Sequence[Endpoint] | Exception = SERVERS
        self.wakes = 0
        settings = BootstrapSettings(timeout_ms, backoff_ms)
        self.bootstrap = DeferredBootstrap(settings, self._look_up, self.pending.append, self._wake)

    def _look_up(self) -> Sequence[Endpoint]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def _wake(self) -> None:
        self.wakes += 1

    def reply(self, answer: Sequence[Endpoint] | Exception) -> None:
        """Let the look-up under way end."""
        self.answer = answer
        self.pending.pop()()


def test_the_servers_found_are_told_once_and_the_io_thread_is_woken():
    desk = Desk()
    assert desk.bootstrap.advance(10.0) is None
    assert desk.wakes == 0
    desk.reply(SERVERS)
    assert desk.wakes == 1
    assert desk.bootstrap.advance(10.5) == SERVERS
    assert desk.bootstrap.advance(10.5) is None
    assert desk.bootstrap.seconds_to_advance(10.5) == math.inf
    assert repr(desk.bootstrap) == "<DeferredBootstrap: done>"


def test_there_is_one_look_up_at_a_time():
    desk = Desk()
    for now in (10.0, 10.3, 10.6):
        assert desk.bootstrap.advance(now) is None
    assert len(desk.pending) == 1


def test_a_failed_look_up_is_repeated_after_the_backoff():
    desk = Desk(timeout_ms=1000, backoff_ms=100)
    desk.bootstrap.advance(10.0)
    desk.reply(BootstrapError("nobody knows b0"))
    assert desk.bootstrap.advance(10.0) is None
    assert str(desk.bootstrap.last_error) == "nobody knows b0"
    assert desk.bootstrap.seconds_to_advance(10.0) == pytest.approx(0.1)
    desk.bootstrap.advance(10.05)
    assert not desk.pending
    desk.bootstrap.advance(10.11)
    desk.reply(SERVERS)
    assert desk.bootstrap.advance(10.2) == SERVERS


def test_the_budget_starts_with_the_first_turn_and_its_end_names_the_cause():
    desk = Desk(timeout_ms=1000)
    desk.bootstrap.advance(500.0)
    desk.reply(BootstrapError("nobody knows b0"))
    desk.bootstrap.advance(500.5)
    desk.bootstrap.advance(500.99)
    desk.reply(BootstrapError("the name service is down"))
    assert desk.bootstrap.seconds_to_advance(500.99) == pytest.approx(0.01)
    error = desk.bootstrap.advance(501.0)
    assert isinstance(error, BootstrapError)
    assert "bootstrap.resolve.timeout.ms (1000 ms)" in str(error)
    assert "the name service is down" in str(error)
    assert error.__cause__ is desk.bootstrap.last_error


def test_failure_is_final():
    desk = Desk(timeout_ms=1000)
    desk.bootstrap.advance(10.0)
    assert isinstance(desk.bootstrap.advance(11.0), BootstrapError)
    desk.reply(SERVERS)
    assert desk.bootstrap.advance(11.1) is None
    assert desk.bootstrap.seconds_to_advance(11.1) == math.inf
    assert repr(desk.bootstrap) == "<DeferredBootstrap: failed>"


def test_a_name_service_that_hangs_is_named_as_the_cause():
    desk = Desk(timeout_ms=1000)
    desk.bootstrap.advance(10.0)
    assert desk.bootstrap.seconds_to_advance(10.4) == pytest.approx(0.6)
    assert "gave no answer" in str(desk.bootstrap.advance(11.0))


def test_an_answer_that_is_there_at_the_end_of_the_budget_counts():
    desk = Desk(timeout_ms=1000)
    desk.bootstrap.advance(10.0)
    desk.reply(SERVERS)
    assert desk.bootstrap.advance(11.0) == SERVERS


def test_an_unexpected_error_is_logged_and_does_not_end_the_search(caplog):
    desk = Desk()
    desk.bootstrap.advance(10.0)
    desk.reply(ZeroDivisionError("a bug"))
    assert desk.bootstrap.advance(10.0) is None
    assert "a bug" in str(desk.bootstrap.last_error)
    assert "unexpected" in caplog.text
    desk.bootstrap.advance(10.2)
    desk.reply(SERVERS)
    assert desk.bootstrap.advance(10.2) == SERVERS


def test_after_close_nothing_is_looked_up_and_nobody_is_woken():
    desk = Desk()
    desk.bootstrap.advance(10.0)
    desk.bootstrap.close()
    desk.reply(SERVERS)
    assert desk.wakes == 0
    assert desk.bootstrap.advance(10.2) is None
    assert not desk.pending


def test_the_helper_is_a_daemon_thread():
    found: list[threading.Thread] = []
    ran = threading.Event()

    def work() -> None:
        found.append(threading.current_thread())
        ran.set()

    run_on_daemon_thread(work)
    assert ran.wait(10)
    assert found[0].daemon
    assert found[0] is not threading.current_thread()


# ---- within the client


def without_servers(timeout_ms: float = 1000, backoff_ms: float = 100) -> tuple[Harness, Desk]:
    """A client that knows no node, and the desk at which its bootstrap servers are looked up."""
    desk = Desk(timeout_ms, backoff_ms)
    h = Harness(bootstrap=desk.bootstrap)
    h.updater.known = []
    h.updater.due_at = h.now
    return h, desk


def test_the_client_goes_on_by_itself_once_the_servers_are_known():
    h, desk = without_servers()
    h.network.after(0.3, lambda: desk.reply(SERVERS))
    h.network.after(0.3, h.network.wakeup)
    h.poll(10)
    h.poll_until(lambda: h.brokers[0].waiting)
    assert [(node.id, node.host) for node in h.updater.known] == [(-1, "b0")]
    assert not h.updater.fatal


def test_the_client_tells_why_the_servers_are_not_known_yet_and_tries_again_in_time():
    h, desk = without_servers(timeout_ms=1000, backoff_ms=100)
    h.poll()
    desk.reply(BootstrapError("nobody knows b0"))
    h.poll(10)
    assert [str(error) for error in h.updater.delays] == ["nobody knows b0"]
    start = h.now
    h.poll(10)
    assert h.now - start == pytest.approx(0.9)  # the next look-up is under way: only the budget ends the wait
    assert len(desk.pending) == 1
    assert len(h.updater.delays) == 1


def test_when_the_time_is_up_the_client_tells_it_once_and_rests():
    h, _ = without_servers(timeout_ms=1000)
    h.poll(10)
    assert not h.updater.fatal
    for _ in range(3):
        h.poll(10)
    assert len(h.updater.fatal) == 1
    assert isinstance(h.updater.fatal[0], BootstrapError)
    assert not h.network.attempts


def test_there_is_no_way_back_to_servers_that_are_not_known():
    h, _ = without_servers()
    h.updater.rebootstrap_wanted = True
    h.poll()
    assert h.updater.rebootstraps == 0


def test_closing_the_client_leaves_a_look_up_alone():
    h, desk = without_servers()
    h.poll()
    h.client.close()
    desk.reply(SERVERS)
    assert desk.wakes == 0
    assert h.network.closed
