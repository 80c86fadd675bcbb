# SPDX-License-Identifier: Apache-2.0
"""What one-shot requests need to know of a configuration.

Usually the configuration is that of a producer. The options that matter here are read and checked as a producer's are,
by the same table; all others are passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from penstock._time import ExponentialBackoff
from penstock.config.input import read_some
from penstock.config.kinds import parse_address
from penstock.config.rules import apply_backoffs
from penstock.errors import ConfigError
from penstock.network.resolver import Endpoint
from penstock.network.settings import CONNECTION_OPTIONS, NetworkSettings

DEFAULT_CLIENT_ID = "penstock-control"
# Brokers work on the requests of one connection one after the other; a few more keep the wire busy.
DEFAULT_MAX_IN_FLIGHT = 16

# security.protocol is among them so that it is refused until there is more than one: to pass over it would send in the
# clear what was to be encrypted.
_OPTIONS: Final = frozenset(
    {
        "bootstrap.servers",
        "client.id",
        "retry.backoff.ms",
        "retry.backoff.max.ms",
        "security.protocol",
        *CONNECTION_OPTIONS,
    }
)


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
            ConfigError: bootstrap.servers is missing, a value is wrong, an option is given twice, or the configuration
                asks for TLS or SASL.
        """
        if not isinstance(config, Mapping):
            raise ConfigError(f"the configuration must be a mapping of options, not {type(config).__name__}")
        values, explicit = read_some(config, _OPTIONS)
        apply_backoffs(values, explicit)
        network = NetworkSettings.from_options(
            values,
            client_id=DEFAULT_CLIENT_ID if values["client.id"] is None else values["client.id"],
            max_in_flight=max_in_flight,
            cluster_check=True,
        )
        backoff = ExponentialBackoff(values["retry.backoff.ms"], values["retry.backoff.max.ms"])
        bootstrap = tuple(Endpoint(*parse_address(server)) for server in values["bootstrap.servers"])
        return cls(bootstrap, network, backoff)
