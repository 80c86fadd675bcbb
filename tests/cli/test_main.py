# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

import penstock
from penstock import _compiled
from penstock.cli import main as cli
from penstock.cli.options import CommandError
from penstock.devbroker.paths import KAFKA_VERSION
from penstock.errors import (
    BootstrapError,
    ConfigError,
    KafkaError,
    KafkaTimeoutError,
    NetworkError,
    UnknownTopicOrPartitionError,
    broker_error,
)


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
        timeout=60,
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
