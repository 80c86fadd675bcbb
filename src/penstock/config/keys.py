# SPDX-License-Identifier: Apache-2.0
"""The options of a producer: one table, from which values are checked, defaults are taken and documentation is made.

Names, kinds and defaults are those of the Java client, so that a configuration can be carried over; the defaults that
differ belong to features that are still to come (see `not_yet`).

`ProducerOptions` is the table for type checkers: the keywords of a Producer, and what each takes; a test holds it
against the table. Values may be text, as in properties files. The dotted names of a mapping are not there:
`Producer(mapping)` takes any mapping and checks it when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol, SupportsIndex, TypedDict

from penstock.config.kinds import (
    INT_MAX,
    REQUIRED,
    Addresses,
    Between,
    ConfigKey,
    Distinct,
    KafkaRelease,
    Kind,
    NotZero,
    OneOf,
    Partitioners,
    Password,
    Sendable,
)
from penstock.config.security_keys import SECURITY_KEYS

_BOOL, _INT, _LONG, _STRING, _LIST, _CLASS, _CLASSES = (
    Kind.BOOL, Kind.INT, Kind.LONG, Kind.STRING, Kind.LIST, Kind.CLASS, Kind.CLASSES,
)  # fmt: skip
_NOT_NEGATIVE = Between(0)

_HIGH = (
    ConfigKey(
        "bootstrap.servers", _LIST, REQUIRED, "high",
        "Brokers to ask first. One that answers is enough, since it names all the others; two or three cover for a "
        "broker that is down when the program starts.",
        Addresses(),
    ),
    ConfigKey(
        "key.serializer", _CLASS, None, "high",
        "Turns keys into bytes: a serializer, a function of one argument, or the name of one. Without it keys are "
        "bytes already.",
    ),
    ConfigKey(
        "value.serializer", _CLASS, None, "high",
        "Turns values into bytes: a serializer, a function of one argument, or the name of one. Without it values "
        "are bytes already.",
    ),
    ConfigKey(
        "acks", _STRING, "all", "high",
        "Who must have a batch before it counts as delivered: all in-sync replicas (all, or -1), the leader alone "
        "(1), or nobody (0: sent is delivered, offsets are not known, nothing is retried).",
        OneOf(("all", "-1", "0", "1")),
    ),
    ConfigKey(
        "retries", _INT, INT_MAX, "high",
        "How often a batch may be sent again after a passing error. delivery.timeout.ms is the better limit.",
        Between(0, INT_MAX),
    ),
    ConfigKey(
        "buffer.memory", _LONG, 33_554_432, "high",
        "Bytes of memory for records that are not yet acknowledged. When it is used up, send() waits up to "
        "max.block.ms.",
        NotZero("no record would fit"),
    ),
    ConfigKey(
        "compression.type", _STRING, "none", "high",
        "Codec for whole batches; larger batches compress better.",
        OneOf(("none", "gzip", "snappy", "lz4", "zstd")),
    ),
)  # fmt: skip

_MEDIUM = (
    ConfigKey(
        "batch.size", _INT, 16_384, "medium",
        "Bytes of one partition's records that are sent together, at most. A larger record gets a batch of its own. "
        "0 is treated as 1: every record by itself.",
        _NOT_NEGATIVE,
    ),
    ConfigKey(
        "linger.ms", _LONG, 5, "medium",
        "How long a batch that is not full waits for more records.",
        _NOT_NEGATIVE,
    ),
    ConfigKey(
        "delivery.timeout.ms", _INT, 120_000, "medium",
        "Time from the first record of a batch to its outcome, retries included. Must be at least linger.ms + "
        "request.timeout.ms; when it is not set, it is raised to that sum.",
        NotZero("0 is no limit in librdkafka; here 2147483647 is the longest time"),
    ),
    ConfigKey(
        "request.timeout.ms", _INT, 30_000, "medium",
        "How long to wait for the answer to one request. Brokers are told the same time for the replication.",
        NotZero("no request would ever have its answer in time"),
    ),
    ConfigKey(
        "max.block.ms", _LONG, 60_000, "medium",
        "How long send() may wait for metadata and memory together, and other calls for their answer. Commands of "
        "penstock wait as long for the cluster's first answer where it is set, else 8 seconds. For a topic that does "
        "not exist they never wait longer than that, nor does the driver of a Spark sink.",
        _NOT_NEGATIVE,
    ),
    ConfigKey(
        "max.request.size", _INT, 1_048_576, "medium",
        "Bytes of one request to a broker, at most, and therefore of one record before compression. Brokers have a "
        "limit of their own.",
        NotZero("no record would fit"),
    ),
    ConfigKey(
        "client.id", _STRING, None, "medium",
        "Name of this producer in the brokers' logs, quotas and metrics. Without it producer-1, producer-2 and so on, "
        "in the order in which the process makes them.",
        Sendable(may_be_empty=True),
    ),
    ConfigKey(
        "client.dns.lookup", _STRING, "use_all_dns_ips", "medium",
        "Whether to try all addresses of a name in turn, or to replace each bootstrap name by the canonical names "
        "behind it.",
        OneOf(("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only")),
    ),
    ConfigKey(
        "connections.max.idle.ms", _LONG, 540_000, "medium",
        "Connections unused for so long are closed; a negative number keeps them.",
        NotZero("0 keeps connections in librdkafka; here -1 does", negative=True),
    ),
    ConfigKey(
        "partitioner.class", _CLASS, None, "medium",
        "Chooses partitions: a partitioner, or the name of one. Without it records with a key go where its hash "
        "(murmur2) says, as with Java's client, others to one partition after another, a batch at a time. The name "
        "`crc32` places keys as librdkafka's `consistent_random` does, the default of confluent-kafka; a null or empty "
        "key counts as none.",
        Partitioners(),
    ),
    ConfigKey(
        "partitioner.ignore.keys", _BOOL, False, "medium",
        "Treat all records as if they had no key when choosing partitions.",
    ),
    ConfigKey(
        "send.buffer.bytes", _INT, -1, "medium",
        "Size of a socket's send buffer (SO_SNDBUF); -1 leaves it to the system, which lets it grow with what is sent. "
        "The Java client's default is 131072: less than a request of large batches, which then goes out in pieces.",
        Between(-1),
    ),
    ConfigKey(
        "receive.buffer.bytes", _INT, 32_768, "medium",
        "Size of a socket's receive buffer (SO_RCVBUF); -1 leaves the system's value.",
        Between(-1),
    ),
    ConfigKey(
        "security.protocol", _STRING, "PLAINTEXT", "medium",
        "How to talk to brokers: encrypted (SSL), with a proof of who one is (SASL), both, or neither. See "
        "[security.md](security.md).",
        OneOf(("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"), any_case=True),
    ),
)  # fmt: skip

_LOW_SENDING = (
    ConfigKey(
        "max.in.flight.requests.per.connection", _INT, 5, "low",
        "Requests to one broker that may wait for their answer. Without idempotence a retry can change the order of "
        "batches unless this is 1.",
        Between(1),
    ),
    ConfigKey(
        "compression.gzip.level", _INT, -1, "low",
        "Level of gzip; -1 is the library's own choice.",
        Between(1, 9, also=-1),
    ),
    ConfigKey("compression.lz4.level", _INT, 9, "low", "Level of lz4.", Between(1, 17)),
    ConfigKey("compression.zstd.level", _INT, 3, "low", "Level of zstd.", Between(-131_072, 22)),
    ConfigKey(
        "interceptor.classes", _CLASSES, (), "low",
        "Interceptors in the order in which they see records: objects, or names of classes.",
        Distinct(),
    ),
    ConfigKey(
        "partitioner.adaptive.partitioning.enable", _BOOL, True, "low",
        "Give more records without a key to partitions of brokers that are faster. A partitioner of your own turns "
        "this off.",
    ),
    ConfigKey(
        "partitioner.availability.timeout.ms", _LONG, 0, "low",
        "Leave out partitions of a broker that has taken nothing for so long; 0 never does.",
        _NOT_NEGATIVE,
    ),
    ConfigKey(
        "partitioner.rack.aware", _BOOL, False, "low",
        "Prefer partitions whose leader is in the rack named by client.rack, for records without a key.",
    ),
    ConfigKey("client.rack", _STRING, "", "low", "The rack, or availability zone, in which this producer runs."),
    ConfigKey(
        "retry.backoff.ms", _LONG, 100, "low",
        "Wait before a batch or a metadata request is tried again; doubles with each failure.",
        _NOT_NEGATIVE,
    ),
    ConfigKey(
        "retry.backoff.max.ms", _LONG, 1000, "low",
        "The longest such wait. With retry.backoff.ms at or above it, the wait is always this long.",
        _NOT_NEGATIVE,
    ),
    ConfigKey(
        "buffer.memory.allocation.strategy", _STRING, "incremental", "low",
        "Whether a batch takes its memory whole or piece by piece. Here memory always follows the data: full is "
        "accepted and has no effect.",
        OneOf(("full", "incremental"), any_case=True),
    ),
)  # fmt: skip

_LOW_CLUSTER = (
    ConfigKey(
        "bootstrap.resolve.timeout.ms", _LONG, 0, "low",
        "How long bootstrap names may stay unresolvable. 0 resolves them once, when the producer is made, which fails "
        "if none can be resolved. Otherwise they are looked up in the background, every retry.backoff.ms; when the "
        "time is over every call that needs metadata fails.",
        _NOT_NEGATIVE,
    ),
    ConfigKey(
        "metadata.max.age.ms", _LONG, 300_000, "low",
        "Ask for metadata again after this time, even if nothing seems to have changed.",
        _NOT_NEGATIVE,
    ),
    ConfigKey(
        "metadata.max.idle.ms", _LONG, 300_000, "low",
        "Forget a topic to which nothing was sent for so long: its metadata, queues and metrics.",
        Between(5000),
    ),
    ConfigKey(
        "metadata.recovery.strategy", _STRING, "rebootstrap", "low",
        "What to do when no known broker can be reached: start again from bootstrap.servers, or keep trying.",
        OneOf(("none", "rebootstrap"), any_case=True),
    ),
    ConfigKey(
        "metadata.recovery.rebootstrap.trigger.ms", _LONG, 300_000, "low",
        "Start again from bootstrap.servers when metadata could not be had for so long.",
        NotZero("no broker could answer in time; metadata.recovery.strategy=none switches it off"),
    ),
    ConfigKey(
        "metadata.cluster.check.enable", _BOOL, True, "low",
        "Let a broker refuse a connection that was meant for another cluster or broker; the producer then starts again "
        "from bootstrap.servers. Takes effect with brokers that support ApiVersions 5.",
    ),
    ConfigKey(
        "reconnect.backoff.ms", _LONG, 50, "low",
        "Wait before the next attempt to reach a broker; doubles with each failure.",
        _NOT_NEGATIVE,
    ),
    ConfigKey(
        "reconnect.backoff.max.ms", _LONG, 1000, "low",
        "The longest such wait. When only reconnect.backoff.ms is set, the wait does not grow.",
        _NOT_NEGATIVE,
    ),
    ConfigKey(
        "socket.connection.setup.timeout.ms", _LONG, 10_000, "low",
        "How long one attempt to connect may take; doubles with each failure.",
        NotZero("no connection would ever be there in time"),
    ),
    ConfigKey(
        "socket.connection.setup.timeout.max.ms", _LONG, 30_000, "low",
        "The longest such time.",
        NotZero("no connection would ever be there in time"),
    ),
    ConfigKey(
        "broker.version.fallback", _STRING, None, "low",
        "The release of brokers that cannot be asked for their versions, which are those before 0.10. Without it they "
        "are found out, which takes a few seconds. It changes nothing for brokers that can be asked. Set it while a "
        "cluster is upgraded from a release before 0.10: otherwise, once a newer broker has answered, the old ones "
        "are not used.",
        KafkaRelease(),
    ),
    ConfigKey(
        "metrics.num.samples", _INT, 2, "low",
        "How many windows a rate or average looks back on.",
        Between(1),
    ),
    ConfigKey("metrics.sample.window.ms", _LONG, 30_000, "low", "Length of one such window.", _NOT_NEGATIVE),
    ConfigKey(
        "metrics.recording.level", _STRING, "INFO", "low",
        "How much is measured. Accepted for the sake of configurations that have it: all metrics are always recorded.",
        OneOf(("INFO", "DEBUG", "TRACE")),
    ),
)  # fmt: skip

_LOW_LATER = (
    ConfigKey(
        "enable.idempotence", _BOOL, True, "low",
        "Number batches, so that a retry can neither write one twice nor change their order. Needs acks=all, retries "
        "and at most five requests in flight.",
    ),
    ConfigKey(
        "transactional.id", _STRING, None, "low",
        "Identity under which transactions outlive the process; setting it makes the producer transactional.",
        Sendable(may_be_empty=False),
    ),
    ConfigKey(
        "transaction.timeout.ms", _INT, 60_000, "low",
        "Age at which brokers abort an open transaction.",
        Between(1),
    ),
    ConfigKey(
        "transaction.two.phase.commit.enable", _BOOL, False, "low",
        "Take part in a distributed transaction, which brokers then never abort by themselves.",
        not_yet="two-phase commit",
    ),
    ConfigKey(
        "enable.metrics.push", _BOOL, True, "low",
        "Send the metrics to which the cluster subscribes, where its brokers collect them. To brokers that do not, "
        "nothing is sent.",
    ),
    ConfigKey(
        "metric.reporters", _CLASSES, (), "low",
        "What collects the metrics: objects with the methods start(source) and stop(source), or their names, for "
        "example penstock.watching.prometheus:collector.",
        Distinct(),
    ),
    ConfigKey(
        "auto.include.jmx.reporter", _BOOL, None, "low",
        "Accepted without effect: there is no JMX here, and producer.metrics() gives the numbers.",
        ignored="there is no JMX here, and producer.metrics() gives the numbers",
    ),
    ConfigKey(
        "tracing", _CLASS, None, "low",
        "What traces records: an object, or the name of one, for example penstock.watching.opentelemetry:propagation. "
        "Penstock's own option.",
    ),
    ConfigKey(
        "glass.box", _STRING, None, "low",
        "Address of a live page that shows what the producer does and why, for example 127.0.0.1:0, where 0 is any "
        "free port. The environment variable PENSTOCK_GLASS_BOX wins over a file, and counts where the option is not "
        "given. An address that cannot be used is a warning in the log; the producer works without the page.",
    ),
    ConfigKey(
        "glass.box.token", Kind.PASSWORD, None, "low",
        "What a viewer of the live page must know. An address that other machines can reach needs one, of at least 16 "
        "characters. The environment variable PENSTOCK_GLASS_BOX_TOKEN wins over a file, and counts where the option "
        "is not given.",
    ),
    ConfigKey(
        "config.providers", _LIST, (), "low",
        "Sources of configuration values.",
        Distinct(),
        not_yet="configuration providers (${env:NAME} and ${file:PATH} work without them)",
    ),
    ConfigKey(
        "security.providers", _STRING, None, "low",
        "Accepted without effect: it is for a JVM.",
        ignored="it is for a JVM",
    ),
)  # fmt: skip

KEYS: Final = MappingProxyType(
    {key.name: key for key in (*_HIGH, *_MEDIUM, *_LOW_SENDING, *_LOW_CLUSTER, *_LOW_LATER, *SECURITY_KEYS)}
)


# ---- for type checkers


class SerializerLike(Protocol):
    """Anything that serializes; see `penstock.Serializer`."""

    def serialize(self, topic: str, headers: Any, data: Any, /) -> bytes | None:
        """Give the bytes of `data`."""


class PartitionerLike(Protocol):
    """Anything that chooses partitions; see `penstock.Partitioner`."""

    def partition(self, *args: Any, **named: Any) -> int:
        """Choose the partition of a record."""


class InterceptorLike(Protocol):
    """Anything that sees records on their way; see `penstock.Interceptor`."""

    def on_send(self, record: Any, /) -> Any:
        """See a record before it is serialized."""

    def on_acknowledgement(self, *args: Any, **named: Any) -> object:
        """Learn the outcome of a record."""


class MetricReporterLike(Protocol):
    """Anything that collects metrics; see `penstock.watching.MetricReporter`."""

    def start(self, source: Any, /) -> object:
        """Take note of a producer that was made."""

    def stop(self, source: Any, /) -> object:
        """Forget a producer that is closed."""


class TracingLike(Protocol):
    """Anything that traces records; see `penstock.watching.opentelemetry`."""

    def trace_producer(self, client_id: str, /) -> Any:
        """Trace a producer that is being made."""


Flag = bool | str
Number = SupportsIndex | str
Real = float | str
Secret = str | Password | None
Names = str | list[str] | tuple[str, ...]
# An object, a class of them, a function of one argument, or a name of the form "module:attribute".
SerializerOption = SerializerLike | type[SerializerLike] | Callable[[Any], bytes | None] | str | None
PartitionerOption = PartitionerLike | type[PartitionerLike] | str | None
ReportersOption = Sequence[MetricReporterLike | type[MetricReporterLike] | str] | str
TracingOption = TracingLike | type[TracingLike] | str | None
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
    broker_version_fallback: str | None
    metrics_num_samples: Number
    metrics_sample_window_ms: Number
    metrics_recording_level: str
    enable_idempotence: Flag
    transactional_id: str | None
    transaction_timeout_ms: Number
    transaction_two_phase_commit_enable: Flag
    enable_metrics_push: Flag
    metric_reporters: ReportersOption
    auto_include_jmx_reporter: Flag
    tracing: TracingOption
    glass_box: str | None
    glass_box_token: Secret
    config_providers: Names
    security_providers: str | None
    ssl_truststore_location: str | None
    ssl_truststore_certificates: Secret
    ssl_truststore_password: Secret
    ssl_truststore_type: str | None
    ssl_keystore_location: str | None
    ssl_keystore_password: Secret
    ssl_keystore_type: str | None
    ssl_keystore_key: Secret
    ssl_keystore_certificate_chain: Secret
    ssl_key_location: str | None
    ssl_certificate_location: str | None
    ssl_key_password: Secret
    ssl_crl_location: str | None
    ssl_endpoint_identification_algorithm: str
    ssl_protocol: str
    ssl_enabled_protocols: Names
    ssl_cipher_suites: Names
    ssl_context: object
    ssl_provider: str | None
    ssl_keymanager_algorithm: str | None
    ssl_trustmanager_algorithm: str | None
    ssl_secure_random_implementation: str | None
    sasl_mechanism: str
    sasl_jaas_config: Secret
    sasl_username: str | None
    sasl_password: Secret
    sasl_oauth_token_provider: object
    sasl_login_callback_handler_class: str | None
    sasl_client_callback_handler_class: str | None
    sasl_login_class: str | None
    sasl_kerberos_service_name: str | None
    sasl_kerberos_principal: str | None
    sasl_kerberos_keytab: str | None
    sasl_kerberos_domain_name: str | None
    sasl_kerberos_kinit_cmd: str | None
    sasl_kerberos_min_time_before_relogin: str | None
    sasl_kerberos_ticket_renew_jitter: str | None
    sasl_kerberos_ticket_renew_window_factor: str | None
    sasl_login_connect_timeout_ms: Number | None
    sasl_login_read_timeout_ms: Number | None
    sasl_login_retry_backoff_ms: Number
    sasl_login_retry_backoff_max_ms: Number
    sasl_login_refresh_window_factor: Real
    sasl_login_refresh_window_jitter: Real
    sasl_login_refresh_min_period_seconds: Number
    sasl_login_refresh_buffer_seconds: Number
    sasl_oauthbearer_token_endpoint_url: str | None
    sasl_oauthbearer_client_credentials_client_id: str | None
    sasl_oauthbearer_client_credentials_client_secret: Secret
    sasl_oauthbearer_scope: str | None
    sasl_oauthbearer_extensions: str | None
    sasl_oauthbearer_method: str
    sasl_oauthbearer_grant_type: str | None
    sasl_oauthbearer_header_urlencode: Flag
    sasl_oauthbearer_scope_claim_name: str
    sasl_oauthbearer_sub_claim_name: str
    sasl_oauthbearer_assertion_file: str | None
    sasl_oauthbearer_assertion_algorithm: str
    sasl_oauthbearer_assertion_private_key_file: str | None
    sasl_oauthbearer_assertion_private_key_pem: Secret
    sasl_oauthbearer_assertion_private_key_passphrase: Secret
    sasl_oauthbearer_assertion_template_file: str | None
    sasl_oauthbearer_assertion_claim_aud: str | None
    sasl_oauthbearer_assertion_claim_iss: str | None
    sasl_oauthbearer_assertion_claim_sub: str | None
    sasl_oauthbearer_assertion_claim_exp_seconds: Number
    sasl_oauthbearer_assertion_claim_nbf_seconds: Number
    sasl_oauthbearer_assertion_claim_jti_include: Flag
    sasl_oauthbearer_jwt_retriever_class: str | None
    sasl_oauthbearer_config: Secret
    https_ca_location: str | None
    https_ca_pem: Secret
    sasl_oauthbearer_jwt_validator_class: str | None
    sasl_oauthbearer_allow_unverified_audience: str | None
    sasl_oauthbearer_allow_unverified_issuer: str | None
    sasl_oauthbearer_clock_skew_seconds: str | None
    sasl_oauthbearer_expected_audience: str | None
    sasl_oauthbearer_expected_issuer: str | None
    sasl_oauthbearer_jwks_endpoint_refresh_ms: str | None
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: str | None
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: str | None
    sasl_oauthbearer_jwks_endpoint_url: str | None
    proxy_url: Secret
