# SPDX-License-Identifier: Apache-2.0
"""Names and addresses."""

from __future__ import annotations

import random
import socket

import pytest

from penstock.errors import BootstrapError, ConfigError
from penstock.network.resolver import (
    RESOLVE_CANONICAL,
    USE_ALL_DNS_IPS,
    Endpoint,
    HostAddresses,
    bootstrap_nodes,
    system_resolve,
    system_reverse_resolve,
)
from penstock.network.transport import Address


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
