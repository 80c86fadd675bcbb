# SPDX-License-Identifier: Apache-2.0
"""The producer's view of the cluster: which topics it uses, what is known of them, and who waits for news.

Rules:
1. The snapshot is replaced whole, by the I/O thread alone. Reading it takes no lock.
2. Only topics in use are asked for. One that was not used for metadata.max.idle.ms is forgotten at the next update,
   unless it is new (never answered yet) or somebody waits for it, and all that others keep of it soon after.
3. New topics alone make a partial update; any other reason makes a full one.
4. While a caller waits for a topic, updates are requested at the pace of the schedule, until the topic is known, it is
   refused, or the caller gives up.
5. The lock is held to look and to swap. Tickets end, listeners run and the I/O thread is woken outside it.
6. A complete answer that says of the topics what the last one said, byte for byte, is only compared with it. Any other
   answer is read in pieces, one in a turn of the I/O thread; it counts when the last one has been read, all at once. A
   leader that is learned from a produce answer meanwhile is kept where its epoch is newer.
"""

from __future__ import annotations

import functools
import logging
import math
import random
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from penstock._events import Event, tell
from penstock._locks import new_lock
from penstock._ticket import Ticket, TicketKind
from penstock._time import ExponentialBackoff
from penstock.error_codes import ErrorCode
from penstock.errors import (
    AuthenticationError,
    BootstrapError,
    BrokerError,
    InvalidMetadataError,
    InvalidTopicError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
    broker_error,
)
from penstock.producer.metadata.cluster import (
    ClusterSnapshot,
    LeaderHint,
    MetadataAnswer,
    PartitionInfo,
    TopicInfo,
    addresses,
    read_answer,
    read_nodes,
)
from penstock.producer.metadata.schedule import RefreshSchedule
from penstock.producer.metadata.topics import TopicsInUse, TopicWaiters, end_tickets, refusal
from penstock.producer.metadata.troubles import MetadataTroubles
from penstock.protocol.requests import MetadataRequest, MetadataResponse, Request
from penstock.types import Node

__all__ = [
    "ClusterSnapshot",
    "LeaderHint",
    "MetadataSettings",
    "PartitionInfo",
    "ProducerMetadata",
    "TopicInfo",
]

logger = logging.getLogger(__name__)

# A look at what is kept of each topic is dear where there are many, and new ones come with every request.
_LOOKS_PER_IDLE_TIME = 4
# Some milliseconds of the I/O thread.
_PARTITIONS_PER_PIECE = 500


def _keep_all(_in_use: Container[object]) -> None:
    """Nobody keeps anything of topics, or of brokers."""


class MetadataSettings(NamedTuple):
    """The options of the same names; `recovery_strategy` is "none" or "rebootstrap"."""

    max_age_ms: int = 300_000
    max_idle_ms: int = 300_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    recovery_strategy: str = "rebootstrap"
    rebootstrap_trigger_ms: int = 300_000


class _Update(NamedTuple):
    """A question that waits for its answer."""

    request: Request
    topics: frozenset[str]
    partial: bool


class _LastAnswer(NamedTuple):
    """The last complete answer, and which topics were in use."""

    response: MetadataResponse
    wanted: frozenset[str]
    read: MetadataAnswer


