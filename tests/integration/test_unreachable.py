# SPDX-License-Identifier: Apache-2.0
"""The broker answers, but names an address where nobody is: the classic mistake of a first set-up."""

from __future__ import annotations

import logging

import pytest

from penstock import Producer
from penstock.devbroker import DevCluster
from penstock.devbroker.machine import free_ports
from penstock.errors import DeliveryTimeoutError, NetworkError

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_an_advertised_listener_that_cannot_be_reached_is_named(caplog: pytest.LogCaptureFixture) -> None:
    (nobody,) = free_ports(1)
    address = f"127.0.0.1:{nobody}"
    options = {"request_timeout_ms": 2000, "linger_ms": 0, "delivery_timeout_ms": 4000}
    caplog.set_level(logging.WARNING, "penstock")
    with (
        DevCluster(properties={"advertised.listeners": f"PLAINTEXT://{address}"}) as cluster,
        Producer(bootstrap_servers=cluster.bootstrap_servers, **options) as producer,
    ):
        # The broker that was asked first can be reached, so the topic is known and the record is accepted.
        error = producer.send("letters", b"dear").exception(60)
    assert isinstance(error, DeliveryTimeoutError)
    assert address in str(error)
    assert "refused" in str(error)
    assert isinstance(error.__cause__, NetworkError)
    advice = [record for record in caplog.records if "advertised.listeners" in record.getMessage()]
    assert [record.levelname for record in advice] == ["WARNING"], (
        "told once, at the first attempt that failed"
    )
    assert address in advice[0].getMessage()
