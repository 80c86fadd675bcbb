# SPDX-License-Identifier: Apache-2.0
"""A wrong address or topic: told soon, in one line, with the way out; what comes later is still logged."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from penstock.cli.first_look import quiet_network
from penstock.cli.main import main
from penstock.control import topic_look
from penstock.testing import FakeKafka
from penstock.testing.settings import ClusterSettings

NOBODY_LISTENS = "127.0.0.1:1"
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
    monkeypatch.setattr(topic_look, "PATIENCE_SECONDS", 0.3)


def commands(file: str) -> list[list[str]]:
    return [
        ["produce", "orders", file],
        ["perf", "--topic", "orders", "--num-records", "1", "--record-size", "1"],
    ]


@pytest.mark.parametrize("command", [0, 1], ids=["produce", "perf"])
@pytest.mark.usefixtures("hurry")
def test_nobody_listens(
    command: int, one_line: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert main([*commands(one_line)[command], "-b", NOBODY_LISTENS]) == 1
    said = capfd.readouterr()
    (line,) = said.err.splitlines()
    assert line.startswith("penstock: no broker can be reached at 127.0.0.1:1 within 0.3 s: ")
    assert line.count("connection refused") == 1
    assert "penstock broker start" in line
    assert said.out == ""
    assert caplog.messages == []


@pytest.mark.usefixtures("hurry")
def test_a_pipeline_tells_it_once_as_well(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "orders.toml"
    path.write_text(PIPELINE, encoding="utf-8")
    assert main(["run", str(path)]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.count("connection refused") == 1
    assert caplog.messages == []


@pytest.mark.parametrize("command", [0, 1], ids=["produce", "perf"])
@pytest.mark.usefixtures("hurry")
def test_a_topic_that_is_not_there(command: int, one_line: str, capfd: pytest.CaptureFixture[str]) -> None:
    with FakeKafka(settings=ClusterSettings(auto_create_topics=False)) as kafka:
        assert main([*commands(one_line)[command], "-b", kafka.bootstrap_servers]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("penstock: topic 'orders' does not exist at 127.0.0.1:")


def test_the_users_own_patience_counts(one_line: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["produce", "orders", one_line, "-b", NOBODY_LISTENS, "-X", "max.block.ms=200"]) == 1
    assert "within 0.2 s" in capfd.readouterr().err


def test_a_wrong_option_is_told_before_anybody_is_asked(
    one_line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["produce", "orders", one_line, "-b", NOBODY_LISTENS, "-X", "lingre.ms=5"]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert "lingre.ms" in line


def test_what_is_found_is_written(one_line: str) -> None:
    with FakeKafka(topics={"orders": 1}) as kafka:
        assert main(["produce", "orders", one_line, "-q", "-b", kafka.bootstrap_servers]) == 0


def test_later_troubles_are_logged_again() -> None:
    logger = logging.getLogger("penstock.network.failures")
    with quiet_network():
        assert not logger.isEnabledFor(logging.WARNING)
    assert logger.isEnabledFor(logging.WARNING)


def test_debug_shows_all_of_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), quiet_network():
        logging.getLogger("penstock.network.failures").warning("no connection")
    assert "no connection" in caplog.text
