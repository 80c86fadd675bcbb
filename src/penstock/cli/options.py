# SPDX-License-Identifier: Apache-2.0
"""The options that every command with a producer has, and what the commands need of a producer."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import ConfigError
from penstock.types import RecordMetadata

if TYPE_CHECKING:
    from penstock.config.input import PlacedOptions

    SubParsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001  # it has no public name

DEFAULT_BOOTSTRAP = "localhost:9092"

WATCH_ADDRESS = "127.0.0.1:0"  # of --watch: any free port, for this machine alone

INTERRUPT_GRACE = 5.0  # seconds that accepted records have left after Ctrl-C

OnDelivery = Callable[[RecordMetadata | None, BaseException | None], None]


class CommandError(Exception):
    """A command cannot go on; the text is for the user and complete: cause and way out."""


class UsageError(CommandError):
    """The command line is wrong, which the parser cannot see."""


class DeliveryLike(Protocol):
    """What the commands need of a Delivery."""

    def done(self) -> bool:
        """Whether the outcome is known."""
        ...

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, or None when the record was acknowledged."""
        ...


class ProducerLike(Protocol):
    """What the commands need of a producer; tests hand in their own."""

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: Any = None,
    ) -> DeliveryLike:
        """Accept a record, and return its future."""
        ...

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every accepted record has its outcome."""
        ...

    def close(self, timeout: float | None = None) -> None:
        """Flush for at most `timeout` seconds, then give up what is left."""
        ...

    def metrics(self) -> Mapping[str, Any]:
        """Counters by group and name."""
        ...


# Makes a producer with options.
OpenProducer = Callable[[Mapping[str, str]], ProducerLike]


def close_producer(producer: ProducerLike, *, interrupted: bool) -> bool:
    """Close it, for a short while only after Ctrl-C, and at once after a second one; whether there was one."""
    try:
        producer.close(INTERRUPT_GRACE if interrupted else None)
    except KeyboardInterrupt:
        producer.close(0)
        return True
    return interrupted


def add_producer_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options -b, -X and --config."""
    group = parser.add_argument_group("producer")
    group.add_argument(
        "-b",
        "--bootstrap-server",
        "--bootstrap-servers",
        metavar="HOST:PORT[,...]",
        help=f"brokers to contact first (default: {DEFAULT_BOOTSTRAP}, unless --config or -X names them)",
    )
    group.add_argument(
        "-X",
        dest="producer_options",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=parse_option,
        help="any producer option, for example -X linger.ms=20 -X compression.type=zstd; may be repeated; secrets as "
        "${env:NAME} or ${file:PATH}",
    )
    group.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="a properties file with producer options; the command line overrides it",
    )


def add_watch_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option --watch."""
    parser.add_argument(
        "--watch",
        action="store_true",
        help="show what the producer does on a live page at 127.0.0.1, and say where; see also `penstock top`",
    )


def tell_pages() -> None:
    """Say where the pages of this process are."""
    from penstock.watching import glass_box

    for url in glass_box.urls():
        print(f"penstock: the producer can be watched at {url}", file=sys.stderr)


def parse_option(text: str, example: str = "linger.ms=20") -> tuple[str, str]:
    """Split NAME=VALUE; an error has the example."""
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        # What was written is not shown: it may be a password behind the wrong separator.
        raise argparse.ArgumentTypeError(f"it must be NAME=VALUE, for example {example}")
    return name.strip(), value


def producer_config(args: argparse.Namespace, defaults: Mapping[str, str] | None = None) -> PlacedOptions:
    """Everything the user said, by dotted name. Later wins: defaults, --config, the environment, --watch, -X, -b.

    What the environment says is not in it: the producer asks for that where it has no option.

    Raises:
        ConfigError: the properties file cannot be read, or -X has a secret that others could see.
    """
    from penstock.config.environment import GLASS_BOX, of_file
    from penstock.config.input import PlacedOptions

    config = PlacedOptions({"bootstrap.servers": DEFAULT_BOOTSTRAP, **(defaults or {})})
    if args.config is not None:
        found = read_config_file(args.config)
        of_the_file = of_file(found)
        _override(config, of_the_file)
        config.places.update(_dotted({name: found.places[name] for name in of_the_file}))
    if getattr(args, "watch", False):
        _override(config, {GLASS_BOX: WATCH_ADDRESS})
    _refuse_secrets(dict(args.producer_options))
    _override(config, dict(args.producer_options))
    if args.bootstrap_server is not None:
        _override(config, {"bootstrap.servers": args.bootstrap_server})
    return config


def _refuse_secrets(options: Mapping[str, str]) -> None:
    """Keep secrets off the command line, which everybody on this machine can see in the list of processes."""
    from penstock.config.secrets import given_in_the_clear

    for name in given_in_the_clear(options):
        raise ConfigError(
            f"-X {name}=...: a secret on the command line can be seen by others in the list of processes; write it "
            f"into a file for --config, or -X '{name}=${{env:NAME}}' or -X '{name}=${{file:PATH}}'",
            name,
        )


def _override(config: PlacedOptions, more: Mapping[str, str]) -> None:
    """Put options in the place of those that mean the same, in whatever spelling, instead of contradicting them."""
    from penstock.config.names import try_meaning

    meanings = {try_meaning(name) or name for name in more}
    for name in [name for name in config if (try_meaning(name) or name) in meanings]:
        del config[name]
        config.places.pop(name, None)
    config.update(_dotted(more))


def read_config_file(path: Path) -> PlacedOptions:
    """The options of a properties file, with their lines.

    Raises:
        ConfigError: it cannot be read.
    """
    from penstock.config.input import PlacedOptions, place_in_file, unreadable
    from penstock.config.properties import parse_properties, read_properties

    try:
        text = read_properties(str(path))
    except (OSError, ValueError) as error:  # ValueError: not UTF-8
        # One about UTF-8 holds all that was read.
        raise unreadable(str(path), error) from (error if isinstance(error, OSError) else None)
    options = PlacedOptions({})
    for found in parse_properties(text, repr(str(path))):
        options[found.name] = found.value
        options.places[found.name] = place_in_file(str(path), found.line)
    return options


def _dotted(options: Mapping[str, str]) -> dict[str, str]:
    # One spelling, so that -X linger_ms overrides linger.ms of the file instead of contradicting it.
    return {name.replace("_", "."): value for name, value in options.items()}
