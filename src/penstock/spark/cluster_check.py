# SPDX-License-Identifier: Apache-2.0
"""Checks the cluster from the driver, once, so that a wrong address fails in seconds and not in every task.

The topic is asked for as the producer would do it, which lets brokers create it where they are set to.

A short time-out is for mistakes. A cluster that was found before is there, and a broker of it that pauses must not end
a query that runs: then the check waits as long as records do. That it was found is known by this process; or, where
Spark has started a new one for planning, by a batch that the checkpoint has as committed, or by the sink's owner in the
log.

At least once the driver asks again at the end of each batch: whether its topics are still those that were written to.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from penstock._events import Event, tell
from penstock._locks import Latch
from penstock.control import reach
from penstock.control.client import ControlClient, IdleClients
from penstock.control.reach import TopicCheck, find_topic_ids, is_answer, why_unreachable, why_unreached
from penstock.errors import (
    AuthenticationError,
    BootstrapError,
    ConfigError,
    KafkaError,
    KafkaTimeoutError,
    TopicAuthorizationError,
)
from penstock.sink.replaced import TopicIds, why_incomplete
from penstock.spark.options import KAFKA_PREFIX, SAME_EVERYWHERE, SinkOptions

_logger = logging.getLogger("penstock.spark")

_clients = IdleClients()  # of this process, for the question at the end of each batch

# A streaming query is planned for each micro-batch: not each of them needs a check.
_GOOD_FOR_SECONDS: Final = 60.0

# How long a cluster that was found before is waited for: as long as a record by default (delivery.timeout.ms).
FOUND_PATIENCE_SECONDS: Final = 120.0

# How long the log is asked whether the sink was used before. Not for long where a query's checkpoint can be seen from
# here. Elsewhere (in an object store, say) nothing else tells, and a broker that pauses does not answer for a while.
_LOG_SECONDS: Final = 5.0
_ONLY_LOG_SECONDS: Final = 30.0

# When a cluster was last found in order, by this process. A fork copies it, which does no harm.
_seen: dict[tuple[str, ...], float] = {}


def check_cluster(
    options: SinkOptions,
    patience: float | None = None,
    *,
    dead_letter_topic: str | None = None,
    client: AbstractContextManager[ControlClient] | None = None,
    was_used: Callable[[float], bool] = lambda seconds: False,
) -> None:
    """Connect to a broker, and find the topics that the options name.

    Args:
        options: of the write.
        patience: seconds to wait for an answer; by default a few, or two minutes where the cluster was found before.
            Not kafka.max.block.ms: tasks wait that long for memory as well, and what is wrong here is to be told soon.
        dead_letter_topic: one that rows name themselves, besides that of the options.
        client: opens one with the same options; one of its own, unless given.
        was_used: whether the log knows that this sink has written before, if it answers within so many seconds; asked
            when no answer comes.

    Raises:
        KafkaError: no broker answers; names the address and the cause.
        AuthenticationError: a broker answers, and refuses this client's identity.
        ConfigError: a topic does not exist, or a file that an option names cannot be used here.
        TopicAuthorizationError: a topic may not be written to.
    """
    named = (options.topic, options.dead_letter_topic, dead_letter_topic)
    topics = list(dict.fromkeys(topic for topic in named if topic is not None))
    key = (options.servers, *topics)
    now = time.monotonic()
    if now - _seen.get(key, -_GOOD_FOR_SECONDS) < _GOOD_FOR_SECONDS:
        return
    found_before = key in _seen or _has_committed(options)
    seconds = FOUND_PATIENCE_SECONDS if found_before else reach.PATIENCE_SECONDS
    try:
        try:
            _check(options, topics, seconds if patience is None else patience, client)
        except _NoAnswerError:
            if patience is not None or found_before or not was_used(_seconds_for_log(options)):
                raise
            _check(options, topics, FOUND_PATIENCE_SECONDS, None)
    except _NoAnswerError as error:
        raise error.told from None
    _seen[key] = now


def check_topics_kept(options: SinkOptions, topic_ids: TopicIds) -> None:
    """Make sure, after all was acknowledged, that no topic was deleted meanwhile: what was in it would be missing.

    Args:
        options: of the write.
        topic_ids: of the tasks.

    Raises:
        KafkaError: one was, or no broker tells.
    """
    try:
        with _clients.borrow(options.producer) as client:
            found = find_topic_ids(client, topic_ids, FOUND_PATIENCE_SECONDS)
    except KafkaError as error:
        raise _told(
            "all rows were acknowledged, but whether their topics were deleted meanwhile could not be found out: "
            f"{error}. Write the batch again: at least once, rows may be written twice",
            error,
        ) from None
    why = why_incomplete(topic_ids, found)
    if why is not None:
        raise KafkaError(
            f"{why}: write the batch again. At least once, other rows of it may be written twice"
        )


def forget_clusters() -> None:
    """Close the idle connections, and forget what was found: another cluster may get the same address."""
    _clients.close()
    _seen.clear()


class _NoAnswerError(KafkaError):
    """Nobody answers, or not in time: perhaps only for a while. Never leaves this module."""

    def __init__(self, told: KafkaError) -> None:
        super().__init__(str(told))
        self.told = told


def _has_committed(options: SinkOptions) -> bool:
    """Whether the checkpoint says that a batch of this query was written; False where that cannot be seen from here."""
    folder = _try_checkpoint(options)
    try:
        return folder is not None and any(each.name.isdecimal() for each in (folder / "commits").iterdir())
    except (OSError, ValueError):
        return False


def _try_checkpoint(options: SinkOptions) -> Path | None:
    """The folder of a query's checkpoint; None where it is not on this machine."""
    if not options.streaming or options.checkpoint_location is None:
        return None
    place = urlsplit(options.checkpoint_location)
    if place.scheme not in ("", "file") or place.netloc not in ("", "localhost"):
        return None
    return Path(unquote(place.path))


