# SPDX-License-Identifier: Apache-2.0
"""What a sink is told, and the key that its name becomes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.sink import SinkSettings, sink_key

CONFIG = {"bootstrap.servers": "localhost:9092", "sasl.password": "secret"}


def settings(**changed: Any) -> SinkSettings:
    return SinkSettings(**({"sink_id": "orders", "config": CONFIG} | changed))


def test_a_key_is_sixteen_hex_digits_whatever_the_name() -> None:
    names = ["orders", "orders-eu", "orders.1", "s3://bucket/check point", "\u00e4" * 500]
    keys = [sink_key(name) for name in names]
    assert all(re.fullmatch("[0-9a-f]{16}", key) for key in keys)
    assert len(set(keys)) == len(names)
    assert keys == [sink_key(name) for name in names]


def test_a_run_of_a_batch_job_has_a_key_of_its_own() -> None:
    keys = {
        sink_key("batch"),
        sink_key("batch", "1"),
        sink_key("batch", "2"),
        sink_key("batch1"),
        sink_key("batch", "12"),
        sink_key("batch1", "2"),
    }
    assert len(keys) == 6
    assert settings(run_id="1").sink_key == sink_key("orders", "1")


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"sink_id": ""}, "sinkId"),
        ({"run_id": ""}, "runId must not be empty"),
        ({"one_off": True}, "one-off"),
        ({"on_restored_checkpoint": "ignore"}, "fail or rewrite"),
        ({"recovery_time_ms": -1}, "recoveryTime"),
        ({"recovery_time_ms": 500_000}, "twice recoveryTime"),
        ({"recovery_time_ms": 0, "transaction_timeout_ms": 59_999}, "a minute more.*60000 ms"),
        ({"recovery_time_ms": 17_000, "transaction_timeout_ms": 60_000}, "a minute more.*77000 ms"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        settings(**wrong)


def test_credentials_are_not_shown() -> None:
    assert "secret" not in repr(settings())


def test_the_name_in_words() -> None:
    assert settings().name == "sink 'orders'"
    assert settings(run_id="7").name == "sink 'orders', run '7'"
    assert settings(run_id="random", one_off=True).name == "sink 'orders'"
