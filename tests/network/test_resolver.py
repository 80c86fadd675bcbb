# SPDX-License-Identifier: Apache-2.0
"""Names become addresses, and the bootstrap servers are looked up within their time."""

from __future__ import annotations

import math
import random
import socket
import threading
from collections.abc import Callable, Sequence

import pytest
from network.harness import Harness

from penstock.errors import BootstrapError, ConfigError
from penstock.network.resolver import (
    RESOLVE_CANONICAL,
    USE_ALL_DNS_IPS,
    BootstrapSettings,
    DeferredBootstrap,
    HostAddresses,
    bootstrap_nodes,
    run_on_daemon_thread,
    system_resolve,
    system_reverse_resolve,
)
from penstock.network.transport import Address, Endpoint


def resolve(host, port):
    known = {"one": ["10.0.0.1"], "two": ["10.0.0.1", "10.0.0.2"]}
    if host not in known:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return [Address(socket.AF_INET, (ip, port)) for ip in known[host]]


def test_bootstrap_nodes_keep_their_names_and_get_negative_ids():
    endpoints = [Endpoint("one", 1), Endpoint("two", 2), Endpoint("gone", 3)]
    nodes, failures = bootstrap_nodes(endpoints, USE_ALL_DNS_IPS, resolve, random.Random(1))
    assert [node.id for node in nodes] == [-1, -2]
    assert {(node.host, node.port) for node in nodes} == {("one", 1), ("two", 2)}
    assert [failure.endpoint for failure in failures] == [Endpoint("gone", 3)]


def test_bootstrap_nodes_are_shuffled():
    endpoints = [Endpoint("one", port) for port in range(1, 6)]
    orders = {
        tuple(
            node.port for node in bootstrap_nodes(endpoints, USE_ALL_DNS_IPS, resolve, random.Random(seed))[0]
        )
        for seed in range(10)
    }
    assert len(orders) > 1


def test_canonical_lookup_makes_a_node_of_each_address():
    names = {"10.0.0.1": "first.example", "10.0.0.2": "second.example"}
    endpoints = [Endpoint("one", 9), Endpoint("two", 9)]
    nodes, _ = bootstrap_nodes(
        endpoints, RESOLVE_CANONICAL, resolve, random.Random(1), lambda address: names[address.ip]
    )
    assert sorted(node.host for node in nodes) == ["first.example", "second.example"]


def test_without_any_address_the_error_names_each_server_and_its_cause():
    with pytest.raises(BootstrapError, match=r"gone:1: Name or service not known; away:2: Name") as caught:
        bootstrap_nodes(
            [Endpoint("gone", 1), Endpoint("away", 2)], USE_ALL_DNS_IPS, resolve, random.Random(1)
        )
    assert isinstance(caught.value, ConfigError)


def test_an_address_listed_twice_is_tried_once():
    address, other = (Address(socket.AF_INET, (ip, 1)) for ip in ("10.0.0.1", "10.0.0.2"))
    addresses = HostAddresses("h", 1)
    taken = [addresses.take_next(lambda *_: [address, address, other]) for _ in range(2)]
    assert taken == [address, other]


def test_a_name_without_address_is_an_oserror():
    with pytest.raises(OSError, match="no address"):
        HostAddresses("h", 1).take_next(lambda *_: [])


def test_the_system_resolves_numeric_addresses_without_asking_anyone():
    assert system_resolve("127.0.0.1", 9092) == [Address(socket.AF_INET, ("127.0.0.1", 9092))]
    assert str(system_resolve("127.0.0.1", 9092)[0]) == "127.0.0.1:9092"
    assert system_reverse_resolve(Address(socket.AF_INET, ("127.0.0.1", 1)))


def test_a_numeric_address_is_never_looked_up(monkeypatch):
    real, flags_used = socket.getaddrinfo, []

    def spy(*args, **options):
        flags_used.append(options["flags"])
        return real(*args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", spy)
    for host, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)):
        assert [address.family for address in system_resolve(host, 9092)] == [family]
    assert flags_used == [socket.AI_NUMERICHOST] * 2


def test_a_name_is_looked_up(monkeypatch):
    def name_service(host, port, *, flags, **_):
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.9", port))]

    monkeypatch.setattr(socket, "getaddrinfo", name_service)
    assert [str(address) for address in system_resolve("broker", 9092)] == ["10.0.0.9:9092"]


def test_ipv4_comes_first(monkeypatch):
    v6 = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 9092, 0, 0))
    v4 = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 9092))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [v6, v4])
    assert [str(address) for address in system_resolve("localhost", 9092)] == ["127.0.0.1:9092", "[::1]:9092"]


def test_a_text_that_is_no_name_is_an_oserror():
    with pytest.raises(OSError):
        system_resolve("x" * 100 + ".example", 1)


SERVERS = [Endpoint("b0", 9092)]


class BootstrapRig:
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
    rig = BootstrapRig()
    assert rig.bootstrap.advance(10.0) is None
    assert rig.wakes == 0
    rig.reply(SERVERS)
    assert rig.wakes == 1
    assert rig.bootstrap.advance(10.5) == SERVERS
    assert rig.bootstrap.advance(10.5) is None
    assert rig.bootstrap.seconds_to_advance(10.5) == math.inf
    assert repr(rig.bootstrap) == "<DeferredBootstrap: done>"


