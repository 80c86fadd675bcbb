# SPDX-License-Identifier: Apache-2.0
"""Options of other clients that have another name here, or none: what a user who brings them along is told.

librdkafka is what confluent-kafka's options are made for. A name that all clients share is no entry. Names stand with
dots; how the other client writes them does not matter. Options of TLS and SASL are only known to be such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Final, NamedTuple

from penstock.errors import ConfigError

LIBRDKAFKA: Final = "librdkafka"
KAFKA_PYTHON: Final = "kafka-python"
AIOKAFKA: Final = "aiokafka"
CONSUMER: Final = "a consumer"


class OtherName(NamedTuple):
    """What an option of another client is here.

    Attributes:
        whose: the client.
        here: the dotted names of the options to use, none when there is no such option.
        note: what else to know; where `here` is empty, what to do instead.
    """

    whose: str
    here: tuple[str, ...]
    note: str = ""


_RENAMED = {
    LIBRDKAFKA: """
        metadata.broker.list                    bootstrap.servers
        message.max.bytes                       max.request.size
        max.in.flight                           max.in.flight.requests.per.connection
        message.timeout.ms                      delivery.timeout.ms
        message.send.max.retries                retries
        queue.buffering.max.ms                  linger.ms
        queue.buffering.max.kbytes              buffer.memory  in bytes
        queue.buffering.max.messages            buffer.memory  which bounds the bytes, not the number of records
        batch.num.messages                      batch.size  which bounds the bytes, not the number of records
        compression.codec                       compression.type
        request.required.acks                   acks
        socket.timeout.ms                       request.timeout.ms
        socket.send.buffer.bytes                send.buffer.bytes  with -1 for the system's choice
        socket.receive.buffer.bytes             receive.buffer.bytes  with -1 for the system's choice
        topic.metadata.refresh.interval.ms      metadata.max.age.ms
        topic.metadata.refresh.fast.interval.ms retry.backoff.ms
        topic.metadata.propagation.max.ms       max.block.ms
        reconnect.backoff.jitter.ms             reconnect.backoff.max.ms
        sticky.partitioning.linger.ms           batch.size  the number of bytes after which the partition changes
        compression.level                       compression.gzip.level,compression.lz4.level,compression.zstd.level
        partitioner.cb                          partitioner.class
        plugin.library.paths                    interceptor.classes
    """,
    KAFKA_PYTHON: """
        bootstrap.timeout.ms                    max.block.ms
    """,
    AIOKAFKA: """
        max.batch.size                          batch.size
    """,
}

_VERSIONS = "each broker is asked for its versions"
_LOGGING = "logs go to Python's logging, under the name 'penstock'"
_METRICS = "producer.metrics() gives the numbers"
_OUTCOMES = "give on_delivery to send(), or ask the Delivery that it returns"
_AUTO_CREATE = "the cluster decides it, with auto.create.topics.enable"
_ALWAYS = "it is always so"
_NO_COUNTERPART = "there is nothing like it here"

# Whose, what to do instead, and the names.
_DROPPED: tuple[tuple[str, str, str], ...] = (
    (
        LIBRDKAFKA,
        _VERSIONS,
        "api.version.request api.version.request.timeout.ms api.version.fallback.ms broker.version.fallback",
    ),
    (LIBRDKAFKA, _LOGGING, "debug log.level log.queue log.thread.name log.connection.close log.cb logger"),
    (LIBRDKAFKA, _METRICS, "statistics.interval.ms stats.cb throttle.cb"),
    (
        LIBRDKAFKA,
        _OUTCOMES,
        "on.delivery dr.cb dr.msg.cb delivery.report.only.error produce.offset.report error.cb",
    ),
    (LIBRDKAFKA, _AUTO_CREATE, "allow.auto.create.topics"),
    (LIBRDKAFKA, _ALWAYS, "socket.keepalive.enable socket.nagle.disable topic.metadata.refresh.sparse"),
    (LIBRDKAFKA, "write its options beside the others", "default.topic.config default.topic.conf"),
    (
        LIBRDKAFKA,
        _NO_COUNTERPART,
        """
        message.copy.max.bytes receive.message.max.bytes topic.blacklist topic.metadata.refresh.fast.cnt
        socket.blocking.max.ms socket.max.fails broker.address.ttl broker.address.family enable.random.seed
        internal.termination.signal enable.gapless.guarantee queuing.strategy
        queue.buffering.backpressure.threshold builtin.features
        """,
    ),
    (KAFKA_PYTHON, _VERSIONS, "api.version api.version.auto.timeout.ms"),
    (KAFKA_PYTHON, "metrics are always recorded", "metrics.enabled metric.group.prefix"),
    (KAFKA_PYTHON, _NO_COUNTERPART, "kafka.client selector socket.options socks5.proxy proxy.url"),
    (AIOKAFKA, "a Delivery can be awaited in any running loop", "loop"),
    (
        CONSUMER,
        "a producer reads nothing",
        """
        group.id group.instance.id group.protocol enable.auto.commit auto.commit.interval.ms
        enable.auto.offset.store auto.offset.reset session.timeout.ms heartbeat.interval.ms max.poll.interval.ms
        max.poll.records isolation.level fetch.min.bytes fetch.max.bytes fetch.wait.max.ms fetch.max.wait.ms
        fetch.message.max.bytes max.partition.fetch.bytes partition.assignment.strategy check.crcs
        consumer.timeout.ms key.deserializer value.deserializer
        """,
    ),
)

# Of librdkafka, then of kafka-python and aiokafka.
_SECURITY = """
    sasl.username sasl.password sasl.kerberos.principal sasl.kerberos.keytab sasl.oauthbearer.config
    sasl.oauthbearer.method sasl.oauthbearer.client.id sasl.oauthbearer.client.secret sasl.oauthbearer.extensions
    sasl.oauthbearer.grant.type sasl.oauthbearer.metadata.authentication.type
    sasl.oauthbearer.assertion.private.key.pem sasl.oauthbearer.assertion.jwt.template.file
    enable.sasl.oauthbearer.unsecure.jwt oauth.cb oauthbearer.token.refresh.cb ssl.ca.location ssl.ca.pem
    ssl.ca.certificate.stores ssl.certificate.location ssl.certificate.pem ssl.key.location ssl.key.pem
    ssl.crl.location ssl.curves.list ssl.sigalgs.list ssl.providers ssl.engine.location ssl.engine.id ssl.ca
    ssl.key ssl.certificate ssl.certificate.verify.cb enable.ssl.certificate.verification https.ca.location
    https.ca.pem
    sasl.plain.username sasl.plain.password sasl.kerberos.name sasl.kerberos.domain.name sasl.oauth.token.provider
    ssl.cafile ssl.certfile ssl.keyfile ssl.password ssl.crlfile ssl.ciphers ssl.check.hostname
"""
SECURITY: Final = frozenset(_SECURITY.split())


def _entries() -> Iterator[tuple[str, OtherName]]:
    for whose, table in _RENAMED.items():
        for line in table.strip().splitlines():
            name, here, *note = line.split(maxsplit=2)
            yield name, OtherName(whose, tuple(here.split(",")), "".join(note))
    for whose, instead, names in _DROPPED:
        for name in names.split():
            yield name, OtherName(whose, (), instead)


OTHER_NAMES: Final = MappingProxyType(dict(_entries()))

# Partitioners that librdkafka knows by a word. Its default, consistent_random, hashes keys with CRC32.
_AS_BUILT_IN: Final = ("murmur2_random", "murmur2")
_LIBRDKAFKA_PARTITIONERS: Final = (
    *_AS_BUILT_IN, "random", "consistent", "consistent_random", "fnv1a", "fnv1a_random",
)  # fmt: skip


def try_explain(name: str, spell: Callable[[str], str]) -> str | None:
    """What to do about an option of another client, as the end of a sentence; None when it is not known as one.

    Args:
        name: as the user wrote it.
        spell: writes a dotted name of ours as the user would.
    """
    known = OTHER_NAMES.get(_dotted(name))
    if known is None:
        return None
    whose = f"which is {known.whose}'s name" if known.whose != CONSUMER else "which is an option of consumers"
    if not known.here:
        return f"{whose}; leave it out: {known.note}"
    *most, last = (repr(spell(here)) for here in known.here)
    names = f"{', '.join(most)} or {last}" if most else last
    return f"{whose}; use {names} here{', ' + known.note if known.note else ''}"


def is_security(name: str) -> bool:
    """Whether another client has this option for TLS or SASL."""
    return _dotted(name) in SECURITY


def refuse_partitioner(name: str) -> None:
    """Say what to do about a partitioner of librdkafka, which is not to be imported.

    Raises:
        ConfigError: it is one.
    """
    if name not in _LIBRDKAFKA_PARTITIONERS:
        return
    way_out = (
        "leave it out: records with a key go where murmur2 says without it"
        if name in _AS_BUILT_IN
        else "leave it out for murmur2, which is what Java's client uses, or write a partitioner that does the same"
    )
    raise ConfigError(
        f"partitioner.class={name!r} is a partitioner of librdkafka; {way_out}", "partitioner.class"
    )


def _dotted(name: str) -> str:
    return name.replace("_", ".").lower()
