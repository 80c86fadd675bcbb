# SPDX-License-Identifier: Apache-2.0
"""What counts as a refusal, and what brokers are told during an upgrade."""

from __future__ import annotations

import pytest

from brokers.rolling import UPGRADES, Upgrade
from brokers.scene import CaseFailed, Scene
from brokers.servers import Kfake
from brokers.traits import Traits
from penstock import errors
from penstock.devbroker.releases.release import find_release


def scene() -> Scene:
    return Scene(Kfake("127.0.0.1:1"), Traits("0.10.2.2"))


def fail(text: str) -> None:
    raise errors.KafkaError(text)


def test_a_refusal_names_the_release() -> None:
    error = scene().refused(lambda: fail("the broker (Kafka 0.10.1 to 0.10.2) cannot store headers"))
    assert "headers" in str(error)


def test_a_refusal_that_does_not_name_it_is_a_failure() -> None:
    with pytest.raises(CaseFailed, match=r"does not name 0\.10: KafkaError: no headers"):
        scene().refused(lambda: fail("no headers"))


def test_no_error_is_a_failure() -> None:
    with pytest.raises(CaseFailed, match=r"Kafka 0\.10\.2\.2 cannot do that, and nothing was said"):
        scene().refused(lambda: None)


def test_brokers_speak_the_older_protocol_until_all_are_new() -> None:
    with_formats = Upgrade("0.10.2.2", "0.11.0.3")
    assert with_formats.properties("0.10.2.2") == {
        "inter.broker.protocol.version": "0.10.2",
        "log.message.format.version": "0.10.2",
        "min.insync.replicas": 2,
    }
    assert with_formats.properties("0.11.0.3")["log.message.format.version"] == "0.11.0"
    assert Upgrade("2.8.2", "3.9.1").properties("2.8.2") == {
        "inter.broker.protocol.version": "2.8",
        "min.insync.replicas": 2,
    }


def test_upgrades_begin_with_a_release_that_has_zookeeper() -> None:
    for upgrade in UPGRADES:
        assert find_release(upgrade.old).needs_zookeeper
        assert find_release(upgrade.new).number > find_release(upgrade.old).number
