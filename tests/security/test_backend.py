# SPDX-License-Identifier: Apache-2.0
"""How the network is put together for a client that uses TLS, SASL or a proxy."""

from __future__ import annotations

import gc
import random
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from network.fakes import FakeBroker, FakeNetwork, Received
from network.harness import network_settings

from penstock.config.config import ProducerConfig
from penstock.config.kinds import Password
from penstock.control.client import ControlClient
from penstock.errors import AuthenticationError, ConfigError
from penstock.network.resolver import RESOLVE_CANONICAL
from penstock.network.transport import NOTHING, Address, Endpoint
from penstock.producer.assembly import assemble
from penstock.protocol.messages import METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE
from penstock.security import backend as backend_module
from penstock.security.backend import secure_backend
from penstock.security.proxy import ProxySettings
from penstock.security.sasl.authenticator import Authenticator
from penstock.security.sasl.settings import SaslSettings
from penstock.security.settings import SecuritySettings
from penstock.security.tls.settings import TlsSettings
from penstock.testing import FakeKafka, FakeSecurity
from penstock.types import Node

PROXY = ProxySettings(kind="socks5", host="proxy", port=1080)
ALICE = SaslSettings(mechanism="PLAIN", username="alice", password=Password("wonderland"))


class Layer:
    """A transport over another one, that only remembers how it was made."""

    made: list[Layer]

    def __init__(self, inner: Any, *about: Any) -> None:
        self.inner = inner
        self.about = about
        self.closed = False
        type(self).made.append(self)

    def finish_connect(self) -> int:
        return NOTHING

    def close(self) -> None:
        self.closed = True
        self.inner.close()


class ProxyLayer(Layer):
    made = []


class TlsLayer(Layer):
    made = []


class Context:
    """Counts how often it was asked."""

    def __init__(self, settings: TlsSettings, run_aside: Any) -> None:
        self.settings = settings
        self.asked = 0

    def current(self) -> str:
        self.asked += 1
        return f"context {self.asked}"


@pytest.fixture
def layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.security.proxy.ProxyTransport", ProxyLayer)
    monkeypatch.setattr("penstock.security.tls._transport_cy.TlsTransport", TlsLayer)
    monkeypatch.setattr("penstock.security.tls.context.TlsContext", Context)
    monkeypatch.setattr(ProxyLayer, "made", [])
    monkeypatch.setattr(TlsLayer, "made", [])


@pytest.fixture
def address() -> Iterator[Address]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield Address(socket.AF_INET, listener.getsockname())


def test_tls_goes_over_the_proxy_and_the_proxy_over_tcp(layers, address):
    security = SecuritySettings(protocol="SSL", tls=TlsSettings(), proxy=PROXY)
    backend = secure_backend(network_settings(), security)
    first = backend.connect(address, Endpoint("broker", 9093))
    assert isinstance(first, TlsLayer)
    assert first.about[:2] == ("context 1", "broker")
    assert isinstance(first.inner, ProxyLayer)
    assert first.inner.about == (PROXY, "broker", 9093)
    assert first.inner.inner.fileno() >= 0
    second = backend.connect(address, Endpoint("broker", 9093))
    assert second.about[:2] == ("context 2", "broker"), "files may have changed since"
    assert second.about[2] is first.about[2], "what is known of the peer stays"
    third = backend.connect(address, Endpoint("broker", 9094))
    assert third.about[2] is not first.about[2]
    assert backend.authenticate is None
    for transport in (first, second, third):
        transport.close()
    backend.close()


def test_a_transport_that_cannot_be_made_leaves_no_socket_open(layers, address, monkeypatch):
    def fail(inner: Any, *about: Any) -> None:
        raise OSError("no certificate can be for that")

    monkeypatch.setattr("penstock.security.tls._transport_cy.TlsTransport", fail)
    backend = secure_backend(
        network_settings(), SecuritySettings(protocol="SSL", tls=TlsSettings(), proxy=PROXY)
    )
    with pytest.raises(OSError, match="no certificate"):
        backend.connect(address, Endpoint("broker", 9093))
    (proxied,) = ProxyLayer.made
    assert proxied.closed
    assert proxied.inner.fileno() == -1
    backend.close()


