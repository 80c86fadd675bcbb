# SPDX-License-Identifier: Apache-2.0
"""The configuration of one producer: read and checked once, then frozen.

Each component is handed the few values that it needs; only the producer itself sees the whole. The options are
described in one table, `keys.KEYS`; a test holds the fields below against it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.config.input import ConfigSource, read_values
from penstock.config.keys import KEYS
from penstock.config.kinds import Password
from penstock.config.plugins import Plugins, load_plugins, without_plugins
from penstock.config.rules import apply_rules, security_of
from penstock.config.security_keys import SECURITY_NAMES
from penstock.serializers import Serializer

if TYPE_CHECKING:
    from penstock.security.settings import SecuritySettings

_SECURITY = frozenset(SECURITY_NAMES)

# For names only: nothing but the generated client.id depends on how many producers a process has made.
_producer_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ProducerConfig:
    """All options of a producer, with Kafka's names in snake case.

    Attributes:
        explicit: dotted names of the options that the user set; all others have their defaults.
        acks: -1 (all), 0 or 1.
        security: how to connect to brokers; None means plain TCP without a proxy. Nothing of `penstock.security` is
            imported then.
        security_options: the options of TLS, SASL and proxies that the user set, by their dotted names.
    """

    explicit: frozenset[str]
    security: SecuritySettings | None
    security_options: Mapping[str, Any]

    bootstrap_servers: tuple[str, ...]
    key_serializer: Serializer
    value_serializer: Serializer
    acks: int
    retries: int
    buffer_memory: int
    compression_type: str

    batch_size: int
    linger_ms: int
    delivery_timeout_ms: int
    request_timeout_ms: int
    max_block_ms: int
    max_request_size: int
    client_id: str
    client_dns_lookup: str
    connections_max_idle_ms: int
    partitioner: Any | None
    partitioner_ignore_keys: bool
    send_buffer_bytes: int
    receive_buffer_bytes: int
    security_protocol: str

    max_in_flight_requests_per_connection: int
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    interceptors: tuple[Any, ...]
    partitioner_adaptive_partitioning_enable: bool
    partitioner_availability_timeout_ms: int
    partitioner_rack_aware: bool
    client_rack: str
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    buffer_memory_allocation_strategy: str

    bootstrap_resolve_timeout_ms: int
    metadata_max_age_ms: int
    metadata_max_idle_ms: int
    metadata_recovery_strategy: str
    metadata_recovery_rebootstrap_trigger_ms: int
    metadata_cluster_check_enable: bool
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    socket_connection_setup_timeout_ms: int
    socket_connection_setup_timeout_max_ms: int
    broker_version_fallback: str | None
    metrics_num_samples: int
    metrics_sample_window_ms: int
    metrics_recording_level: str

    enable_idempotence: bool
    transactional_id: str | None
    transaction_timeout_ms: int
    transaction_two_phase_commit_enable: bool
    enable_metrics_push: bool
    metric_reporters: tuple[Any, ...]
    auto_include_jmx_reporter: bool | None
    tracing: Any | None
    glass_box: str | None
    glass_box_token: Password | None
    config_providers: tuple[str, ...]
    security_providers: str | None

    @classmethod
    def from_user(
        cls, config: ConfigSource = None, options: Mapping[str, Any] | None = None
    ) -> ProducerConfig:
        """Read a configuration, check it, and make the objects it names.

        Args:
            config: a mapping, or the path of a properties file.
            options: more options, usually keywords. In both places a name may be dotted or in snake case.

        Raises:
            ConfigError: anything wrong with it; what was made until then is closed.
            TypeError: `config` is neither a mapping nor a path.
        """
        values, explicit, written = read_values(config, options or {})
        apply_rules(values, explicit)
        if values["client.id"] is None:
            values["client.id"] = _generated_client_id(values["transactional.id"])
        security = security_of(values, explicit, written)
        plugins = load_plugins(values)
        plain = without_plugins(values)
        options = {name: plain.pop(name) for name in SECURITY_NAMES if name in plain}
        fields = {KEYS[name].field_name: value for name, value in plain.items()}
        return cls(
            explicit=explicit, security=security, security_options=options, **fields, **plugins._asdict()
        )

    def as_dict(self) -> dict[str, Any]:
        """All options by their dotted names. A secret is a Password, which does not show itself."""
        options = self.security_options
        return {
            name: options.get(name, key.default) if name in _SECURITY else getattr(self, key.field_name)
            for name, key in KEYS.items()
        }

    def close_plugins(self) -> None:
        """Close serializers, partitioner and interceptors; errors are logged."""
        self.plugins.close()

    @property
    def plugins(self) -> Plugins:
        """The objects of the application."""
        return Plugins(
            self.key_serializer,
            self.value_serializer,
            self.partitioner,
            self.interceptors,
            self.metric_reporters,
            self.tracing,
        )

    def __repr__(self) -> str:
        values = self.as_dict()
        shown = ", ".join(f"{name}={KEYS[name].show(values[name])}" for name in self._worth_showing())
        return f"ProducerConfig({shown})"

    def _worth_showing(self) -> list[str]:
        """The client's name, and whatever the user set; some fifty defaults would hide it."""
        return ["client.id", *(name for name in KEYS if name in self.explicit and name != "client.id")]


def _generated_client_id(transactional_id: str | None) -> str:
    return f"producer-{transactional_id or next(_producer_numbers)}"
