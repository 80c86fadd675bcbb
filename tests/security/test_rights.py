# SPDX-License-Identifier: Apache-2.0
"""Everything that is no Spark, as a user with few rights, over SASL_SSL: it works with the rights that the pages name,
and without one of them the error says which.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from fix_security import BOB, BOBS_WAY, SecuredKafka
from sink.support import Crash, World

from penstock import Producer
from penstock.cli.main import main
from penstock.control import ControlClient, complete_transaction
from penstock.devbroker.security import USERS
from penstock.devbroker.settings import properties_text
from penstock.errors import (
    ClusterAuthorizationError,
    KafkaError,
    SinkAuthorizationError,
    TopicAuthorizationError,
    TransactionalIdAuthorizationError,
)
from penstock.sink.effects import EndAll

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SECONDS = 60.0


@pytest.fixture
def options(secured: SecuredKafka) -> dict[str, str]:
    return secured.options(BOBS_WAY, BOB)


@pytest.fixture
def file(options: dict[str, str], tmp_path: Path) -> Path:
    """The properties file that an administrator hands out; the password stands in a file of its own."""
    secret = tmp_path / "password"
    secret.write_text(USERS[BOB] + "\n")
    jaas = options["sasl.jaas.config"].replace(USERS[BOB], f"${{file:{secret}}}")
    path = tmp_path / "client.properties"
    path.write_text(properties_text({**options, "sasl.jaas.config": jaas}))
    return path


class SecuredWorld(World):
    """A sink's drivers and tasks, as bob."""

    options: dict[str, str]
    topic: str

    @property
    def config(self) -> dict[str, str]:
        return self.options

    def settings(self, **changed: Any) -> Any:
        return super().settings(**({"sink_id": self.topic, "topic": self.topic} | changed))


# ---- with the rights


def test_produce(secured: SecuredKafka, file: Path, tmp_path: Path) -> None:
    name = secured.topic()
    secured.grant("TOPIC", name, "WRITE")
    lines = tmp_path / "lines"
    lines.write_bytes(b"one\ntwo\n")
    assert main(["produce", name, str(lines), "--config", str(file)]) == 0
    assert secured.read(name, 2, BOBS_WAY) == [b"one", b"two"]