class ProducerMetadata:
    """Keeps the ClusterSnapshot up to date; the network client's MetadataUpdater.

    Args:
        settings: the few options that matter here.
        bootstrap: the addresses to start from, with ids -1, -2, ...; none where `on_bootstrap` brings them later.
        rng: for the jitter of the backoff.
        wake: wakes the I/O thread; called when an application thread makes an update due.

    Attributes:
        snapshot: the cluster as it is known now. An attribute, because the I/O thread reads it several times in a turn.
        quiet: before its end neither an update nor a start from the bootstrap servers is due, see MetadataUpdater.
        used_topics: asked at each update for the topics used since it was asked before, because the fast path of
            send() does not report each record. Set before the I/O thread starts; called on it.
        keep_topics: told now and then which topics are in use, so that all others are forgotten; likewise.
        keep_nodes: likewise, of brokers, see MetadataUpdater.
        piece: so many partitions of an answer are read in one turn of the I/O thread.
    """

    def __init__(
        self,
        settings: MetadataSettings,
        bootstrap: Sequence[Node],
        rng: random.Random,
        wake: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._bootstrap = tuple(bootstrap)  # owned by the I/O thread
        self._wake = wake
        self.used_topics: Callable[[], Iterable[str]] = tuple
        self.keep_topics: Callable[[frozenset[str]], None] = _keep_all
        self.keep_nodes: Callable[[Container[int]], None] = _keep_all
        self.piece = _PARTITIONS_PER_PIECE
        self._keep_again_at = -math.inf  # owned by the I/O thread

        self._lock: Any = new_lock()
        # Written by the I/O thread under the lock; read by anyone without it.
        self.snapshot = ClusterSnapshot.bootstrap(self._bootstrap)
        self._version = 0
        # Guarded by the lock.
        self._topics = TopicsInUse(settings.max_idle_ms)
        self._waiters = TopicWaiters()
        self._in_progress: _Update | None = None
        backoff = ExponentialBackoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._schedule = RefreshSchedule(settings.max_age_ms, backoff, rng)
        self.quiet = self._schedule.quiet
        self._troubles = MetadataTroubles(self._bootstrap)
        self._fatal: KafkaError | None = None  # for the next who would wait
        self._closed = False
        # Owned by the I/O thread.
        self._last_answer: _LastAnswer | None = None
        # Rule 6; None while no answer is read.
        self._late_hints: list[tuple[LeaderHint, Sequence[Node]]] | None = None
        self._listeners: list[Callable[[ClusterSnapshot], None]] = []
        self._refusal_listeners: list[Callable[[AuthenticationError], None]] = []
        self._attempt_started: float | None = None  # since when an answer is overdue
        self._rebootstrap_required = False  # a broker said so

    # ------------------------------------------------------------------------------------------- any thread

    @property
    def version(self) -> int:
        """How often the snapshot was replaced."""
        return self._version

    def age(self, now: float) -> float:
        """Seconds since the last complete answer; infinity before the first."""
        return now - self._schedule.last_full_update  # one number: no lock, since a metric must not wait

    def want_topic(self, topic: str, now: float) -> None:
        """Count the topic among those in use; an update is due when it is new."""
        with self._lock:
            is_new = self._want_topic_locked(topic, now)
        if is_new:
            self._wake()

    def touch(self, topic: str, now: float) -> None:
        """Keep a topic that is in use from expiring; does nothing for one that is not."""
        with self._lock:
            self._topics.touch((topic,), now)

    def request_update(self, now: float, *, reset_backoff: bool = False) -> None:
        """Ask for a full update as soon as the backoff allows. For the I/O thread: it does not wake it.

        Args:
            now: the present moment.
            reset_backoff: what was learned is worth asking at once, however many answers brought nothing before.
        """
        del now  # the schedule counts from the last answer
        with self._lock:
            self._schedule.request(reset_backoff=reset_backoff)

    def refresh(self) -> None:
        """Ask for a full update at once, whatever the backoff says."""
        with self._lock:
            self._schedule.hurry()
            self._schedule.request()
        self._wake()

    def await_topic(self, topic: str, partition: int | None, now: float) -> Ticket[ClusterSnapshot]:
        """Wait for a topic to be known and, where a partition is given, for the topic to have it.

        The Ticket is granted with the snapshot that has it. It fails with InvalidTopicError or TopicAuthorizationError
        when the cluster refuses the topic, with the error of `on_fatal`, and with ProducerClosedError. A topic that
        does not exist is asked for until the holder gives up; `explain_timeout` then says why.
        """
        ticket: Ticket[ClusterSnapshot] = Ticket(f"metadata of topic {topic}", TicketKind.METADATA)
        with self._lock:
            snapshot = self.snapshot
            error = self._refuse_locked(topic)
            known = error is None and snapshot.has(topic, partition)
            must_wake = error is None and self._want_topic_locked(topic, now)
            if error is None and not known:
                error = self._take_fatal_locked()
            if error is None and not known:
                self._waiters.add(topic, partition, ticket)
                must_wake = self._ask_again_locked(topic) or must_wake
        if must_wake:
            self._wake()
        if error is not None:
            ticket.fail(error)
        elif known:
            ticket.complete(snapshot)
        else:
            # A sender that gives up must not leave its Ticket behind: no answer may ever come to clear it away.
            ticket.on_done(functools.partial(self._forget_waiter, topic))
        return ticket

    def explain_timeout(self, topic: str, partition: int | None, waited_ms: int) -> KafkaTimeoutError:
        """The error to raise when the time for `await_topic` is up: it names what stood in the way."""
        with self._lock:
            count = self.snapshot.partition_count(topic)
            return self._troubles.explain(topic, partition, count, waited_ms)

    def waiting_calls(self) -> int:
        """How many calls wait for metadata now. From any thread; takes no lock."""
        return self._waiters.count()

    def close(self) -> None:
        """Fail all waiters, now and later."""
        with self._lock:
            self._closed = True
            tickets = self._waiters.take_all()
        for ticket in tickets:
            ticket.fail(ProducerClosedError("the producer was closed while waiting for metadata"))

    # ------------------------------------------------------------------- I/O thread: the MetadataUpdater

    def nodes(self) -> Sequence[Node]:
        """The known brokers; the bootstrap ones until the first answer."""
        return tuple(self.snapshot.nodes.values())

    def cluster_id(self) -> str | None:
        """The id of the cluster, as a broker told it."""
        return self.snapshot.cluster_id

    def on_bootstrap(self, nodes: Sequence[Node]) -> None:
        """The bootstrap servers, which could not be told at first."""
        self._bootstrap = tuple(nodes)
        snapshot = ClusterSnapshot.bootstrap(self._bootstrap)
        with self._lock:
            self._troubles.on_bootstrap(self._bootstrap)
            self._swap_locked(snapshot)
        self._tell_listeners(snapshot)

    def on_bootstrap_delayed(self, error: BootstrapError) -> None:
        """Remember why the bootstrap servers are not known yet."""
        with self._lock:
            self._troubles.on_failure(error)

    def seconds_to_update(self, now: float) -> float:
        """Seconds until an update is due: 0.0 is now, infinity while one is in progress."""
        # Asked several times in each turn, and the answer is nearly always no, so it takes no lock. A thread that makes
        # an update due at this moment wakes the I/O thread, which asks again.
        quiet_until = self.quiet.until
        if now < quiet_until:
            return quiet_until - now
        with self._lock:
            if self._in_progress is not None:
                return math.inf
            seconds = self._schedule.seconds_to_update(now, new_topics=self._topics.has_new)
        if self._attempt_started is not None or self._rebootstrap_required:
            self.quiet.end()  # `rebootstrap_due` is to be asked until there is an answer
        return seconds

    def build_request(self, now: float) -> Request:
        """The question to ask; from here on the update is in progress."""
        used = tuple(self.used_topics())
        if self._attempt_started is None:
            self._attempt_started = now
        with self._lock:
            for topic in used:
                self._topics.want(topic, now)  # not only put off: it may have been dropped, and used since
            self._topics.touch(self._waiters.topics, now)
            # Before the question, not after the answer: asking for a topic can create it.
            for topic in self._topics.drop_idle(now):
                self._troubles.forget_topic(topic)
            partial = self._topics.has_new and not self._schedule.full_update_wanted(now)
            topics = self._topics.new if partial else self._topics.all()
            request = MetadataRequest(sorted(topics))
            self._in_progress = _Update(request, topics, partial)
            self._schedule.on_asked()
            in_use = self._topics.all()
        if now >= self._keep_again_at:
            self._keep_again_at = now + self._settings.max_idle_ms / 1000 / _LOOKS_PER_IDLE_TIME
            self.keep_topics(in_use)
        return request

    def on_response(
        self, request: Request, body: MetadataResponse, version: int, now: float
    ) -> Iterator[None]:
        """The answer to the question in progress; one to an older question, from before a rebootstrap, is ignored.

        Each step of the iterator takes a piece of the answer.

        Raises:
            ProtocolError: the answer cannot be decoded.
        """
        del version  # the response has it
        update = self._in_progress  # only this thread writes it
        if update is None or update.request is not request:
            return
        with self._lock:
            wanted = self._topics.all()
        answer = self._compare_with_last(body, wanted)
        if answer is None:
            answer = yield from self._read(update, body, wanted)
            if body.error_code:
                self.on_failure(broker_error(body.error_code), now)
                return
            if not body.brokers:
                failure = InvalidMetadataError("the broker answered with an empty list of brokers")
                self.on_failure(failure, now)
                return
        self._attempt_started = None
        self._last_answer = None if update.partial else _LastAnswer(body, wanted, answer)
        self._take_answer(update, answer, now)

    def _read(
        self, update: _Update, response: MetadataResponse, wanted: frozenset[str]
    ) -> Generator[None, None, MetadataAnswer]:
        """Read an answer in pieces, and keep what other answers say of leaders meanwhile."""
        old = self.snapshot
        late: list[tuple[LeaderHint, Sequence[Node]]] = []
        self._late_hints = late
        try:
            answer = yield from read_answer(old, response, wanted, partial=update.partial, most=self.piece)
        finally:
            self._late_hints = None
        snapshot = answer.snapshot
        for hint, nodes in late:
            if snapshot.topic_id(hint.topic) == old.topic_id(hint.topic):  # else it is about a deleted topic
                snapshot = snapshot.with_leaders((hint,), nodes)
        return answer._replace(snapshot=snapshot)

    def _compare_with_last(self, response: MetadataResponse, wanted: frozenset[str]) -> MetadataAnswer | None:
        """What the response comes to, if it says what the last one said; None if it must be read."""
        last = self._last_answer
        if last is None or last.read.snapshot is not self.snapshot or last.wanted != wanted:
            return None
        if not response.brokers or not response.has_topics_of(last.response):
            return None
        snapshot = self.snapshot.with_brokers(read_nodes(response), response.cluster_id)
        return last.read._replace(snapshot=snapshot, progress=False)

    def _take_answer(self, update: _Update, answer: MetadataAnswer, now: float) -> None:
        with self._lock:
            news = self._take_answer_locked(update, answer, now)
            outcomes = self._waiters.take_settled(answer)
            if any(not self._topics.is_new(topic) for topic in self._waiters.topics):
                self._schedule.request()  # rule 4; new topics are asked for anyway
        for topic in news:
            error = answer.errors[topic]
            # A topic that is being created is not there yet, and a leader is being elected: that is no news. If it
            # stays so, the time-out says it.
            level = logging.DEBUG if isinstance(error, InvalidMetadataError) else logging.WARNING
            tell(
                logger, level, Event.TOPIC_ERROR, "metadata of topic %s: %s", topic, error,
                each=topic, topic=topic, error=error,
            )  # fmt: skip
        try:
            self._tell_listeners(answer.snapshot)
        finally:
            end_tickets(outcomes, answer.snapshot)

    def on_failure(self, error: KafkaError, now: float) -> None:
        """The question in progress got no answer, or one that is no use."""
        self._note_rebootstrap(error)
        with self._lock:
            self._in_progress = None
            self._schedule.on_failure(now)
            self._troubles.on_failure(error)

    def on_fatal(self, error: KafkaError) -> None:
        """Fail all waiters; if there are none, the next one. A request in progress goes on."""
        with self._lock:
            tickets = self._waiters.take_all()
            if not tickets or isinstance(error, BootstrapError):
                self._fatal = error
        for ticket in tickets:
            ticket.fail(error)
        if isinstance(error, AuthenticationError):
            for listener in self._refusal_listeners:
                listener(error)

    def on_connection_failed(self, node: Node, error: KafkaError, now: float) -> None:
        """Remember why a broker cannot be reached, and ask whether its partitions have moved."""
        del now
        self._note_rebootstrap(error)
        with self._lock:
            # Without this, batches for a broker that died while its connection was idle would wait until they expire.
            self._schedule.request()
            self._troubles.on_connection_failed(node, error)

    def rebootstrap_due(self, now: float) -> bool:
        """Whether to start again from the bootstrap servers: told to by a broker, or no answer for too long.

        The client asks this at each turn, so that the time is taken from the moment when an update became due, even
        when there is no broker to ask.
        """
        started = self._attempt_started
        if now < self.quiet.until:
            return False
        if self._settings.recovery_strategy != "rebootstrap":
            return False
        if started is None and self.seconds_to_update(now) <= 0:
            self._attempt_started = started = now
        if self._rebootstrap_required:
            return True
        return started is not None and now - started > self._settings.rebootstrap_trigger_ms / 1000

    def rebootstrap(self, now: float) -> None:
        """Forget the brokers, go back to the bootstrap nodes; who uses or awaits which topic is kept.

        When it is `rebootstrap_due`, the cluster may be another one, and its topics are forgotten too. Otherwise the
        brokers merely cannot be reached: how many partitions a topic has stays known, so that records are accepted, as
        far as memory goes, until they are back.

        Does nothing when metadata.recovery.strategy is "none".
        """
        if self._settings.recovery_strategy != "rebootstrap":
            return
        anew = self.rebootstrap_due(now)
        tell(
            logger, logging.INFO, Event.REBOOTSTRAPPED, "starting again from the bootstrap servers %s",
            addresses(self._bootstrap),
            each=(),
        )  # fmt: skip
        self._rebootstrap_required = False
        self._attempt_started = now
        if anew:
            snapshot = ClusterSnapshot.bootstrap(self._bootstrap)
        else:
            snapshot = self.snapshot.without_brokers(self._bootstrap)
        with self._lock:
            self._in_progress = None
            self._schedule.request()
            self._swap_locked(snapshot)
        self._tell_listeners(snapshot)

    # ------------------------------------------------------------------------------- I/O thread: the sender

    def update_leader_hints(
        self, hints: Iterable[tuple[str, int, int, int]], nodes: Iterable[Node]
    ) -> set[tuple[str, int]]:
        """Take over the leaders that a produce answer named.

        Args:
            hints: topic, partition, leader id, leader epoch.
            nodes: the brokers that came with them.

        Returns:
            The (topic, partition) pairs whose leader is news; a hint that is incomplete or not newer is ignored.
        """
        old = self.snapshot  # only this thread replaces it
        rows = [LeaderHint(*hint) for hint in hints]
        named = tuple(nodes)
        if self._late_hints is not None:
            self._late_hints += [(hint, named) for hint in rows]
        snapshot = old.with_leaders(rows, named)
        if snapshot is old:
            return set()
        with self._lock:
            self._swap_locked(snapshot)
        self._tell_listeners(snapshot)
        pairs = {(hint.topic, hint.partition) for hint in rows}
        return {pair for pair in pairs if snapshot.partition(*pair) != old.partition(*pair)}

    def on_snapshot(self, listener: Callable[[ClusterSnapshot], None]) -> None:
        """Call `listener` with each new snapshot, on the I/O thread, before those who waited for it go on."""
        self._listeners.append(listener)

    def on_refused(self, listener: Callable[[AuthenticationError], None]) -> None:
        """Call `listener` on the I/O thread when no broker accepts this client: others than senders may wait, too."""
        self._refusal_listeners.append(listener)

    # ------------------------------------------------------------------------------------------------ inside

    def _want_topic_locked(self, topic: str, now: float) -> bool:
        added = self._topics.want(topic, now)
        if added:
            self._schedule.hurry()
        return added

    def _refuse_locked(self, topic: str) -> KafkaError | None:
        if self._closed:
            return ProducerClosedError("the producer is closed")
        if topic in self.snapshot.invalid_topics:
            return refusal(topic, InvalidTopicError())
        return None

    def _ask_again_locked(self, topic: str) -> bool:
        """Make an update due for somebody who starts to wait; whether that is news for the I/O thread."""
        asked = self._in_progress is not None and topic in self._in_progress.topics
        if asked or self._topics.is_new(topic):
            return False  # a request is in progress, and its answer is used for the other waiters
        self._schedule.request()
        return True

    def _take_answer_locked(self, update: _Update, answer: MetadataAnswer, now: float) -> list[str]:
        self._in_progress = None
        if not isinstance(self._fatal, BootstrapError):
            self._fatal = None
        self._schedule.on_answer(now, partial=update.partial, progress=answer.progress)
        if answer.stale:
            self._schedule.request()
        self._topics.on_answered(answer.answered)
        if not self._topics.new <= update.topics:
            self._schedule.hurry()  # wanted while the question was on its way
        if answer.snapshot is not self.snapshot:
            self._swap_locked(answer.snapshot)
        return self._troubles.on_answer(answer.answered & self._topics.all(), answer.errors)

    def _take_fatal_locked(self) -> KafkaError | None:
        error = self._fatal
        if isinstance(error, BootstrapError):  # addresses that do not resolve stay unresolved
            # A copy, because an exception that is raised again and again keeps the traceback of each time.
            return BootstrapError(*error.args)
        self._fatal = None
        return error

    def _forget_waiter(self, topic: str, ticket: Ticket[ClusterSnapshot]) -> None:
        with self._lock:
            self._waiters.discard(topic, ticket)

    def _swap_locked(self, snapshot: ClusterSnapshot) -> None:
        self.snapshot = snapshot
        self._version += 1

    def _tell_listeners(self, snapshot: ClusterSnapshot) -> None:
        for listener in self._listeners:
            listener(snapshot)

    def _note_rebootstrap(self, error: KafkaError) -> None:
        if isinstance(error, BrokerError) and error.code == ErrorCode.REBOOTSTRAP_REQUIRED:
            self._rebootstrap_required = True
