# SPDX-License-Identifier: Apache-2.0
"""What one-shot requests need to know of a configuration.

Usually the configuration is that of a producer, so options that mean nothing here are passed over. What must not be
passed over are options whose absence would change whom we talk to and how: those of TLS and SASL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from penstock._arguments import why_not_sendable
from penstock._time import ExponentialBackoff
from penstock._version import __version__
from penstock.errors import ConfigError
from penstock.network.resolver import Endpoint, parse_bootstrap
from penstock.network.settings import NetworkSettings

DEFAULT_CLIENT_ID = "penstock-control"
# Brokers work on the requests of one connection one after the other; a few more keep the wire busy.
DEFAULT_MAX_IN_FLIGHT = 16

# Options with a number: their default, those of the producer's options with the same names.
_NUMBERS: dict[str, float] = {
    "request.timeout.ms": 30_000,
    "retry.backoff.ms": 100,
    "retry.backoff.max.ms": 1000,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1000,
    "socket.connection.setup.timeout.ms": 10_000,
    "socket.connection.setup.timeout.max.ms": 30_000,
    "connections.max.idle.ms": 540_000,
    "send.buffer.bytes": -1,
    "receive.buffer.bytes": 32_768,
}
_MAY_BE_NEGATIVE = frozenset({"connections.max.idle.ms", "send.buffer.bytes", "receive.buffer.bytes"})
_TEXTS = ("client.id", "client.dns.lookup", "security.protocol")
_NAMES = ("bootstrap.servers", *_NUMBERS, *_TEXTS)
_DNS_LOOKUPS = ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only")


class ControlSettings(NamedTuple):
    """Whom to ask first, and how patiently.

    Attributes:
        bootstrap: the servers to start from.
        network: settings of the connections.
        backoff: the waits before something is tried again.
    """

    bootstrap: tuple[Endpoint, ...]
    network: NetworkSettings
    backoff: ExponentialBackoff

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], max_in_flight: int = DEFAULT_MAX_IN_FLIGHT
    ) -> ControlSettings:
        """Read the few options that matter here, by their dotted names or in snake case.

        Args:
            config: options; those of a producer that mean nothing here are ignored.
            max_in_flight: requests of one connection that may wait for their answer.

        Raises:
            ConfigError: bootstrap.servers is missing, a value is of the wrong kind, an option is given twice, or the
                configuration asks for TLS or SASL.
        """
        given = _known_options(config)
        numbers = {name: _number(name, given.get(name, default)) for name, default in _NUMBERS.items()}
        if "reconnect.backoff.ms" in given and "reconnect.backoff.max.ms" not in given:
            # As for the producer: who sets one wait wants that wait.
            numbers["reconnect.backoff.max.ms"] = numbers["reconnect.backoff.ms"]
        protocol = _text("security.protocol", given.get("security.protocol", "PLAINTEXT"))
        if protocol.upper() != "PLAINTEXT":
            raise ConfigError(
                f"security.protocol={protocol} is not there yet: TLS and SASL are to come",
                "security.protocol",
            )
        lookup = _text("client.dns.lookup", given.get("client.dns.lookup", _DNS_LOOKUPS[0]))
        if lookup not in _DNS_LOOKUPS:
            raise ConfigError(
                f"client.dns.lookup must be one of {', '.join(_DNS_LOOKUPS)}, not {lookup!r}",
                "client.dns.lookup",
            )
        network = NetworkSettings(
            client_id=_text("client.id", given.get("client.id", DEFAULT_CLIENT_ID)),
            max_in_flight=max_in_flight,
            reconnect_backoff_ms=numbers["reconnect.backoff.ms"],
            reconnect_backoff_max_ms=numbers["reconnect.backoff.max.ms"],
            connection_setup_timeout_ms=numbers["socket.connection.setup.timeout.ms"],
            connection_setup_timeout_max_ms=numbers["socket.connection.setup.timeout.max.ms"],
            request_timeout_ms=numbers["request.timeout.ms"],
            connections_max_idle_ms=numbers["connections.max.idle.ms"],
            send_buffer_bytes=int(numbers["send.buffer.bytes"]),
            receive_buffer_bytes=int(numbers["receive.buffer.bytes"]),
            client_dns_lookup=lookup,
            client_software_version=__version__,
        )
        backoff = ExponentialBackoff(numbers["retry.backoff.ms"], numbers["retry.backoff.max.ms"])
        return cls(_servers(given), network, backoff)


def _known_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options that matter here, by dotted name; None is the same as not given."""
    if not isinstance(config, Mapping):
        raise ConfigError(f"the configuration must be a mapping of options, not {type(config).__name__}")
    given: dict[str, Any] = {}
    for name, value in config.items():
        if not isinstance(name, str):
            raise ConfigError(f"the name of an option must be a str, not {type(name).__name__}: {name!r}")
        dotted = name.replace("_", ".")
        if dotted not in _NAMES or value is None:
            continue
        if dotted in given:
            raise ConfigError(f"{dotted} is given twice, as {name} and in another spelling", dotted)
        given[dotted] = value
    return given


def _servers(given: Mapping[str, Any]) -> tuple[Endpoint, ...]:
    servers = given.get("bootstrap.servers")
    if servers is None:
        raise ConfigError("bootstrap.servers is missing: give at least one host:port", "bootstrap.servers")
    if not isinstance(servers, str):
        if not isinstance(servers, Iterable) or isinstance(servers, bytes | Mapping):
            raise _wrong_kind("bootstrap.servers", "a text or a list of texts", servers)
        servers = list(servers)
        for server in servers:
            _text("bootstrap.servers", server)
    return tuple(parse_bootstrap(servers))


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _wrong_kind(name, "a number", value)
    try:
        number = float(value)
    except ValueError:
        raise ConfigError(f"{name} must be a number, not {value!r}", name) from None
    # Also refuses what is not a number at all (nan), which compares false with everything.
    if not (number >= 0 or name in _MAY_BE_NEGATIVE) or number in (float("inf"), float("-inf")):
        raise ConfigError(f"{name} must be a finite number that is not negative: {value!r}", name)
    return number


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong_kind(name, "a text", value)
    reason = why_not_sendable(value)
    if reason is not None:
        raise ConfigError(f"{name} cannot be sent: {reason}", name)
    return value


def _wrong_kind(name: str, wanted: str, value: Any) -> ConfigError:
    return ConfigError(f"{name} must be {wanted}, not {type(value).__name__}", name)
