# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from penstock._time import ExponentialBackoff
from penstock.config.config import ProducerConfig
from penstock.control.client import ControlSettings
from penstock.errors import ConfigError
from penstock.network.settings import CONNECTION_OPTIONS

SERVERS = {"bootstrap.servers": "a:1,b:2"}


@pytest.mark.parametrize("servers", ["a:1,b:2", ["a:1", "b:2"], ("a:1", "b:2")])
@pytest.mark.parametrize("name", ["bootstrap.servers", "bootstrap_servers"])
def test_servers(name: str, servers: Any) -> None:
    settings = ControlSettings.from_config({name: servers})
    assert [str(endpoint) for endpoint in settings.bootstrap] == ["a:1", "b:2"]


def test_values_may_be_texts_and_names_in_snake_case() -> None:
    settings = ControlSettings.from_config(
        SERVERS
        | {"request_timeout_ms": "1500", "client.id": "x", "retry.backoff.ms": 7, "send_buffer_bytes": -1}
    )
    assert settings.network.request_timeout_ms == 1500
    assert settings.network.client_id == "x"
    assert settings.network.send_buffer_bytes == -1
    assert settings.backoff.initial_ms == 7


def test_what_a_producer_has_besides_is_ignored() -> None:
    plain = ControlSettings.from_config(SERVERS)
    assert (
        ControlSettings.from_config(SERVERS | {"linger.ms": 5, "acks": "all", "key_serializer": object()})
        == plain
    )
    assert ControlSettings.from_config(SERVERS | {"client.id": None}) == plain


def test_one_reconnect_backoff_does_not_grow() -> None:
    network = ControlSettings.from_config(SERVERS | {"reconnect.backoff.ms": 20}).network
    assert (network.reconnect_backoff_ms, network.reconnect_backoff_max_ms) == (20, 20)


def test_waits_that_cannot_grow_are_told(caplog: pytest.LogCaptureFixture) -> None:
    ControlSettings.from_config(SERVERS | {"retry.backoff.ms": 2000})
    assert "retry.backoff.ms=2000 is above retry.backoff.max.ms=1000" in caplog.text


def test_what_is_not_set_is_as_a_producer_has_it() -> None:
    config = ProducerConfig.from_user(SERVERS)
    settings = ControlSettings.from_config(SERVERS)
    for option, field in CONNECTION_OPTIONS.items():
        assert getattr(settings.network, field) == config.as_dict()[option]
    assert settings.backoff == ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
    assert settings.network.client_id == "penstock-control"


def test_an_old_name_is_understood_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    settings = ControlSettings.from_config(SERVERS | {"timeout.ms": 1500, "metadata.fetch.timeout.ms": "x"})
    assert settings.network.request_timeout_ms == 1500
    assert [record.getMessage() for record in caplog.records] == [
        "the option timeout.ms is deprecated; use request.timeout.ms=1500"
    ]


@pytest.mark.parametrize(
    "other",
    [
        {"group.id": "readers", "queue.buffering.max.ms": 5, "default.api.timeout.ms": 5, "of.our.own": 1},
        {"request.timeout.mss": 5},
        {"linger.ms": "soon", "acks": None},
    ],
)
def test_what_means_nothing_here_is_not_even_looked_at(other: dict[str, Any]) -> None:
    assert ControlSettings.from_config(SERVERS | other) == ControlSettings.from_config(SERVERS)


def test_all_names_of_another_client_are_told_at_once() -> None:
    other = {"socket.timeout.ms": 5, "group.id": "readers", "metadata.broker.list": "a:1"}
    with pytest.raises(ConfigError) as caught:
        ControlSettings.from_config(other)
    assert str(caught.value) == (
        "2 unknown options:\n"
        "  1. 'socket.timeout.ms', which is librdkafka's name; use 'request.timeout.ms' here\n"
        "  2. 'metadata.broker.list', which is librdkafka's name; use 'bootstrap.servers' here"
    )
    assert caught.value.options == ("socket.timeout.ms", "metadata.broker.list")


def test_none_is_the_same_as_not_given() -> None:
    nothing = {"request.timeout.ms": None, "security.protocol": None, "client_dns_lookup": None}
    assert ControlSettings.from_config(SERVERS | nothing) == ControlSettings.from_config(SERVERS)


MISTAKES = [
    {},
    {"bootstrap.servers": ""},
    {"bootstrap.servers": 9092},
    {"bootstrap.servers": b"a:1"},
    {"bootstrap.servers": [1]},
    {"bootstrap.servers": "localhost"},
    {"bootstrap.servers": "a:1,a:1"},
    {"metadata.broker.list": "a:1"},
    SERVERS | {"bootstrap_servers": "a:1"},
    SERVERS | {"request.timeout.ms": "soon"},
    SERVERS | {"request.timeout.ms": True},
    SERVERS | {"request.timeout.ms": [1]},
    SERVERS | {"request.timeout.ms": -1},
    SERVERS | {"request.timeout.ms": "nan"},
    SERVERS | {"request.timeout.ms": "inf"},
    SERVERS | {"request_timeout.ms": 5},
    SERVERS | {"socket.timeout.ms": 5},
    SERVERS | {"timeout.ms": "soon"},
    SERVERS | {"send.buffer.bytes": -2},
    SERVERS | {"client.id": 7},
    SERVERS | {"client.id": "x" * 32_768},
    SERVERS | {"client.dns.lookup": "default"},
    # Passing over these would send in the clear what was to be encrypted.
    SERVERS | {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"},
    SERVERS | {"security.protocol": "TLS"},
    SERVERS | {"sasl.username": "me"},
    SERVERS | {"ssl_cafile": "x"},
    SERVERS | {"security.protocol": "SSL", "ssl.keystore.key": "x"},
    SERVERS | {"enable.ssl.certificate.verification": "false"},
    {1: "a:1"},
]


@pytest.mark.parametrize("config", MISTAKES)
def test_a_mistake_is_told_as_a_producer_tells_it(config: Any) -> None:
    with pytest.raises(ConfigError) as here:
        ControlSettings.from_config(config)
    with pytest.raises(ConfigError) as there:
        ProducerConfig.from_user(config)
    assert str(here.value) == str(there.value)
    assert here.value.option == there.value.option


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({}, "bootstrap.servers is required"),
        ({"bootstrap.servers": "localhost"}, "the port is missing"),
        (SERVERS | {"bootstrap_servers": "a:1"}, "given twice"),
        (SERVERS | {"request.timeout.ms": "soon"}, "request.timeout.ms must be a whole number"),
        (SERVERS | {"request.timeout.ms": -1}, "allowed: 1 or more"),
        (SERVERS | {"socket.timeout.ms": 5}, "librdkafka's name; use 'request.timeout.ms' here"),
        (SERVERS | {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "PLAIN needs a username"),
        ({1: "a:1"}, "name of an option"),
        ("a:1", "must be a mapping"),
    ],
)
def test_mistakes(config: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ControlSettings.from_config(config)
