# SPDX-License-Identifier: Apache-2.0
"""A wrong address or topic: told soon, in one line, with the way out; what comes later is still logged."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.cli.reach import open_producer, patience_of, quiet_network
from penstock.control import reach
from penstock.errors import ConfigError
from penstock.network import metadata_fetch
from penstock.testing import FakeKafka, FakeSecurity
from penstock.testing.settings import ClusterSettings

HOST = "127.0.0.1"
NOBODY_LISTENS = f"{HOST}:1"
PATIENCE = "max.block.ms=..."  # stands for what the fixture `told` sets
PIPELINE = f"""
pipeline.name = "orders"
source.sql = "SELECT 1 AS id"
sink.topic = "orders"
sink.options."kafka.bootstrap.servers" = "{NOBODY_LISTENS}"
"""


@pytest.fixture
def one_line(tmp_path: Path) -> str:
    file = tmp_path / "lines"
    file.write_bytes(b"x\n")
    return str(file)


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "PATIENCE_SECONDS", 0.3)


@pytest.fixture
def told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> Callable[..., str]:
    """Runs a command that has little patience; what it tells, in one line.

    With more patience, where that was over before anything was learned: the machine may be busy with other things.
    """

    def run(words: list[str], expected: str) -> str:
        for seconds in (0.3, 3.0, 30.0):
            caplog.clear()
            monkeypatch.setattr(reach, "PATIENCE_SECONDS", seconds)
            milliseconds = f"max.block.ms={seconds * 1000:.0f}"
            assert main([milliseconds if word == PATIENCE else word for word in words]) == 1
            said = capfd.readouterr()
            assert said.out == ""
            if expected in said.err:
                break
        (line,) = said.err.replace(f"within {seconds:g} s", "within so many seconds").splitlines()
        return line

    return run


def commands(file: str) -> list[list[str]]:
    return [
        ["produce", "orders", file],
        ["perf", "--topic", "orders", "--num-records", "1", "--record-size", "1"],
    ]


@pytest.mark.parametrize("command", [0, 1], ids=["produce", "perf"])
def test_nobody_listens(
    command: int, one_line: str, told: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    line = told([*commands(one_line)[command], "-b", NOBODY_LISTENS], "connection refused")
    assert line.startswith("penstock: no broker can be reached at 127.0.0.1:1 within so many seconds: ")
    assert line.count("connection refused") == 1
    assert "penstock broker start" in line
    assert caplog.messages == []


@pytest.mark.spark
def test_a_pipeline_tells_it_once_as_well(
    tmp_path: Path, told: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "orders.toml"
    path.write_text(PIPELINE, encoding="utf-8")
    line = told(["run", str(path)], "connection refused")
    assert line.count("connection refused") == 1
    assert caplog.messages == []


@pytest.mark.parametrize("command", [0, 1], ids=["produce", "perf"])
def test_a_topic_that_is_not_there(command: int, one_line: str, told: Callable[..., str]) -> None:
    with FakeKafka(settings=ClusterSettings(auto_create_topics=False)) as kafka:
        line = told([*commands(one_line)[command], "-b", kafka.bootstrap_servers], "topic 'orders'")
    assert line.startswith("penstock: topic 'orders' does not exist at 127.0.0.1:")


@pytest.mark.parametrize("command", [0, 1], ids=["produce", "perf"])
def test_a_refused_identity_is_told_once(
    command: int,
    one_line: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = tmp_path / "client.properties"
    with FakeKafka(security=FakeSecurity(protocol="SASL_PLAINTEXT")) as kafka:
        options = kafka.client_options("PLAIN") | {"sasl.password": "wr0ng-of-the-test"}
        file.write_text("".join(f"{name}={value}\n" for name, value in options.items()))
        assert main([*commands(one_line)[command], "--config", str(file)]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("penstock: no connection to bootstrap server 127.0.0.1:")
    assert line.count("authentication by PLAIN as alice failed") == 1
    assert caplog.messages == []


def test_a_token_endpoint_that_is_dead_is_told_once(
    one_line: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "client.properties"
    with FakeKafka(security=FakeSecurity(protocol="SASL_SSL")) as kafka:
        options = kafka.client_options("OAUTHBEARER") | {
            "sasl.oauthbearer.token.endpoint.url": "https://127.0.0.1:1/token",
            "sasl.oauthbearer.client.id": "me",
            "sasl.oauthbearer.client.secret": "${env:PATH}",
            "sasl.login.retry.backoff.max.ms": "100",
        }
        del options["sasl.jaas.config"]
        file.write_text("".join(f"{name}={value}\n" for name, value in options.items()))
        assert main(["produce", "orders", one_line, "--config", str(file)]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.count("the OIDC provider at https://127.0.0.1:1: it cannot be asked: ") == 1
    assert "check sasl.oauthbearer.token.endpoint.url" in line
    assert "refused the connection" not in line
    assert caplog.messages == []


def test_a_server_that_is_silent_is_not_waited_for_while_another_one_answers(
    one_line: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_fetch, "SILENT_AFTER", 0.1)
    with FakeKafka() as kafka, socket.create_server((HOST, 0)) as silent:
        both = f"{HOST}:{silent.getsockname()[1]},{kafka.bootstrap_servers}"
        for _ in range(5):  # they are tried in random order
            assert main(["produce", "orders", one_line, "-b", both, "-X", "max.block.ms=20000"]) == 0
    assert "no broker" not in capfd.readouterr().err


def test_the_users_own_patience_counts(one_line: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["produce", "orders", one_line, "-b", NOBODY_LISTENS, "-X", "max.block.ms=200"]) == 1
    assert "within 0.2 s" in capfd.readouterr().err


@pytest.mark.parametrize("option", ["metadata.fetch.timeout.ms=200", "max_block_ms=200"])
def test_whatever_name_it_is_given_by(option: str, one_line: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["produce", "orders", one_line, "-b", NOBODY_LISTENS, "-X", option]) == 1
    assert "within 0.2 s" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, reach.PATIENCE_SECONDS),
        ({"max.block.ms": "120000"}, 120.0),
        ({"metadata.fetch.timeout.ms": "700"}, 0.7),
        ({"max.block.ms": "900", "security.protocol": "SASL_SSL", "no.such.option": "1"}, 0.9),
    ],
)
def test_a_command_without_a_producer_minds_no_other_option(options: dict[str, str], seconds: float) -> None:
    assert patience_of({"bootstrap.servers": "x:1", **options}) == seconds


def test_a_patience_that_is_no_number_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max\.block\.ms"):
        patience_of({"bootstrap.servers": "x:1", "max.block.ms": "soon"})


@pytest.mark.usefixtures("hurry")
def test_who_wants_to_wait_longer_is_told_how(one_line: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["produce", "orders", one_line, "-b", NOBODY_LISTENS]) == 1
    assert "-X max.block.ms=60000 waits longer" in capfd.readouterr().err


@pytest.mark.usefixtures("hurry")
def test_a_missing_topic_is_told_soon_also_to_the_patient(
    one_line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with FakeKafka(settings=ClusterSettings(auto_create_topics=False)) as kafka:
        words = ["produce", "orders", one_line, "-b", kafka.bootstrap_servers, "-X", "max.block.ms=60000"]
        assert main(words) == 1
    assert "the brokers have not created it within 0.3 s" in capfd.readouterr().err


@pytest.mark.parametrize("command", ["produce", "perf", "recover"])
def test_an_advertised_listener_that_cannot_be_reached(
    command: str, one_line: str, told: Callable[..., str]
) -> None:
    words = {words[0]: words for words in [*commands(one_line), ["recover"]]}[command]
    with FakeKafka(topics={"orders": 1}, brokers=1) as kafka:
        servers = kafka.bootstrap_servers
        with kafka.locked() as cluster:
            (broker,) = cluster.nodes
            cluster.set_address(broker, "127.0.0.1", 1)
        line = told([*words, "-b", servers, "-X", PATIENCE], "advertised.listeners")
    assert f"{servers} answers, but the addresses that it gives" in line
    assert f"broker {broker} at 127.0.0.1:1" in line
    assert "Check advertised.listeners" in line
    assert "-b, --bootstrap-servers" not in line
    assert "penstock broker start" not in line


def test_a_dead_server_among_several_is_still_told(one_line: str, caplog: pytest.LogCaptureFixture) -> None:
    with FakeKafka(topics={"orders": 1}, brokers=1) as kafka:
        servers = f"{NOBODY_LISTENS},{kafka.bootstrap_servers}"
        # The servers are tried in a random order: ask until the dead one was the first.
        for _ in range(50):
            caplog.clear()
            producer = open_producer({"bootstrap.servers": servers}, "orders")
            producer.send("orders", b"x").exception(60)
            producer.close()
            if "No connection to a bootstrap server" in caplog.text:
                break
        else:
            pytest.fail("nothing was told in 50 attempts")
        assert NOBODY_LISTENS in caplog.text


def test_names_that_cannot_be_resolved_yet_are_told_by_the_producer(
    one_line: str, caplog: pytest.LogCaptureFixture
) -> None:
    words = ["-b", "nosuch.invalid:9092", "-X", "bootstrap.resolve.timeout.ms=300", "-X", "max.block.ms=5000"]
    assert main(["produce", "orders", one_line, *words]) == 1
    assert "They are looked up again until the time is up" in caplog.text


def test_a_deprecated_option_is_told_once(one_line: str, caplog: pytest.LogCaptureFixture) -> None:
    with FakeKafka(topics={"orders": 1}) as kafka:
        words = ["-q", "-b", kafka.bootstrap_servers, "-X", "metadata.fetch.timeout.ms=60000"]
        assert main(["produce", "orders", one_line, *words]) == 0
    assert caplog.text.count("is deprecated") == 1


def test_a_wrong_option_is_told_before_anybody_is_asked(
    one_line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["produce", "orders", one_line, "-b", NOBODY_LISTENS, "-X", "lingre.ms=5"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "lingre.ms" in line


def test_what_is_found_is_written(one_line: str) -> None:
    with FakeKafka(topics={"orders": 1}) as kafka:
        assert main(["produce", "orders", one_line, "-q", "-b", kafka.bootstrap_servers]) == 0


@pytest.mark.parametrize(
    ("count", "there"), [(1, "only partition 0"), (3, "partitions 0 to 2")], ids=["one", "three"]
)
def test_a_partition_that_is_not_there_is_told_at_once(
    count: int, there: str, one_line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with FakeKafka(topics={"orders": count}) as kafka:
        # Who waits for the partition fails after a while with other words.
        words = ["-b", kafka.bootstrap_servers, "-X", "max.block.ms=30000", "--partition", str(count)]
        assert main(["produce", "orders", one_line, *words]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"penstock: topic 'orders' has no partition {count}: it has {there}. ")


def test_a_partition_that_is_there_is_written_to(one_line: str) -> None:
    with FakeKafka(topics={"orders": 3}) as kafka:
        words = ["-q", "-b", kafka.bootstrap_servers, "--partition", "2"]
        assert main(["produce", "orders", one_line, *words]) == 0


@pytest.mark.parametrize("command", [0, 1], ids=["produce", "perf"])
def test_a_topic_name_that_cannot_be_is_told_with_the_rule(
    command: int, one_line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["bad topic!" if word == "orders" else word for word in commands(one_line)[command]]
    assert main([*words, "-b", NOBODY_LISTENS]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("penstock: topic 'bad topic!' cannot exist: a topic's name has 1 to 249 letters")
    assert "Choose another name" in line


def test_later_troubles_are_logged_again() -> None:
    logger = logging.getLogger("penstock.network.failures")
    with quiet_network():
        assert not logger.isEnabledFor(logging.WARNING)
    assert logger.isEnabledFor(logging.WARNING)


def test_debug_shows_all_of_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), quiet_network():
        logging.getLogger("penstock.network.failures").warning("no connection")
    assert "no connection" in caplog.text