def _seconds_for_log(options: SinkOptions) -> float:
    is_told_elsewhere = not options.streaming or _try_checkpoint(options) is not None
    return _LOG_SECONDS if is_told_elsewhere else _ONLY_LOG_SECONDS


def _check(
    options: SinkOptions,
    topics: list[str],
    seconds: float,
    client: AbstractContextManager[ControlClient] | None,
) -> None:
    check = TopicCheck(topics)
    try:
        with ExitStack() as stack, _long_wait_is_logged(options.servers, seconds):
            check.run(_opened(stack, options, client), seconds)
    except (TopicAuthorizationError, ConfigError):
        raise
    except AuthenticationError as error:
        raise AuthenticationError(
            f"Kafka at {options.servers} does not let this client in: {str(error).rstrip('.')}. Check the options "
            "kafka.sasl.* and kafka.ssl.*, and kafka.security.protocol",
            mechanism=error.mechanism,
            user=error.user,
            broker=error.broker,
        ) from None
    except KafkaTimeoutError as error:
        if check.missing is not None:
            raise _no_topic(check.missing, options) from None
        if is_answer(error.__cause__):
            raise _NoAnswerError(_not_ready(options, error.__cause__, seconds)) from None
        if check.unreached:
            raise _NoAnswerError(KafkaError(why_unreached(options.servers, check.unreached))) from None
        raise _NoAnswerError(_unreachable(options, error, seconds)) from None
    except KafkaError as error:
        if is_answer(error):
            raise _told(f"Kafka at {options.servers} refuses what the driver asks: {error}", error) from None
        raise _NoAnswerError(_unreachable(options, error, seconds)) from None


@contextmanager
def _long_wait_is_logged(servers: str, seconds: float) -> Iterator[None]:
    """Log once that no answer has come yet, where the wait goes on for longer than a mistake is waited for."""
    if seconds <= reach.PATIENCE_SECONDS:
        yield
        return
    ended = Latch()

    def log_later() -> None:
        if not ended.wait(reach.PATIENCE_SECONDS):
            tell(
                _logger,
                logging.WARNING,
                Event.SPARK_CLUSTER_AWAITED,
                "Kafka at %s does not answer yet. It has answered before, so the driver waits for it for %g s in all",
                servers,
                seconds,
            )

    threading.Thread(target=log_later, name="penstock-long-wait", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _opened(
    stack: ExitStack, options: SinkOptions, client: AbstractContextManager[ControlClient] | None
) -> ControlClient:
    """A client until the end of `stack`."""
    try:
        return stack.enter_context(client if client is not None else ControlClient(options.producer))
    except BootstrapError:
        raise
    except ConfigError as error:
        named = None if error.option is None else KAFKA_PREFIX + error.option
        raise ConfigError(
            f"an option kafka.* of this write is wrong on the driver: {error}. {SAME_EVERYWHERE}",
            named,
            options=[KAFKA_PREFIX + name for name in error.options],
        ) from None


def _no_topic(topic: str, options: SinkOptions) -> ConfigError:
    option = "topic" if topic == options.topic else "deadLetterTopic"
    error = ConfigError(
        f"topic {topic!r} (option {option}) does not exist at {options.servers}, and the brokers do not create it by "
        "themselves. Create it, or check the name",
        option,
    )
    error.topic = topic
    return error


def _not_ready(options: SinkOptions, cause: BaseException | None, seconds: float) -> KafkaError:
    return _told(
        f"Kafka at {options.servers} answers, but is not ready after {seconds:g} s: {cause}. Start the query again, or "
        "look at the brokers",
        cause,
    )


def _told(text: str, cause: BaseException | None) -> KafkaError:
    """An error in other words, about the same topic."""
    error = KafkaError(text)
    error.topic = cause.topic if isinstance(cause, KafkaError) else None
    return error


def _unreachable(options: SinkOptions, error: KafkaError, seconds: float) -> KafkaError:
    waited = f" within {seconds:g} s" if isinstance(error, KafkaTimeoutError) else ""
    return KafkaError(
        f"the driver cannot reach Kafka at {options.servers}{waited}: {why_unreachable(error)}. Check the option "
        "kafka.bootstrap.servers, and that a broker listens there"
    )
