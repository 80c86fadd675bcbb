# SPDX-License-Identifier: Apache-2.0
"""The command `penstock`: joins the commands, and turns every error into one line and an exit code.

Exit codes: 0 all went well; 1 it did not, and a line on standard error says why; 2 the command line or an option of the
producer is wrong; 130 interrupted with Ctrl-C; 143 ended with SIGTERM, which does what Ctrl-C does.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Self

from penstock import _compiled
from penstock._escaping import escaped, with_notes
from penstock.cli.options import CommandError, UsageError
from penstock.cli.parser import EXIT_USAGE, CommandParser
from penstock.control.reach import is_answer
from penstock.errors import (
    BootstrapError,
    ConfigError,
    KafkaError,
    KafkaTimeoutError,
    NotKafkaError,
    TopicAuthorizationError,
)

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143

_COMMANDS = (
    "run",
    "recover",
    "produce",
    "perf",
    "top",
    "broker",
    "demo.command",
)  # modules below this package, in the order of the help text

_START_A_BROKER = "check the address with -b; `penstock broker start` starts a broker for development"

# What the user can do about an error; the first class that fits counts.
_WAYS_OUT: tuple[tuple[type[KafkaError], str], ...] = (
    (BootstrapError, _START_A_BROKER),
    (ConfigError, "see -X, --config and -b in the command's --help"),
    (NotKafkaError, _START_A_BROKER),
    (TopicAuthorizationError, "ask for the right to write to the topic, or name another one"),
    (KafkaTimeoutError, _START_A_BROKER),
)

_EPILOG = """\
examples:
  penstock broker start                       a real Apache Kafka on this machine
  echo hello | penstock produce greetings     one record
  penstock produce orders orders.jsonl --format json --key-field id
  penstock run orders.toml --dry-run          what a pipeline on Spark would do
  penstock perf --topic test --num-records 1000000 --record-size 100
  penstock top                                see what producers do, live
  penstock COMMAND --help                     options and more examples

exit codes: 0 all was done; 1 something was not; 2 the command line, or an option of the producer, is wrong;
130 after Ctrl-C; 143 after SIGTERM. `penstock run` also has 3: a row did not meet an expectation.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and give its exit code."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if getattr(args, "func", None) is None:
        parser.print_help(sys.stderr)
        return EXIT_USAGE
    debug = bool(getattr(args, "debug", False))
    handler = logging.StreamHandler()
    handler.setFormatter(
        _OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s" if debug else "penstock: %(message)s")
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    ours = logging.getLogger("penstock")
    level = ours.level
    if debug:
        ours.setLevel(
            logging.DEBUG
        )  # Spark's gateway, for one, logs every call with its arguments, and so secrets
    try:
        with SigtermAsInterrupt() as sigterm:
            exit_code = _run(args, debug=debug)
    finally:
        ours.setLevel(level)
    return EXIT_TERMINATED if exit_code == EXIT_INTERRUPTED and sigterm.received else exit_code


class SigtermAsInterrupt:
    """While it is entered, SIGTERM raises KeyboardInterrupt, so that a command cleans up after either.

    Outside of the main thread, where Python delivers no signals, it changes nothing.
    """

    def __init__(self) -> None:
        self.received = False
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.received = True
        raise KeyboardInterrupt


def _run(args: argparse.Namespace, *, debug: bool) -> int:
    """Run the command that was parsed, and turn what it raises into an exit code."""
    try:
        return int(args.func(args))
    except KeyboardInterrupt:
        print("penstock: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`| head`). Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except Exception as error:
        exit_code = EXIT_USAGE if _is_wrong_use(error) else EXIT_FAILED
        if not debug:
            report_error(error)
        elif exit_code == EXIT_FAILED:
            raise
        else:
            traceback.print_exception(error)
        return exit_code


def _is_wrong_use(error: Exception) -> bool:
    """Whether what the user wrote is wrong. A name that cannot be resolved may be right a moment later."""
    return isinstance(error, ConfigError | UsageError) and not isinstance(error, BootstrapError)


class _OneLine(logging.Formatter):
    """Log lines for a terminal: what others wrote can neither end a line nor overwrite it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - so it is called there
        """Return the line without a traceback."""
        record.message = escaped(record.message)
        return super().formatMessage(record)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = CommandParser(
        prog="penstock",
        description="A Kafka producer: send records, measure, and run a broker for development.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action=_ShowVersion, nargs=0, help="show the version and what runs, and exit"
    )
    add_debug_argument(parser)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name in _COMMANDS:
        importlib.import_module(f"penstock.cli.{name}").add_parser(subparsers)
    for subparser in subparsers.choices.values():
        add_debug_argument(subparser)
    return parser


def add_debug_argument(parser: argparse.ArgumentParser) -> None:
    """--debug, before or behind the command's name."""
    # Without SUPPRESS the default of the command's parser would undo the one given before the command's name.
    parser.add_argument(
        "--debug",
        action="store_true",
        default=argparse.SUPPRESS,
        help="show tracebacks and the producer's log",
    )


def report_error(error: Exception) -> None:
    """One line on standard error: what happened, and what to do about it."""
    print(f"penstock: {describe_error(error)}", file=sys.stderr)


def describe_error(error: BaseException) -> str:
    """An error in one line, with its way out."""
    text = escaped(" ".join(with_notes(error).split())) or type(error).__name__
    if isinstance(error, KafkaTimeoutError) and is_answer(error.__cause__):
        return text  # brokers did answer: their address is not the trouble
    for cls, way_out in _WAYS_OUT:
        if isinstance(error, cls):
            return f"{text} ({way_out})"
    if isinstance(error, KafkaError | OSError | CommandError):
        return text
    return f"{type(error).__name__}: {text} (--debug shows where)"


class _ShowVersion(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        del namespace, values, option_string
        print(version_text())
        parser.exit()


def version_text() -> str:
    """Version, implementation, interpreter, and the Kafka that `penstock broker` starts."""
    from penstock import __version__
    from penstock.devbroker.settings import KAFKA_VERSION

    return (
        f"penstock {__version__} ({_compiled.describe()}; development broker: Apache Kafka {KAFKA_VERSION})"
    )
