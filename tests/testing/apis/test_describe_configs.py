# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest
from testing.wire import Wire, make_cluster

from penstock.protocol.messages import DESCRIBE_CONFIGS
from penstock.testing import Code

TOPIC, BROKER = 2, 4


@pytest.fixture
def wire() -> Wire:
    return Wire(make_cluster(3))


def describe(
    wire: Wire, name: str, kind: int = TOPIC, keys: list[str] | None = None, version: int | None = None
) -> dict[str, Any]:
    row = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    (result,) = wire.call(DESCRIBE_CONFIGS, {"resources": [row]}, version)["results"]
    assert (result["resource_type"], result["resource_name"]) == (kind, name)
    return result


def values(result: dict[str, Any]) -> dict[str, str]:
    assert result["error_code"] == 0
    return {row["name"]: row["value"] for row in result["configs"]}


@pytest.mark.parametrize("version", range(1, 5))
def test_a_topic_has_what_was_set_and_defaults_for_the_rest(wire: Wire, version: int) -> None:
    wire.cluster.create_topic("log", 1, 3, {"cleanup.policy": "compact", "min.insync.replicas": "2"})
    found = values(describe(wire, "log", version=version))
    assert (found["cleanup.policy"], found["min.insync.replicas"]) == ("compact", "2")
    assert (found["retention.ms"], found["max.message.bytes"]) == ("604800000", "1048588")


def test_only_what_was_asked_for(wire: Wire) -> None:
    assert values(describe(wire, "t", keys=["cleanup.policy", "no.such.option"])) == {
        "cleanup.policy": "delete"
    }


def test_a_denied_topic_is_not_described(wire: Wire) -> None:
    wire.cluster.denied_topics.add("t")
    assert describe(wire, "t")["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED


def test_a_broker_describes_itself_alone(wire: Wire) -> None:
    assert values(describe(wire, "0", BROKER))["transaction.max.timeout.ms"] == "900000"
    other = describe(wire, "1", BROKER)
    assert (other["error_code"], other["configs"]) == (Code.INVALID_REQUEST, [])
