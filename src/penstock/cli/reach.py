# SPDX-License-Identifier: Apache-2.0
"""Whether a command can reach its cluster: a wrong address or topic is reported soon, once, and with what to do."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager

from penstock.cli.options import CommandError, ProducerLike
from penstock.control import ControlClient, reach
from penstock.control.reach import TopicCheck, is_answer, why_unreachable, why_unreached
from penstock.errors import BootstrapError, KafkaTimeoutError

_NETWORK_LOG = "penstock.network"
_OPTIONS_LOG = "penstock.config"
_MAX_BLOCK = "max.block.ms"
_LONG_WAIT_MS = 60_000


def open_producer(config: Mapping[str, str], topic: str, partition: int | None = None) -> ProducerLike:
    """A real producer, whose cluster has answered and has the topic, and the partition if one is named.

    Raises:
        ConfigError: an option is wrong; nobody was asked.
        CommandError: no broker answers, or there is no such topic or partition.
        KafkaError: the brokers refuse.
    """
    from penstock import Producer
    from penstock.config.config import ProducerConfig

    with _quiet(_OPTIONS_LOG):  # the producer says it again
        options = ProducerConfig.from_user(config)
    options.close_plugins()
    try:
        with quiet_network(), _quiet(_OPTIONS_LOG), ControlClient(config) as client:
            found = check_topics(
                client, config["bootstrap.servers"], _patience(options.max_block_ms, options.explicit), topic
            )
        if partition is not None:
            _check_partition(topic, partition, found.partitions[topic])
    except BootstrapError:
        # The producer finds that out, too; or looks the names up for as long as an option of its says.
        pass
    # Not in quiet: of a server that cannot be reached, or a name that cannot be resolved yet, it writes only once.
    producer: ProducerLike = Producer({**config, "client.id": options.client_id})
    return producer


def check_topics(client: ControlClient, servers: str, seconds: float, *topics: str) -> TopicCheck:
    """See that a broker answers and has the topics, before anything that has reason to take longer.

    Args:
        client: who asks.
        servers: the address that the user gave.
        seconds: how long to wait for an answer.
        topics: what has to be there.

    Returns:
        What was seen.

    Raises:
        CommandError: no broker answers, or there is no such topic.
        KafkaError: the brokers refuse.
    """
    check = TopicCheck(topics)
    try:
        with quiet_network():
            check.run(client, seconds)
    except KafkaTimeoutError as error:
        if check.missing is not None:
            waited = min(seconds, reach.PATIENCE_SECONDS)
            raise CommandError(
                f"topic {check.missing!r} does not exist at {servers}, and the brokers have not created it "
                f"within {waited:g} s. Create it, or check the name"
            ) from error
        longer = f"; -X max.block.ms={_LONG_WAIT_MS} waits longer" if seconds * 1000 < _LONG_WAIT_MS else ""
        if is_answer(error.__cause__):
            raise CommandError(
                f"{' '.join(topics) or servers} is not ready after {seconds:g} s: {error.__cause__}. Try again, or "
                f"look at the brokers{longer}"
            ) from error
        if check.unreached:
            raise CommandError(why_unreached(servers, check.unreached)) from error
        raise CommandError(
            f"no broker can be reached at {servers} within {seconds:g} s: {why_unreachable(error)}. Check the address "
            "(-b, --bootstrap-servers), and that a broker listens there; `penstock broker start` starts one for "
            f"development{longer}"
        ) from error
    return check


def _check_partition(topic: str, partition: int, there: Sequence[int]) -> None:
    # A producer would wait max.block.ms for it: partitions can be added.
    if partition not in there:
        has = "only partition 0" if len(there) == 1 else f"partitions 0 to {len(there) - 1}"
        raise CommandError(
            f"topic {topic!r} has no partition {partition}: it has {has}. Name one of these with --partition, or leave "
            "the choice to the producer, without --partition"
        )


def patience_of(config: Mapping[str, str]) -> float:
    """Seconds to wait for an answer, where there is no producer: max.block.ms if it is given, by any of its names.

    Args:
        config: options by dotted names; all others are left alone.

    Raises:
        ConfigError: it is no number of milliseconds.
    """
    from penstock.config.input import read_some

    read = read_some(config, {_MAX_BLOCK})
    return _patience(read.values[_MAX_BLOCK], read.explicit)


def _patience(max_block_ms: int, explicit: AbstractSet[str]) -> float:
    # The default of the option is meant for a producer, which has records to keep; somebody waits for a command.
    return max_block_ms / 1000 if _MAX_BLOCK in explicit else reach.PATIENCE_SECONDS


@contextmanager
def quiet_network() -> Iterator[None]:
    """Leave the telling of failed connections to the error that follows; --debug still shows them.

    Not for the time after that: when brokers go away then, the log is all that tells until records fail.
    """
    with _quiet(
        _NETWORK_LOG, logging.CRITICAL
    ):  # a refused identity is an ERROR there, and it is raised as well
        yield


@contextmanager
def _quiet(name: str, but_for: int = logging.ERROR) -> Iterator[None]:
    logger = logging.getLogger(name)
    if logger.isEnabledFor(logging.DEBUG):
        yield
        return
    level = logger.level
    logger.setLevel(but_for)
    try:
        yield
    finally:
        logger.setLevel(level)
