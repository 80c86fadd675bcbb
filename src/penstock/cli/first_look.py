# SPDX-License-Identifier: Apache-2.0
"""A command's first look at its cluster: a wrong address or topic is told soon, once, and with the way out."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from penstock.cli.options import CommandError, ProducerLike
from penstock.control import ControlClient
from penstock.control.topic_look import TopicLook, patience_of, why_unreachable
from penstock.errors import BootstrapError, BrokerError, KafkaTimeoutError, NetworkError

_NETWORK_LOG = "penstock.network"


def open_producer(config: Mapping[str, str], topic: str) -> ProducerLike:
    """A real producer, whose cluster has answered and has the topic.

    Raises:
        ConfigError: an option is wrong; nobody was asked.
        CommandError: no broker answers, or there is no such topic.
        KafkaError: the brokers refuse.
    """
    from penstock import Producer

    with quiet_network():
        producer: ProducerLike = Producer(config)
        try:
            with ControlClient(config) as client:
                look(client, config, topic)
        except BootstrapError:
            # The producer was made all the same: it is to look the names up for as long as an option of its says.
            pass
        except BaseException:
            producer.close(0)
            raise
    return producer


def look(client: ControlClient, config: Mapping[str, str], *topics: str) -> None:
    """See that a broker answers and has the topics, before anything that has reason to take longer.

    Raises:
        CommandError: no broker answers, or there is no such topic.
        KafkaError: the brokers refuse.
    """
    first_look = TopicLook(topics)
    seconds = patience_of(config)
    try:
        with quiet_network():
            client.run(first_look.steps(), seconds)
    except KafkaTimeoutError as error:
        servers = config["bootstrap.servers"]
        if first_look.missing is not None:
            raise CommandError(
                f"topic {first_look.missing!r} does not exist at {servers}, and the brokers do not create it by "
                "themselves. Create it, or check the name"
            ) from error
        if is_answer(error.__cause__):
            raise CommandError(
                f"{' '.join(topics) or servers} is not ready after {seconds:g} s: {error.__cause__}. Try again, or "
                "look at the brokers"
            ) from error
        raise CommandError(
            f"no broker can be reached at {servers} within {seconds:g} s: {why_unreachable(error)}. Check the address "
            "(-b, --bootstrap-servers), and that a broker listens there; `penstock broker start` starts one for "
            "development"
        ) from error


def is_answer(cause: BaseException | None) -> bool:
    """Whether an error came from a broker, and not from the way there."""
    return isinstance(cause, BrokerError) and not isinstance(cause, NetworkError)


@contextmanager
def quiet_network() -> Iterator[None]:
    """Leave the telling of failed connections to the error that follows; --debug still shows them.

    Not for the time after the first look: when brokers go away then, the log is all that tells until records fail.
    """
    logger = logging.getLogger(_NETWORK_LOG)
    if logger.isEnabledFor(logging.DEBUG):
        yield
        return
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