def test_there_is_one_look_up_at_a_time():
    rig = BootstrapRig()
    for now in (10.0, 10.3, 10.6):
        assert rig.bootstrap.advance(now) is None
    assert len(rig.pending) == 1


def test_a_failed_look_up_is_repeated_after_the_backoff():
    rig = BootstrapRig(timeout_ms=1000, backoff_ms=100)
    rig.bootstrap.advance(10.0)
    rig.reply(BootstrapError("nobody knows b0"))
    assert rig.bootstrap.advance(10.0) is None
    assert str(rig.bootstrap.last_error) == "nobody knows b0"
    assert rig.bootstrap.seconds_to_advance(10.0) == pytest.approx(0.1)
    rig.bootstrap.advance(10.05)
    assert not rig.pending
    rig.bootstrap.advance(10.11)
    rig.reply(SERVERS)
    assert rig.bootstrap.advance(10.2) == SERVERS


def test_the_budget_starts_with_the_first_turn_and_its_end_names_the_cause():
    rig = BootstrapRig(timeout_ms=1000)
    rig.bootstrap.advance(500.0)
    rig.reply(BootstrapError("nobody knows b0"))
    rig.bootstrap.advance(500.5)
    rig.bootstrap.advance(500.99)
    rig.reply(BootstrapError("the name service is down"))
    assert rig.bootstrap.seconds_to_advance(500.99) == pytest.approx(0.01)
    error = rig.bootstrap.advance(501.0)
    assert isinstance(error, BootstrapError)
    assert "bootstrap.resolve.timeout.ms (1000 ms)" in str(error)
    assert "the name service is down" in str(error)
    assert error.__cause__ is rig.bootstrap.last_error


def test_failure_is_final():
    rig = BootstrapRig(timeout_ms=1000)
    rig.bootstrap.advance(10.0)
    assert isinstance(rig.bootstrap.advance(11.0), BootstrapError)
    rig.reply(SERVERS)
    assert rig.bootstrap.advance(11.1) is None
    assert rig.bootstrap.seconds_to_advance(11.1) == math.inf
    assert repr(rig.bootstrap) == "<DeferredBootstrap: failed>"


def test_a_name_service_that_hangs_is_named_as_the_cause():
    rig = BootstrapRig(timeout_ms=1000)
    rig.bootstrap.advance(10.0)
    assert rig.bootstrap.seconds_to_advance(10.4) == pytest.approx(0.6)
    assert "gave no answer" in str(rig.bootstrap.advance(11.0))


def test_an_answer_that_is_there_at_the_end_of_the_budget_counts():
    rig = BootstrapRig(timeout_ms=1000)
    rig.bootstrap.advance(10.0)
    rig.reply(SERVERS)
    assert rig.bootstrap.advance(11.0) == SERVERS


def test_an_unexpected_error_is_logged_and_does_not_end_the_search(caplog):
    rig = BootstrapRig()
    rig.bootstrap.advance(10.0)
    rig.reply(ZeroDivisionError("a bug"))
    assert rig.bootstrap.advance(10.0) is None
    assert "a bug" in str(rig.bootstrap.last_error)
    assert "unexpected" in caplog.text
    rig.bootstrap.advance(10.2)
    rig.reply(SERVERS)
    assert rig.bootstrap.advance(10.2) == SERVERS


def test_after_close_nothing_is_looked_up_and_nobody_is_woken():
    rig = BootstrapRig()
    rig.bootstrap.advance(10.0)
    rig.bootstrap.close()
    rig.reply(SERVERS)
    assert rig.wakes == 0
    assert rig.bootstrap.advance(10.2) is None
    assert not rig.pending


def test_the_helper_is_a_daemon_thread():
    found: list[threading.Thread] = []
    ran = threading.Event()

    def work() -> None:
        found.append(threading.current_thread())
        ran.set()

    run_on_daemon_thread(work)
    assert ran.wait(60)
    assert found[0].daemon
    assert found[0] is not threading.current_thread()


# ---- within the client


def without_servers(timeout_ms: float = 1000, backoff_ms: float = 100) -> tuple[Harness, BootstrapRig]:
    """A client that knows no node, and the rig at which its bootstrap servers are looked up."""
    rig = BootstrapRig(timeout_ms, backoff_ms)
    h = Harness(bootstrap=rig.bootstrap)
    h.updater.known = []
    h.updater.due_at = h.now
    return h, rig


def test_the_client_goes_on_by_itself_once_the_servers_are_known():
    h, rig = without_servers()
    h.network.after(0.3, lambda: rig.reply(SERVERS))
    h.network.after(0.3, h.network.wakeup)
    h.poll(10)
    h.poll_until(lambda: h.brokers[0].waiting)
    assert [(node.id, node.host) for node in h.updater.known] == [(-1, "b0")]
    assert not h.updater.fatal


def test_the_client_tells_why_the_servers_are_not_known_yet_and_tries_again_in_time():
    h, rig = without_servers(timeout_ms=1000, backoff_ms=100)
    h.poll()
    rig.reply(BootstrapError("nobody knows b0"))
    h.poll(10)
    assert [str(error) for error in h.updater.delays] == ["nobody knows b0"]
    start = h.now
    h.poll(10)
    assert h.now - start == pytest.approx(0.9)  # the next look-up is under way: only the budget ends the wait
    assert len(rig.pending) == 1
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
    h, rig = without_servers()
    h.poll()
    h.client.close()
    rig.reply(SERVERS)
    assert rig.wakes == 0
    assert h.network.closed
