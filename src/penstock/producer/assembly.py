# SPDX-License-Identifier: Apache-2.0
"""Puts a producer together from its configuration: each part gets the few settings that it needs."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from penstock._events import ClientEvents, current, working_for
from penstock._metrics import MetricsRegistry, MetricValue
from penstock._primitives_cy import CRC32, IGNORED, MURMUR2
from penstock._reporting import MetricsSource, Reporting
from penstock._time import Clock, ExponentialBackoff, SystemClock
from penstock._tracing import ProducerTracing, telling_of_requests
from penstock._version import __version__
from penstock.config.config import ProducerConfig
from penstock.config.kinds import parse_address
from penstock.network import NetworkClient, NetworkMetrics
from penstock.network.backend import NetworkBackend
from penstock.network.resolver import (
    BootstrapSettings,
    DeferredBootstrap,
    bootstrap_nodes,
    resolve_bootstrap,
)
from penstock.network.settings import NetworkSettings
from penstock.network.transport import Endpoint
from penstock.partitioners import Crc32Partitioner
from penstock.producer._interceptors_cy import Interceptors
from penstock.producer.batch._accumulator_cy import AccumulatorSettings, RecordAccumulator
from penstock.producer.batch._buffer_pool_cy import BufferPool
from penstock.producer.batch._partitioner_cy import BuiltInPartitioner, PartitionerSettings, Placement
from penstock.producer.batch._sealing_cy import Sealer
from penstock.producer.guarantee.gate import Gate, OpenGate
from penstock.producer.guarantee.idempotent import IdempotentGate
from penstock.producer.guarantee.transactions.coordinator import (
    ClusterFacts,
    TransactionHooks,
    TransactionSettings,
)
from penstock.producer.guarantee.transactions.manager import TransactionManager
from penstock.producer.io._drain_cy import Drainer
from penstock.producer.io._metrics_cy import SenderMetrics
from penstock.producer.io._sender_cy import Sender, SenderSettings
from penstock.producer.io.client_metrics import ClientMetrics
from penstock.producer.io.converting import Conversions
from penstock.producer.io.thread import Ending, IOThread
from penstock.producer.metadata.metadata import MetadataSettings, ProducerMetadata
from penstock.producer.send._path_cy import SendPath
from penstock.producer.send._send_cy import FastPath
from penstock.producer.send.columns import ColumnSender
from penstock.producer.send.deferring import DeferredSends
from penstock.records.compression import codec
from penstock.records.format import RecordLimit
from penstock.telemetry.watch import TelemetryWatch
from penstock.types import Node

if TYPE_CHECKING:
    from penstock.telemetry.pushing import TelemetryPusher


class ProducerParts(NamedTuple):
    """The parts of one producer that its calls use."""

    config: ProducerConfig
    clock: Clock
    metadata: ProducerMetadata
    accumulator: RecordAccumulator
    send_path: SendPath
    fast_path: FastPath
    entry_path: FastPath  # the same, or what leads to it
    columns: ColumnSender
    sender: Sender
    io_thread: IOThread
    client: NetworkClient
    interceptors: Interceptors
    registry: MetricsRegistry
    client_metrics: ClientMetrics
    sender_metrics: SenderMetrics
    transactions: TransactionManager | None
    reporting: Reporting
    telemetry: TelemetryWatch | None

    def begin_close(self) -> None:
        """Accept nothing more, and let the I/O thread finish what was accepted. Twice is harmless."""
        self.fast_path.enabled = False
        self.send_path.closed = True
        self.accumulator.close()
        self.metadata.close()
        self.io_thread.initiate_close()


def assemble(
    config: ProducerConfig,
    clock: Clock | None = None,
    backend: NetworkBackend | None = None,
    rng: random.Random | None = None,
) -> ProducerParts:
    """Build a producer that has not started.

    Args:
        config: its configuration.
        clock: the time; the simulator passes its own.
        backend: the sockets; the simulator passes its own.
        rng: the random source; the simulator passes a seeded one.

    Raises:
        BootstrapError: no bootstrap server can be resolved, and bootstrap.resolve.timeout.ms is 0.
        ConfigError: a file of certificates or keys cannot be used, or the mechanism of SASL.
    """
    time = clock or SystemClock()
    # Parts that log on threads of others remember the client that they belong to.
    with working_for(ClientEvents(config.client_id, time.now)):
        backend = backend or _backend(config)
        try:
            return _assemble(config, time, backend, rng or random.Random(), reads_system_time=clock is None)
        except BaseException:
            backend.close()  # nobody else would: there is no producer to close
            raise


def _assemble(
    config: ProducerConfig,
    clock: Clock,
    backend: NetworkBackend,
    rng: random.Random,
    *,
    reads_system_time: bool,
) -> ProducerParts:
    wake = backend.selector.wakeup
    network_metrics = NetworkMetrics()
    metadata, client = _network(config, clock, backend, rng, network_metrics)
    accumulator = _accumulator(config, metadata, clock, rng, wake)
    registry, sender_metrics, client_metrics = _metrics(config, network_metrics, clock)
    client_metrics.register_memory(accumulator.pool)
    client_metrics.register_requests(metadata, client.in_flight_count)

    placement, interceptors = _placement(config), Interceptors(config.interceptors)
    # The system's time is read without a call; any other clock is asked.
    wall_ms = None if reads_system_time else clock.wall_ms
    send_path = SendPath(
        accumulator, metadata, (config.key_serializer, config.value_serializer), placement, interceptors,
        _record_limit(config), clock, _tracing(config), wall_ms, wake,
    )  # fmt: skip
    fast_path, accept = _fast_path(accumulator, send_path, interceptors, wall_ms, wake)
    each_by_itself = placement.partitioner is not None or len(interceptors) > 0
    columns = ColumnSender(accumulator, send_path, each_by_itself, clock)

    gate, transactions = _gate(config, accumulator, client, metadata, accept, clock, rng)
    send_path.gate = gate
    client_metrics.register_idempotence(lambda: gate.numbers_all)
    tracing = send_path.tracing
    conversions = Conversions(
        accumulator.sealer, gate, registry, clock, config.max_request_size,
        None if tracing is None else tracing.writes,
    )  # fmt: skip
    drainer = Drainer(accumulator, gate, config.max_request_size)
    sender = Sender(
        _sender_settings(config), accumulator, drainer, metadata, client, rng, sender_metrics, conversions
    )
    if tracing is not None:
        sender.watch_answers(telling_of_requests(tracing))
    metadata.keep_topics = sender.keep_topics
    metadata.keep_nodes = sender.keep_nodes
    sender.on_topic_forgotten = getattr(placement.partitioner, "on_topic_forgotten", None)
    telemetry = _telemetry(
        config, sender, client, metadata, clock, rng, (registry, client_metrics, sender_metrics)
    )
    ending = Ending(accumulator, gate, metadata, client, telemetry)
    io_thread = IOThread(sender, ending, clock, config.request_timeout_ms / 1000)
    return ProducerParts(
        config, clock, metadata, accumulator, send_path, fast_path,
        _entry_path(send_path, fast_path, interceptors), columns, sender, io_thread, client, interceptors,
        registry, client_metrics, sender_metrics, transactions,
        Reporting(config.metric_reporters, MetricsSource(config.client_id, clock, registry, client_metrics.catch_up)),
        telemetry,
    )  # fmt: skip


def _network(
    config: ProducerConfig, clock: Clock, backend: NetworkBackend, rng: random.Random, metrics: NetworkMetrics
) -> tuple[ProducerMetadata, NetworkClient]:
    nodes, deferred = _bootstrap(config, backend, rng)
    metadata = ProducerMetadata(_metadata_settings(config), nodes, rng, backend.selector.wakeup)
    client = NetworkClient(_network_settings(config), backend, metadata, clock, rng, metrics, deferred)
    return metadata, client


def _record_limit(config: ProducerConfig) -> RecordLimit:
    return RecordLimit(
        *min((config.max_request_size, "max.request.size"), (config.buffer_memory, "buffer.memory"))
    )


def _fast_path(
    accumulator: RecordAccumulator,
    send_path: SendPath,
    interceptors: Interceptors,
    wall_ms: Callable[[], int] | None,
    wake: Callable[[], object],
) -> tuple[FastPath, Callable[[bool], None]]:
    """The fast path, and what the gate calls to accept records or to refuse them."""
    tracing = send_path.tracing
    fast_path = FastPath(
        accumulator.fast_topics,
        send_path.limit.size,
        send_path.placement.key_hash,
        wall_ms,
        wake,
        accumulator.appender.append_now,
    )
    fast_path.enabled = allowed = (
        not send_path.serializes
        and send_path.placement.partitioner is None
        and not (len(interceptors) and (interceptors.sees_records or tracing is not None))
        and not (tracing is not None and tracing.has_spans)
    )

    def accept(records: bool) -> None:
        send_path.accepts = records
        fast_path.enabled = records and allowed and not send_path.closed
        accumulator.admit(records)

    def close_fast_path(closed: bool) -> None:
        fast_path.detour = closed

    accumulator.deferred.on_waiting = close_fast_path
    return fast_path, accept


def _entry_path(send_path: SendPath, fast_path: FastPath, interceptors: Interceptors) -> FastPath:
    """What the calls try first: the fast path, or one that adds what tracing or interceptors want."""
    if send_path.tracing is not None:
        return fast_path.led_to_by(send_path.tracing.with_context, None)
    return fast_path.led_to_by(None, send_path.acknowledge) if len(interceptors) else fast_path


def _gate(
    config: ProducerConfig,
    accumulator: RecordAccumulator,
    client: NetworkClient,
    metadata: ProducerMetadata,
    accept: Callable[[bool], None],
    clock: Clock,
    rng: random.Random,
) -> tuple[Gate, TransactionManager | None]:
    """The gate that the configuration asks for; the same as a TransactionManager if it is one."""
    if config.transactional_id is not None:
        cluster = ClusterFacts(client, metadata, clock.now)
        transactions = _transactions(config, accumulator, client, cluster, accept, rng)
        accumulator.deferred.on_failed = transactions.on_not_appended
        metadata.on_refused(transactions.on_refused)
        accept(False)  # until a transaction begins
        accumulator.watches_failures = False  # the transaction's calls report a record that failed
        return transactions, transactions
    if config.enable_idempotence:
        backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        required = "enable.idempotence" in config.explicit
        versions_of = client.api_versions
        return IdempotentGate(
            config.retries, backoff, rng, accept, required=required, versions_of=versions_of
        ), None
    return OpenGate(config.retries), None


def _metrics(
    config: ProducerConfig, network: NetworkMetrics, clock: Clock
) -> tuple[MetricsRegistry, SenderMetrics, ClientMetrics]:
    registry = MetricsRegistry(config.metrics_num_samples, config.metrics_sample_window_ms)
    sender_metrics = SenderMetrics(registry, network.time, clock.now)
    client_metrics = ClientMetrics(registry, network, clock.now(), current())
    client_metrics.register_about(__version__, clock.wall_ms())
    sender_metrics.catch_up = client_metrics.catch_up
    return registry, sender_metrics, client_metrics


def _telemetry(
    config: ProducerConfig,
    sender: Sender,
    client: NetworkClient,
    metadata: ProducerMetadata,
    clock: Clock,
    rng: random.Random,
    metrics: tuple[MetricsRegistry, ClientMetrics, SenderMetrics],
) -> TelemetryWatch | None:
    """What pushes metrics to brokers that ask for them."""
    if not config.enable_metrics_push:
        return None
    registry, client_metrics, sender_metrics = metrics
    about = {"client_rack": config.client_rack, "transactional_id": config.transactional_id}

    def values(now: float) -> list[MetricValue]:
        client_metrics.catch_up(now)
        return registry.values(now)

    def make_pusher(on_instance_id: Callable[[uuid.UUID], object]) -> TelemetryPusher:
        from penstock.telemetry.pushing import TelemetryPusher  # most brokers take none

        resource = {name: text for name, text in about.items() if text}
        timeout = config.request_timeout_ms / 1000
        return TelemetryPusher(client, metadata.nodes, values, resource, clock, rng, timeout, on_instance_id)

    watch = TelemetryWatch(sender, client, metadata.nodes, make_pusher)

    def catch_up(now: float) -> None:
        client_metrics.catch_up(now)
        watch.look_again(client.metrics.connections_created)

    sender_metrics.catch_up = catch_up
    return watch


def _tracing(config: ProducerConfig) -> ProducerTracing | None:
    return None if config.tracing is None else config.tracing.trace_producer(config.client_id)


def _transactions(
    config: ProducerConfig,
    accumulator: RecordAccumulator,
    client: NetworkClient,
    cluster: ClusterFacts,
    accept: Callable[[bool], None],
    rng: random.Random,
) -> TransactionManager:
    settings = TransactionSettings(
        config.transactional_id or "",
        config.transaction_timeout_ms,
        config.retries,
        config.retry_backoff_ms,
        config.retry_backoff_max_ms,
    )
    hooks = TransactionHooks(cluster, accumulator.may_still_be_written, accept, client.wakeup)
    return TransactionManager(settings, hooks, rng)


def _accumulator(
    config: ProducerConfig,
    metadata: ProducerMetadata,
    clock: Clock,
    rng: random.Random,
    wake: Callable[[], None],
) -> RecordAccumulator:
    pool = BufferPool(config.buffer_memory, config.batch_size, now=clock.now)
    sealer = Sealer(codec(config.compression_type, _level(config)), pool, config.batch_size)
    partitioner = BuiltInPartitioner(_partitioner_settings(config), lambda: metadata.snapshot, rng)
    settings = AccumulatorSettings(config.batch_size, config.linger_ms, config.delivery_timeout_ms)
    accumulator = RecordAccumulator(settings, pool, sealer, partitioner, wake, clock.now)
    accumulator.deferred = DeferredSends(accumulator.owner, wake, clock.now, accumulator.unseen)
    metadata.used_topics = accumulator.used_topics
    metadata.on_snapshot(lambda snapshot: accumulator.follow_partition_counts(snapshot.partition_count))
    metadata.on_refused(accumulator.on_refused)
    return accumulator


def _bootstrap(
    config: ProducerConfig, backend: NetworkBackend, rng: random.Random
) -> tuple[list[Node], DeferredBootstrap | None]:
    """The servers to start from; where they may be found out later, none yet, and who does it."""
    endpoints = [Endpoint(*parse_address(server)) for server in config.bootstrap_servers]
    if not config.bootstrap_resolve_timeout_ms:
        return bootstrap_nodes(endpoints, config.client_dns_lookup, backend.resolve, rng)[0], None
    settings = BootstrapSettings(config.bootstrap_resolve_timeout_ms, config.retry_backoff_ms)
    dns_lookup, resolve = config.client_dns_lookup, backend.resolve
    return [], DeferredBootstrap(
        settings,
        lambda: resolve_bootstrap(endpoints, dns_lookup, resolve)[0],
        backend.run_aside,
        backend.selector.wakeup,
    )


def _backend(config: ProducerConfig) -> NetworkBackend:
    settings = _network_settings(config)
    return NetworkBackend.tcp(settings) if config.security is None else config.security.backend(settings)


def _network_settings(config: ProducerConfig) -> NetworkSettings:
    return NetworkSettings.from_options(
        config.as_dict(),
        client_id=config.client_id,
        max_in_flight=config.max_in_flight_requests_per_connection,
        cluster_check=config.metadata_cluster_check_enable,
    )


def _metadata_settings(config: ProducerConfig) -> MetadataSettings:
    return MetadataSettings(
        max_age_ms=config.metadata_max_age_ms,
        max_idle_ms=config.metadata_max_idle_ms,
        retry_backoff_ms=config.retry_backoff_ms,
        retry_backoff_max_ms=config.retry_backoff_max_ms,
        recovery_strategy=config.metadata_recovery_strategy,
        rebootstrap_trigger_ms=config.metadata_recovery_rebootstrap_trigger_ms,
    )


def _placement(config: ProducerConfig) -> Placement:
    if type(config.partitioner) is Crc32Partitioner:
        return Placement(None, CRC32)
    return Placement(config.partitioner, IGNORED if config.partitioner_ignore_keys else MURMUR2)


def _partitioner_settings(config: ProducerConfig) -> PartitionerSettings:
    return PartitionerSettings(
        adaptive=config.partitioner_adaptive_partitioning_enable,
        availability_timeout_ms=config.partitioner_availability_timeout_ms,
        rack=config.client_rack if config.partitioner_rack_aware else None,
    )


def _sender_settings(config: ProducerConfig) -> SenderSettings:
    return SenderSettings(
        acks=config.acks,
        retries=config.retries,
        request_timeout_ms=config.request_timeout_ms,
        retry_backoff_ms=config.retry_backoff_ms,
        retry_backoff_max_ms=config.retry_backoff_max_ms,
        max_in_flight=config.max_in_flight_requests_per_connection,
    )


def _level(config: ProducerConfig) -> int | None:
    levels = {
        "gzip": config.compression_gzip_level,
        "lz4": config.compression_lz4_level,
        "zstd": config.compression_zstd_level,
    }
    return levels.get(config.compression_type)
