# SPDX-License-Identifier: Apache-2.0
"""The keywords of a Producer for type checkers: what names there are, and what each takes.

A test holds it against the table in `keys`. Values may be text, as in properties files. The dotted names of a
mapping are not here: `Producer(mapping)` takes any mapping and checks it when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, SupportsIndex, TypedDict


class SerializerLike(Protocol):
    """Anything that serializes; see `penstock.Serializer`."""

    def serialize(self, topic: str, headers: Any, data: Any, /) -> bytes | None:
        """Give the bytes of `data`."""


class PartitionerLike(Protocol):
    """Anything that chooses partitions; see `penstock.Partitioner`."""

    def partition(self, *args: Any, **named: Any) -> int:
        """Choose one."""


class InterceptorLike(Protocol):
    """Anything that sees records on their way; see `penstock.Interceptor`."""

    def on_send(self, record: Any, /) -> Any:
        """See one before it is serialized."""

    def on_acknowledgement(self, *args: Any, **named: Any) -> object:
        """Learn what became of it."""


Flag = bool | str
Number = SupportsIndex | str
Names = str | list[str] | tuple[str, ...]
# An object, a class of them, a function of one argument, or a name of the form "module:attribute".
SerializerOption = SerializerLike | type[SerializerLike] | Callable[[Any], bytes | None] | str | None
PartitionerOption = PartitionerLike | type[PartitionerLike] | str | None
InterceptorsOption = Sequence[InterceptorLike | type[InterceptorLike] | str] | str


class ProducerOptions(TypedDict, total=False):
    """Every option that a Producer takes as a keyword; docs/config.md says what each does."""

    bootstrap_servers: Names
    key_serializer: SerializerOption
    value_serializer: SerializerOption
    acks: str | int
    retries: Number
    buffer_memory: Number
    compression_type: str
    batch_size: Number
    linger_ms: Number
    delivery_timeout_ms: Number
    request_timeout_ms: Number
    max_block_ms: Number
    max_request_size: Number
    client_id: str | None
    client_dns_lookup: str
    connections_max_idle_ms: Number
    partitioner: PartitionerOption
    partitioner_class: PartitionerOption
    partitioner_ignore_keys: Flag
    send_buffer_bytes: Number
    receive_buffer_bytes: Number
    security_protocol: str
    max_in_flight_requests_per_connection: Number
    compression_gzip_level: Number
    compression_lz4_level: Number
    compression_zstd_level: Number
    interceptors: InterceptorsOption
    interceptor_classes: InterceptorsOption
    partitioner_adaptive_partitioning_enable: Flag
    partitioner_availability_timeout_ms: Number
    partitioner_rack_aware: Flag
    client_rack: str
    retry_backoff_ms: Number
    retry_backoff_max_ms: Number
    buffer_memory_allocation_strategy: str
    bootstrap_resolve_timeout_ms: Number
    metadata_max_age_ms: Number
    metadata_max_idle_ms: Number
    metadata_recovery_strategy: str
    metadata_recovery_rebootstrap_trigger_ms: Number
    metadata_cluster_check_enable: Flag
    reconnect_backoff_ms: Number
    reconnect_backoff_max_ms: Number
    socket_connection_setup_timeout_ms: Number
    socket_connection_setup_timeout_max_ms: Number
    metrics_num_samples: Number
    metrics_sample_window_ms: Number
    metrics_recording_level: str
    enable_idempotence: Flag
    transactional_id: str | None
    transaction_timeout_ms: Number
    transaction_two_phase_commit_enable: Flag
    enable_metrics_push: Flag
    metric_reporters: Names
    config_providers: Names
    security_providers: str | None
