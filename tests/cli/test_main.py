# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from unittest.mock import Mock

import pytest

import penstock
from penstock import _compiled
from penstock.cli import main as cli
from penstock.cli.options import CommandError, UsageError
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


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConfigError("unknown option linger"), "unknown option linger (see -X, --config and -b in the"),
        (UsageError("--yes is for --abort-left-over"), "--yes is for --abort-left-over"),
    ],
)
def test_wrong_use_is_code_2(
    error: Exception, told: str, failing: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    failing.append(error)
    assert cli.main([]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"penstock: {told}")
    assert shown.count("\n") == 1
    assert cli.main(["--debug"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["produce", "orders", "-X", "lingr.ms=4"],
        ["produce", "orders", "-b", "localhost"],
        ["produce", "orders", "--config", "/nowhere/producer.properties"],
        ["produce", "orders", "--key-field", "id"],
        ["perf", "--topic", "orders", "--num-records", "1", "--record-size", "1", "-X", "acks=2"],
        ["recover", "--yes"],
        ["recover", "-X", "linger.ms=4", "-b", "localhost"],
        ["top", "ftp://localhost"],
        ["top", "--key", "k"],
        ["run"],
    ],
)
def test_a_wrong_command_line_is_code_2_in_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_help_tells_the_exit_codes(
    parse: Callable[..., object], capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["--help"], ["produce", "--help"]):
        with pytest.raises(SystemExit):
            parse(*words)
        shown = capsys.readouterr().out
        told = shown[shown.index("exit codes:") :]
        for code in ("0", "1", "2", "130", "143"):
            assert re.search(rf"\b{code}\b", told)


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
        (["produce", "orders", "--key-feild", "id"], "; did you mean --key-field?"),
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
    assert f"{told} (see 'penstock {arguments[0]}" in said
    assert said.startswith(f"penstock {arguments[0]}")
    assert said.endswith(" --help')\n")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        "produce t --sasl.password=hunter2",
        "--sasl.password=hunter2 produce t",
        "broker start --property ssl.keystore.password:hunter2",
    ],
)
def test_a_secret_at_a_wrong_place_is_not_shown(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(words.split())
    assert "hunter2" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "producce",
            "penstock: error: unknown command 'producce'; did you mean 'produce'? (see 'penstock --help')",
        ),
        (
            "xyz",
            "penstock: error: unknown command 'xyz'; there are run, recover, produce, perf, top, broker, demo (see",
        ),
        (
            "broker strt",
            "penstock broker: error: unknown command 'strt'; did you mean 'start'? (see 'penstock broker --help')",
        ),
        (
            "produce",
            "penstock produce: error: the following arguments are required: TOPIC (see 'penstock produce --help')",
        ),
        ("--verson", "unrecognized arguments: --verson; did you mean --version? (see 'penstock --help')"),
        ("--nothing-like-it", "penstock: error: unrecognized arguments: --nothing-like-it (see"),
        (
            "broker --nam=x status",
            "penstock broker: error: unrecognized arguments: --nam=x; write the options of a command behind its name",
        ),
        (
            "-b kafka:9092 produce t",
            "penstock: error: unrecognized arguments: -b; write the options of a command behind its name (see",
        ),
        (
            "--debug broker --name x status",
            "penstock broker: error: unrecognized arguments: --name; write the",
        ),
        ("produce t --format jsn", "argument --format: 'jsn' is not known; did you mean 'json'? (see"),
        ("produce t --key x", "ambiguous option: --key could match --key-separator, --key-field (see"),
        ("produce t --partition x", "--partition: it must be a whole number, at least 0, not 'x' (see"),
        ("produce t -X x", "-X: it must be NAME=VALUE, for example linger.ms=20 (see"),
        ("run orders.toml --var x", "--var: it must be NAME=VALUE, for example servers=broker:9092 (see"),
        ("produce t --header x", "--header: it must be NAME=VALUE, for example host=web1, not 'x' (see"),
        ("perf --num-records 0", "--num-records: it must be a whole number, at least 1, not '0' (see"),
        ("perf --record-size 1.5", "--record-size: it must be a whole number, at least 1, not '1.5' (see"),
        ("perf --warmup -1", "--warmup: it must be a whole number, at least 0, not '-1' (see"),
        ("perf --throughput many", "--throughput: it must be a number, such as 1000 or 0.5, not 'many' (see"),
        ("perf --throughput nan", "--throughput: it must be a number, such as 1000 or 0.5, not 'nan' (see"),
        ("demo --records abc", "--records: it must be a whole number, at least 1000 so that each task has"),
        ("demo --records 999", "--records: it must be a whole number, at least 1000 so that each task has"),
        ("broker start --port x", "--port: it must be a port, 1 to 65535, not 'x' (see"),
        ("broker start --port 65536", "--port: it must be a port, 1 to 65535, not '65536' (see"),
        ("broker start --nodes two", "--nodes: it must be a whole number, at least 1, not 'two' (see"),
        (
            "broker start --property x",
            "--property: it must be KEY=VALUE, for example auto.create.topics.enable",
        ),
        ("broker start --name a/b", "argument --name: 'a/b' is no name for a cluster: letters, digits"),
        ("broker stop --name a/b", "argument --name: 'a/b' is no name for a cluster: letters, digits"),
        ("broker start --kafka 4.3", "argument --kafka: '4.3' is not known; did you mean '4.3.1'? (see"),
    ],
)
def test_what_the_parser_refuses_is_one_line_that_says_what_is_expected(
    words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words.split())
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.endswith(" --help')\n")
    assert said.count("\n") == 1


@pytest.mark.parametrize("name", ["--boot", "--bootstrap", "--bootstrap-serv", "--bootstrap-servers"])
def test_two_names_of_one_option_have_one_abbreviation(
    parse: Callable[..., argparse.Namespace], name: str
) -> None:
    assert parse("produce", "orders", name, "kafka:9092").bootstrap_server == "kafka:9092"