def test_every_host_is_reached_at_the_address_of_the_proxy(layers):
    asked: list[tuple[str, int]] = []

    def resolve(host: str, port: int) -> list[Address]:
        asked.append((host, port))
        return [Address(socket.AF_INET, ("10.9.8.7", port))]

    backend = secure_backend(network_settings(), SecuritySettings(proxy=PROXY), resolve)
    (found,) = backend.resolve("a-name-that-only-the-proxy-knows", 9092)
    assert str(found) == "10.9.8.7:1080"
    assert asked == [("proxy", 1080)]
    backend.close()


def test_a_proxy_whose_name_is_not_known_is_named(layers):
    def resolve(host: str, port: int) -> list[Address]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    secret = ProxySettings(kind="socks5", host="proxy", port=1080, user="u", password=Password("hush"))
    backend = secure_backend(network_settings(), SecuritySettings(proxy=secret), resolve)
    with pytest.raises(OSError, match=r"proxy.*proxy:1080.*Name or service not known") as caught:
        backend.resolve("broker", 9092)
    assert "hush" not in str(caught.value)
    backend.close()


def test_canonical_names_cannot_be_had_through_a_proxy(layers):
    with pytest.raises(ConfigError, match=r"client\.dns\.lookup"):
        secure_backend(network_settings(client_dns_lookup=RESOLVE_CANONICAL), SecuritySettings(proxy=PROXY))


def test_what_authenticates_is_closed_with_the_backend(monkeypatch):
    closed: list[object] = []
    monkeypatch.setattr(Authenticator, "close", lambda self: closed.append(self))  # noqa: PLW0108
    backend = secure_backend(network_settings(), SecuritySettings(protocol="SASL_PLAINTEXT", sasl=ALICE))
    assert backend.authenticate is not None
    backend.close()
    assert len(closed) == 1


def test_a_thread_for_authentication_is_there_with_the_client_and_ends_with_it():
    """Later it might not be possible any more to start one."""
    before = set(threading.enumerate())
    backend = secure_backend(network_settings(), SecuritySettings(protocol="SASL_PLAINTEXT", sasl=ALICE))
    (helper,) = set(threading.enumerate()) - before
    where: list[threading.Thread] = []
    done = threading.Event()
    backend.run_aside(lambda: (where.append(threading.current_thread()), done.set()))
    assert done.wait(60)
    assert where == [helper]
    backend.close()
    helper.join(60)
    assert not helper.is_alive()


def test_a_client_that_does_not_authenticate_has_no_such_thread(layers):
    before = set(threading.enumerate())
    backend = secure_backend(network_settings(), SecuritySettings(protocol="SSL", tls=TlsSettings()))
    assert set(threading.enumerate()) <= before  # one of another test may end meanwhile
    backend.close()


def test_what_authenticates_is_closed_when_the_rest_cannot_be_made(monkeypatch):
    closed: list[object] = []
    monkeypatch.setattr(Authenticator, "close", lambda self: closed.append(self))  # noqa: PLW0108

    def fail() -> None:
        raise OSError("too many open files")

    monkeypatch.setattr(backend_module, "SocketSelector", fail)
    with pytest.raises(OSError, match="too many"):
        secure_backend(network_settings(), SecuritySettings(protocol="SASL_PLAINTEXT", sasl=ALICE))
    assert len(closed) == 1


OPTIONS = {
    "bootstrap.servers": "127.0.0.1:1",
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "alice",
    "sasl.password": "wonderland",
}


@pytest.mark.parametrize("client", ["producer", "control client"])
def test_a_client_that_is_closed_closes_what_authenticates(client, monkeypatch):
    closed: list[object] = []
    monkeypatch.setattr(Authenticator, "close", lambda self: closed.append(self))  # noqa: PLW0108
    if client == "producer":
        assemble(ProducerConfig.from_user(OPTIONS, {})).client.close()
    else:
        ControlClient(OPTIONS).close()
    assert len(closed) == 1


def helping() -> set[threading.Thread]:
    return {
        each for each in threading.enumerate() if each.name.startswith(("penstock-aside", "penstock-token"))
    }


def forget_one(options: dict[str, Any]) -> None:
    client = ControlClient(options)
    client.brokers(5)
    del client
    gc.collect()