def test_perf(secured: SecuredKafka, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = secured.topic()
    secured.grant("TOPIC", name, "WRITE")
    arguments = ["--topic", name, "--num-records", "500", "--record-size", "10", "--json", "-q"]
    assert main(["perf", *arguments, "--config", str(file)]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["acknowledged"] == 500
    assert USERS[BOB] not in shown.out + shown.err
    assert len(secured.read(name, 500, BOBS_WAY)) == 500


@pytest.mark.parametrize("commit", [True, False])
def test_a_detached_transaction_is_ended_elsewhere(
    secured: SecuredKafka, options: dict[str, str], commit: bool
) -> None:
    name = secured.topic()
    secured.grant("TOPIC", name, "WRITE")
    secured.grant("TRANSACTIONAL_ID", f"x-{name}", "WRITE")
    with Producer(options, transactional_id=f"x-{name}") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, b"kept")
        handle = producer.detach_transaction()
    assert complete_transaction(handle, commit, config=options, timeout=SECONDS).committed is commit
    assert secured.read(name, commit, BOBS_WAY) == [b"kept"] * commit


def test_recover(secured: SecuredKafka, options: dict[str, str], file: Path) -> None:
    """A driver dies after its decision; `penstock recover` makes it so."""
    name = secured.topic()
    log = f"log-{name}"
    secured.grant("TOPIC", name, "WRITE")
    secured.grant("TOPIC", log, "READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS", "CREATE")
    secured.grant("TRANSACTIONAL_ID", "ps.", "WRITE", "DESCRIBE", prefixed=True)
    world = SecuredWorld(None)  # type: ignore[arg-type]  # no fake
    world.options, world.topic = options, name
    driver = world.driver(log_topic=log)
    with pytest.raises(Crash):
        driver.batch(0, {0: ["a", "b"], 1: ["c"]}, before=EndAll)
    assert secured.read(name, 0) == []
    arguments = ["recover", "--config", str(file), "--decision-topic", log]
    assert main(arguments) == 1, "a decided batch is not finished"
    assert main([*arguments, "--sink-id", name]) == 0
    assert secured.read(name, 3, BOBS_WAY) == [b"a", b"b", b"c"]


# ---- without


def test_a_topic_that_may_not_be_written_to(secured: SecuredKafka, options: dict[str, str]) -> None:
    name = secured.topic()
    # A producer id is given to each client that may write to some topic, and this is about another one.
    secured.grant("TOPIC", secured.topic(), "WRITE")
    with Producer(options) as producer:
        with pytest.raises(TopicAuthorizationError) as hidden:
            producer.send(name, b"x").result(SECONDS)
        secured.grant("TOPIC", name, "DESCRIBE")
        with pytest.raises(TopicAuthorizationError) as refused:
            producer.send(name, b"x").result(SECONDS)
    for told in (str(hidden.value), str(refused.value)):
        assert name in told
        assert "WRITE" in told
    assert "DESCRIBE" in str(hidden.value)


def test_a_transactional_id_that_may_not_be_used(secured: SecuredKafka, options: dict[str, str]) -> None:
    with (
        Producer(options, transactional_id="of-somebody-else") as producer,
        pytest.raises(TransactionalIdAuthorizationError) as refused,
    ):
        producer.init_transactions()
    assert "'of-somebody-else'" in str(refused.value)
    assert "DESCRIBE and WRITE" in str(refused.value)


def test_a_cluster_without_the_right_to_numbers(secured: SecuredKafka, options: dict[str, str]) -> None:
    """Brokers before 2.8 want IDEMPOTENT_WRITE; newer ones any topic that may be written to."""
    name = secured.topic()
    options = secured.options(BOBS_WAY, "admin")  # who has been granted nothing
    secured.grant("TOPIC", name, "DESCRIBE", user="admin")
    with Producer(options) as producer, pytest.raises(ClusterAuthorizationError) as refused:
        producer.send(name, b"x").result(SECONDS)
    assert "IDEMPOTENT_WRITE on the cluster" in str(refused.value)


def test_a_transaction_that_may_not_be_ended(secured: SecuredKafka, options: dict[str, str]) -> None:
    name = secured.topic()
    with Producer(secured.options(BOBS_WAY), transactional_id=f"x-{name}") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, b"kept")
        handle = producer.detach_transaction()
    with pytest.raises(KafkaError) as refused:
        complete_transaction(handle, config=options, timeout=SECONDS)
    assert f"x-{name}" in str(refused.value)
    assert "WRITE" in str(refused.value)
    complete_transaction(handle, commit=False, config=secured.options(BOBS_WAY), timeout=SECONDS)


def test_commands_without_the_right(
    secured: SecuredKafka, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = secured.topic()
    lines = tmp_path / "lines"
    lines.write_bytes(b"one\n")
    perf = ["perf", "--topic", name, "--num-records", "1", "--record-size", "1"]
    recover = ["recover", "--decision-topic", name]
    for command in (["produce", name, str(lines)], perf, recover):
        assert main([*command, "--config", str(file)]) == 1
        last = capsys.readouterr().err.splitlines()[-1]
        assert name in last, command
        assert "right" in last, command
    assert secured.read(name, 0) == []


def test_a_sink_without_rights(secured: SecuredKafka, options: dict[str, str]) -> None:
    name = secured.topic()
    world = SecuredWorld(None)  # type: ignore[arg-type]  # no fake
    world.options, world.topic = options, name
    with pytest.raises(SinkAuthorizationError) as refused:
        world.driver(log_topic=f"none-{uuid.uuid4().hex[:8]}").batch(0, {0: ["a"]})
    assert "none-" in str(refused.value)
    assert "Create" in str(refused.value)


def test_what_the_control_client_may_not(secured: SecuredKafka, options: dict[str, str]) -> None:
    with ControlClient(options) as client, pytest.raises(KafkaError) as refused:
        client.find_coordinator("of-somebody-else", timeout=SECONDS)
    assert "of-somebody-else" in str(refused.value)
    assert "DESCRIBE" in str(refused.value)
