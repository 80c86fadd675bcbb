# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from unittest.mock import Mock

import pytest

import penstock
from penstock import _compiled
from penstock.cli import main as cli
from penstock.cli.options import CommandError
from penstock.devbroker.settings import KAFKA_VERSION
from penstock.errors import (
    BootstrapError,
    ConfigError,
    KafkaError,
    KafkaTimeoutError,
    NetworkError,
    UnknownTopicOrPartitionError,
    broker_error,
)
from penstock.testing import FakeKafka


def answered_with(cause: KafkaError) -> KafkaTimeoutError:
    error = KafkaTimeoutError("no partition 7")
    error.__cause__ = cause
    return error


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """A command line whose command raises what the test puts into the list."""
    errors: list[BaseException] = []

    def run(args: argparse.Namespace) -> int:
        raise errors[0]

    parser = argparse.ArgumentParser()
    cli.add_debug_argument(parser)
    parser.set_defaults(func=run)
    monkeypatch.setattr(cli, "build_parser", lambda: parser)
    return errors


def test_version_says_what_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    what_runs = f"{_compiled.describe()}; development broker: Apache Kafka {KAFKA_VERSION}"
    assert done.stdout.strip() == f"penstock {penstock.__version__} ({what_runs})"


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    shown = capsys.readouterr().err
    for command in ("produce", "perf", "broker"):
        assert f"\n    {command} " in shown


@pytest.mark.parametrize("command", ["produce", "perf", "broker"])
def test_each_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([command, "--help"])
    assert caught.value.code == 0
    assert "--debug" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [["--debug", "produce", "t"], ["produce", "t", "--debug"]])
def test_debug_may_stand_before_or_behind_the_command(argv: list[str]) -> None:
    assert cli.build_parser().parse_args(argv).debug is True


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            KafkaTimeoutError("no answer"),
            "penstock: no answer (check the address with -b; `penstock broker start`",
        ),
        (answered_with(UnknownTopicOrPartitionError()), "penstock: no partition 7\n"),
        (answered_with(NetworkError("refused")), "penstock: no partition 7 (check the address"),
        (BootstrapError("cannot resolve x"), "penstock: cannot resolve x (check the address"),
        (ConfigError("unknown option linger"), "penstock: unknown option linger (see -X, --config"),
        (broker_error(29), "penstock: "),
        (CommandError("line 3: no key\nhere"), "penstock: line 3: no key here\n"),
        (FileNotFoundError(2, "No such file", "x"), "penstock: [Errno 2] No such file: 'x'\n"),
        (ZeroDivisionError("oops"), "penstock: ZeroDivisionError: oops (--debug shows where)\n"),
    ],
)
def test_error_is_one_line_with_a_way_out(
    error: Exception, expected: str, failing: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    failing.append(error)
    assert cli.main([]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith(expected)
    assert shown.count("\n") == 1


def test_debug_shows_the_traceback(failing: list[BaseException]) -> None:
    failing.append(ZeroDivisionError("oops"))
    with pytest.raises(ZeroDivisionError):
        cli.main(["--debug"])


def test_interrupt_has_its_own_exit_code(failing: list[BaseException]) -> None:
    failing.append(KeyboardInterrupt())
    assert cli.main([]) == 130


def test_interrupt_is_told(failing: list[BaseException], capsys: pytest.CaptureFixture[str]) -> None:
    failing.append(KeyboardInterrupt())
    cli.main([])
    assert capsys.readouterr().err == "penstock: interrupted\n"


def test_sigterm_is_an_interrupt_with_an_exit_code_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wait_for_the_end(args: argparse.Namespace) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(60)
        raise AssertionError("the signal did not come")

    before = signal.getsignal(signal.SIGTERM)
    parsed = argparse.Namespace(func=wait_for_the_end)
    monkeypatch.setattr(cli, "build_parser", lambda: Mock(parse_args=Mock(return_value=parsed)))
    try:
        signal.signal(
            signal.SIGTERM, signal.SIG_IGN
        )  # without the command's handler this test fails, not pytest
        assert cli.main([]) == 143
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err == "penstock: interrupted\n"


@pytest.mark.kafka(topics={"orders": 1})
def test_sigterm_ends_produce_as_an_interrupt_does(kafka: FakeKafka) -> None:
    command = [sys.executable, "-m", "penstock", "produce", "orders", "-b", kafka.bootstrap_servers]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        try:
            process.stdin.write("one\n")
            process.stdin.flush()
            deadline = time.monotonic() + 60
            while not kafka.records("orders") and time.monotonic() < deadline:
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)  # it waits for the next line
            told = process.stderr.read()
            assert process.wait(60) == 143, told
        finally:
            process.kill()
    assert "interrupted after 1 line; 1 record sent, 1 of them acknowledged" in told
    assert "1 record acknowledged by orders" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["produce", "orders", "--key-feild", "id"], "--key-feild id; did you mean --key-field?"),
        (["broker", "start", "--prot=9092"], "--prot=9092; did you mean --port?"),
        (["produce", "orders", "file", "--nothing-like-it"], "unrecognized arguments: --nothing-like-it"),
    ],
)
def test_a_misspelled_option_is_told_with_the_one_that_was_meant(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(arguments)
    said = capsys.readouterr().err
    assert said.endswith(f"{told}\n")
    assert said.startswith(f"usage: penstock {arguments[0]} ")
