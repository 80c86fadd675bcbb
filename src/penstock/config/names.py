# SPDX-License-Identifier: Apache-2.0
"""Names that a user may write for an option: dotted, as a keyword, of an old or another client.

A name that is no option here is refused with the one to use, because a misspelt option that is ignored in silence is
found only in production. An option of another client (librdkafka is what confluent-kafka's options are made for) is
answered with its name here, or with what to do instead; those of TLS and SASL are understood (`security_keys`). A name
that all clients share is no entry of that table. Names stand with dots there; how the other client writes them does not
matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final, NamedTuple

from penstock.config.keys import KEYS
from penstock.config.kinds import LONG_MAX, ConfigKey, Kind
from penstock.config.security_keys import REFUSED, SPELLINGS
from penstock.errors import ConfigError

# Options of the oldest Java clients, each with the option of today that says the same.
ALIASES: Final = MappingProxyType(
    {
        "block.on.buffer.full": "max.block.ms",
        "metadata.fetch.timeout.ms": "max.block.ms",
        "timeout.ms": "request.timeout.ms",
    }
)

BLOCK_ON_BUFFER_FULL: Final = ConfigKey(
    "block.on.buffer.full", Kind.BOOL, False, "low", "Wait for memory without end, or not at all."
)
BLOCK_FOR_EVER_MS: Final = LONG_MAX

_DOTTED_NAMES = (*KEYS, *ALIASES, *SPELLINGS, *REFUSED)
_CANONICAL = {
    **{name: name for name in _DOTTED_NAMES},
    **{name.replace(".", "_"): name for name in _DOTTED_NAMES},
    **{key.field_name: key.name for key in KEYS.values()},
}

# ---- options of other clients

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
_TROUBLE = "trouble with brokers is logged, under the name 'penstock', and raised by the call that waits"
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
        "api.version.request api.version.request.timeout.ms api.version.fallback.ms",
    ),
    (LIBRDKAFKA, _LOGGING, "debug log.level log.queue log.thread.name log.connection.close log.cb logger"),
    (LIBRDKAFKA, _METRICS, "statistics.interval.ms stats.cb throttle.cb"),
    (
        LIBRDKAFKA,
        _OUTCOMES,
        "on.delivery dr.cb dr.msg.cb delivery.report.only.error produce.offset.report",
    ),
    (LIBRDKAFKA, _TROUBLE, "error.cb"),
    (LIBRDKAFKA, _AUTO_CREATE, "allow.auto.create.topics"),
    (LIBRDKAFKA, _ALWAYS, "socket.keepalive.enable socket.nagle.disable topic.metadata.refresh.sparse"),
    (LIBRDKAFKA, "write its options beside the others", "default.topic.config default.topic.conf"),
    (
        LIBRDKAFKA,
        "penstock.testing.FakeKafka is a cluster for tests: give its bootstrap_servers",
        "test.mock.num.brokers test.mock.broker.rtt",
    ),
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
    (KAFKA_PYTHON, _NO_COUNTERPART, "kafka.client selector socket.options"),
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
# Without `_random` a null key is hashed like an empty one: such records have one partition there, and any here.
CRC32: Final = "crc32"  # the one that has a word here

_NO_FIXED_PLACE: Final = "they go to any partition, so give them partition=, or write a partitioner"
_OR_MURMUR2: Final = ", or leave it out for murmur2, which is what Java's client uses"
_FNV1A: Final = "write a partitioner that does the same (the page 'Coming from confluent-kafka' has it)"
_WAYS_OUT: Final = {
    "murmur2_random": "leave it out: the default places records in the same way",
    "murmur2": (
        "leave it out: the default places keys in the same way, but not records with a null key, which murmur2 puts "
        f"into one partition; here {_NO_FIXED_PLACE}"
    ),
    "consistent_random": f"use 'crc32' here, which places records in the same way{_OR_MURMUR2}",
    "consistent": (
        "use 'crc32' here, which places keys in the same way, but not records with a null or empty key, which "
        f"consistent puts into partition 0; here {_NO_FIXED_PLACE}"
    ),
    "random": f"use partitioner.ignore.keys=true here{_OR_MURMUR2}",
    "fnv1a": f"{_FNV1A}{_OR_MURMUR2}",
    "fnv1a_random": f"{_FNV1A}{_OR_MURMUR2}",
}

_MOST_EXPLAINED: Final = 20  # unknown options of one error; of more only the names are given

# ---- from what the user wrote to an option


def canonical_name(name: object, *, keyword: bool) -> str:
    """Give the dotted name of an option.

    Args:
        name: as the user wrote it.
        keyword: whether it was a keyword; a suggestion is then spelt as one.

    Raises:
        ConfigError: there is no such option; names the one to use.
    """
    canonical = try_canonical_name(name)
    if canonical is not None:
        return canonical
    raise unknown_options([UnknownName(_as_text(name), keyword=keyword)])


def try_canonical_name(name: object) -> str | None:
    """Give the dotted name of an option; None when there is no such option.

    Raises:
        ConfigError: it is not a text.
    """
    return _CANONICAL.get(_as_text(name))


def try_name_among(
    name: object, wanted: AbstractSet[str], unknown: list[UnknownName], where: str = ""
) -> str | None:
    """Give the dotted name of an option that is one of `wanted`, or an old name of one; None for all others.

    Args:
        name: as the user wrote it.
        wanted: dotted names.
        unknown: takes the name if it means one of `wanted`, but is another client's name or another spelling.
        where: the line of a file, for the error; else nothing.

    Raises:
        ConfigError: it is not a text.
    """
    text = _as_text(name)
    canonical = _CANONICAL.get(text)
    if canonical is not None:
        return canonical if _meant_by(canonical) in wanted else None
    other = OTHER_NAMES.get(_dotted(text))
    meant = (_squeezed_names().get(_squeeze(text)),) if other is None else other.here
    if not wanted.isdisjoint(meant):
        unknown.append(UnknownName(text, where=where))
    return None


def try_meaning(name: str) -> str | None:
    """The option that a name stands for, in any spelling; None where it stands for none."""
    canonical = _CANONICAL.get(name)
    if canonical is None or canonical in REFUSED:
        return canonical
    return _meant_by(canonical)


@contextmanager
def in_written_words(written: Mapping[str, str]) -> Iterator[None]:
    """Let every ConfigError name options as the user wrote them.

    Args:
        written: by the dotted names of the options, the names in another client's words. A text may not name one of
            them and mean something else, such as an option inside sasl.jaas.config.
    """
    try:
        yield
    except ConfigError as error:
        if written:
            error.args = (_reworded(str(error), written),)
            dotted = {here: _dotted(name) for here, name in written.items()}
            error.option = dotted.get(error.option or "", error.option)
            error.options = tuple(dotted.get(name, name) for name in error.options)
        raise


def _reworded(text: str, written: Mapping[str, str]) -> str:
    names = re.compile(rf"(?<![\w./])({'|'.join(map(re.escape, written))})(?!\.?\w)")
    return names.sub(lambda found: written[found.group(1)], text)


def _meant_by(canonical: str) -> str:
    """The option that a name of ours stands for; one that is refused stands for the way to talk to brokers."""
    if canonical in SPELLINGS:
        return SPELLINGS[canonical].here
    return "security.protocol" if canonical in REFUSED else ALIASES.get(canonical, canonical)


def _as_text(name: object) -> str:
    if not isinstance(name, str):
        raise ConfigError(f"the name of an option must be a string, not {name!r}")
    return name


class UnknownName(NamedTuple):
    """A name that is none of ours, as the user gave it.

    Attributes:
        name: as it was written.
        keyword: whether it was a keyword; a suggestion is then spelt as one.
        where: the line of a file, for the error; else nothing.
        prefix: what stands before all names of producer options there, such as "kafka."; it is not part of the name.
        advice: what to write in its place, as the end of a sentence; None: what the table of options says.
    """

    name: str
    keyword: bool = False
    where: str = ""
    prefix: str = ""
    advice: str | None = None

    @property
    def shown(self) -> str:
        return self.prefix + self.name

    def spell(self, ours: str) -> str:
        """A dotted name as the user would write it."""
        return self.prefix + (_keyword(ours) if self.keyword else ours)


def unknown_options(names: Sequence[UnknownName]) -> ConfigError:
    """The error for all of a configuration's names that are none of ours: a configuration of another client has many.

    Args:
        names: one or more.
    """
    explained = [
        f"{each.shown!r}{_advice(each.name, each.spell) if each.advice is None else each.advice}{each.where}"
        for each in names[:_MOST_EXPLAINED]
    ]
    if len(names) == 1:
        return ConfigError(f"unknown option {explained[0]}", names[0].shown)
    # They have numbers because commands print an error in one line.
    explained = [f"{number}. {text}" for number, text in enumerate(explained, 1)]
    rest = names[_MOST_EXPLAINED:]
    if rest:
        explained.append(f"and {', '.join(repr(each.shown) for each in rest)}")
    return ConfigError(
        "\n  ".join((f"{len(names)} unknown options:", *explained)), options=[each.shown for each in names]
    )


def _advice(name: str, spell: Callable[[str], str]) -> str:
    """What to write in place of an unknown name, as the end of a sentence; "" when nothing looks like it."""
    explained = _try_explain(name, spell)
    if explained is not None:
        return f", {explained}"
    nearest = try_nearest_name(name)
    return "" if nearest is None else f"; did you mean {spell(nearest)!r}?"


def _keyword(name: str) -> str:
    return KEYS[name].field_name if name in KEYS else name.replace(".", "_")


def try_nearest_name(name: str) -> str | None:
    """The known name that looks most like this one, never a deprecated one; None when none does."""
    squeezed = _squeeze(name)
    return _nearest(_squeezed_names(), squeezed)


def _nearest(names: Mapping[str, str], squeezed: str) -> str | None:
    """The name whose form without separators is most similar to one without separators."""
    if squeezed in names:  # only case or separators differ
        return names[squeezed]
    import difflib  # only a mistake needs it, and every process of a Spark job imports this module

    matches = difflib.get_close_matches(squeezed, names, n=1, cutoff=0.7)
    return names[matches[0]] if matches else None


def _squeezed_names() -> dict[str, str]:
    return {
        _squeeze(known): ALIASES.get(canonical, canonical)
        for known, canonical in _CANONICAL.items()
        if canonical not in REFUSED
    }


def _squeeze(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


def _try_explain(name: str, spell: Callable[[str], str]) -> str | None:
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


def refuse_partitioner(name: str) -> None:
    """Say what to do about a word that names no partitioner here, or one of librdkafka, which is not to be imported.

    Raises:
        ConfigError: it is one.
    """
    if not {":", "."}.isdisjoint(name) or name == CRC32:
        return
    squeezed = _squeeze(name)
    word = {_squeeze(known): known for known in _WAYS_OUT}.get(squeezed)
    if word is None:
        if _nearest({CRC32: CRC32}, squeezed) is not None:
            raise ConfigError(
                f"partitioner.class={name!r} is not known; did you mean {CRC32!r}?", "partitioner.class"
            )
        raise ConfigError(
            f"partitioner.class={name!r} is not known; there is {CRC32!r}, or write 'module:attribute', such as "
            "'penstock.partitioners:RoundRobinPartitioner'. Without a partitioner keys are placed as by Java's client",
            "partitioner.class",
        )
    raise ConfigError(
        f"partitioner.class={name!r} is a partitioner of librdkafka; {_WAYS_OUT[word]}", "partitioner.class"
    )


def _dotted(name: str) -> str:
    return name.replace("_", ".").lower()