def test_a_control_client_that_is_forgotten_leaves_no_thread():
    security = FakeSecurity(protocol="SASL_PLAINTEXT", mechanisms=("OAUTHBEARER",))
    with FakeKafka(1, security=security) as kafka:
        options = security.client_options() | {"bootstrap.servers": kafka.bootstrap_servers}
        before = helping()
        with warnings.catch_warnings(record=True) as told:  # other tests may have left something, too
            warnings.simplefilter("always")
            forget_one(options)
        assert any("was forgotten without close" in str(each.message) for each in told)
        for thread in helping() - before:
            thread.join(60)
        assert not helping() - before


def test_a_control_client_that_a_child_process_forgets_stays_as_it_is():
    client = ControlClient(OPTIONS)
    network = client._network
    client._pid = -1  # as the child sees it
    del client
    gc.collect()
    assert "closed" not in repr(network)
    network.close()


# ---- a producer on it, over a network in memory


class Guarded:
    """A producer with a user and a password, and a broker that wants to know them."""

    def __init__(self, password: str = "wonderland") -> None:
        self.network = FakeNetwork()
        self.clock = self.network.clock
        self.broker = FakeBroker(self.network, Node(0, "b0", 9092))
        self.right = b"\0alice\0wonderland"
        self.broker.rules[SASL_HANDSHAKE.key] = lambda _: {"error_code": 0, "mechanisms": ["PLAIN"]}
        self.broker.rules[SASL_AUTHENTICATE.key] = self._judge
        self.broker.rules[METADATA.key] = self._metadata
        options = {"sasl.password": password, "bootstrap.servers": "b0:9092"}
        config = ProducerConfig.from_user(OPTIONS | options, {})
        assert config.security is not None
        assert config.security.sasl is not None
        backend = self.network.backend()._replace(authenticate=Authenticator(config.security.sasl).handshake)
        self.parts = assemble(config, self.clock, backend, random.Random(3))

    def _judge(self, request: Received) -> dict[str, Any]:
        right = request.body["auth_bytes"] == self.right
        return {
            "error_code": 0 if right else 58,
            "error_message": None if right else "Authentication failed: Invalid username or password",
            "auth_bytes": b"",
            "session_lifetime_ms": 0,
        }

    def _metadata(self, request: Received) -> dict[str, Any]:
        rows = [{"error_code": 0, "name": "t", "topic_id": bytes(15) + b"\1", "partitions": []}]
        brokers = [{"node_id": 0, "host": "b0", "port": 9092}]
        return {"brokers": brokers, "cluster_id": "c", "controller_id": 0, "topics": rows}

    def run_for(self, seconds: float) -> None:
        until = self.clock.now() + seconds
        self.network.after(seconds, self.network.wakeup)
        while self.clock.now() < until:
            self.parts.sender.run_once(self.clock.now())


def test_a_producer_authenticates_before_it_asks_for_anything():
    stage = Guarded()
    stage.parts.metadata.await_topic("t", None, stage.clock.now())
    stage.run_for(0.5)
    names = [request.api.name for request in stage.broker.seen]
    assert names[:4] == ["ApiVersions", "SaslHandshake", "SaslAuthenticate", "Metadata"]
    assert stage.parts.metadata.cluster_id() == "c"


def test_a_wrong_password_is_told_at_once_with_broker_mechanism_and_user_and_never_the_secret(caplog):
    stage = Guarded(password="queen-of-hearts")
    ticket = stage.parts.metadata.await_topic("t", None, stage.clock.now())
    stage.run_for(0.5)
    with pytest.raises(AuthenticationError) as caught:
        ticket.result  # noqa: B018 - raises
    error = caught.value
    assert (error.broker, error.mechanism, error.user) == ("bootstrap server b0:9092", "PLAIN", "alice")
    assert "Invalid username or password" in str(error)
    assert "queen-of-hearts" not in f"{error!r} {error.__cause__!r} {caplog.text}"
    stage.right = b"\0alice\0queen-of-hearts"
    stage.run_for(3)
    assert stage.parts.metadata.cluster_id() == "c", "it goes on when the password is right"


def test_a_plain_producer_loads_nothing_of_this():
    program = """
import sys
from penstock import Producer
from penstock.errors import KafkaError
producer = Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=50)
try:
    producer.send("t", b"1")
except KafkaError:
    pass
producer.close(0)
from penstock.control import ControlClient
ControlClient({"bootstrap.servers": "127.0.0.1:1"}).close()
print([name for name in sys.modules if name == "ssl" or name.startswith("penstock.security")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr
