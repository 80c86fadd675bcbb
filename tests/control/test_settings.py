# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from penstock.control.settings import ControlSettings
from penstock.errors import ConfigError

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


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({}, "bootstrap.servers is missing"),
        ({"bootstrap.servers": ""}, "bootstrap.servers is empty"),
        ({"bootstrap.servers": 9092}, "bootstrap.servers must be a text"),
        ({"bootstrap.servers": b"a:1"}, "bootstrap.servers must be a text"),
        ({"bootstrap.servers": [1]}, "bootstrap.servers must be a text"),
        (SERVERS | {"bootstrap_servers": "a:1"}, "given twice"),
        (SERVERS | {"request.timeout.ms": "soon"}, "request.timeout.ms must be a number"),
        (SERVERS | {"request.timeout.ms": True}, "request.timeout.ms must be a number, not bool"),
        (SERVERS | {"request.timeout.ms": [1]}, "request.timeout.ms must be a number, not list"),
        (SERVERS | {"request.timeout.ms": -1}, "request.timeout.ms must be a finite number"),
        (SERVERS | {"request.timeout.ms": "nan"}, "request.timeout.ms must be a finite number"),
        (SERVERS | {"request.timeout.ms": "inf"}, "request.timeout.ms must be a finite number"),
        (SERVERS | {"client.id": 7}, "client.id must be a text"),
        (SERVERS | {"client.dns.lookup": "default"}, "client.dns.lookup must be one of"),
        # Passing over these would send in the clear what was to be encrypted.
        (SERVERS | {"security.protocol": "SASL_SSL"}, "security.protocol=SASL_SSL is not there yet"),
        ({1: "a:1"}, "name of an option"),
        ("a:1", "must be a mapping"),
    ],
)
def test_mistakes(config: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ControlSettings.from_config(config)
