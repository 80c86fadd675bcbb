# SPDX-License-Identifier: Apache-2.0
"""Which topics the producer uses, and who waits for one of them to be known.

Neither class knows a lock: ProducerMetadata owns them and guards them with its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from penstock._arguments import TOPIC_RULE
from penstock._ticket import Ticket
from penstock.errors import BrokerError, InvalidTopicError, TopicAuthorizationError
from penstock.producer.metadata.cluster import ClusterSnapshot, MetadataAnswer

Outcome = tuple[Ticket[ClusterSnapshot], BrokerError | None]


class TopicsInUse:
    """Topics of interest, each with the moment when it expires unless it is used again."""

    def __init__(self, max_idle_ms: float) -> None:
        self._max_idle = max_idle_ms / 1000
        self._expiry: dict[str, float] = {}
        self._new: set[str] = set()  # those that no answer has spoken of; they do not expire

    @property
    def new(self) -> frozenset[str]:
        """Topics that no answer has spoken of yet."""
        return frozenset(self._new)

    @property
    def has_new(self) -> bool:
        """Whether there are any such topics."""
        return bool(self._new)

    def all(self) -> frozenset[str]:
        """Every topic in use."""
        return frozenset(self._expiry)

    def is_new(self, topic: str) -> bool:
        """Whether no answer has spoken of the topic yet."""
        return topic in self._new

    def want(self, topic: str, now: float) -> bool:
        """Use a topic; whether it was not in use before."""
        added = topic not in self._expiry
        self._expiry[topic] = now + self._max_idle
        if added:
            self._new.add(topic)
        return added

    def touch(self, topics: Iterable[str], now: float) -> None:
        """Put off the expiry of those that are in use."""
        for topic in topics:
            if topic in self._expiry:
                self._expiry[topic] = now + self._max_idle

    def drop_idle(self, now: float) -> list[str]:
        """Forget what has expired, and say what that is."""
        idle = [topic for topic, expires in self._expiry.items() if expires <= now and topic not in self._new]
        for topic in idle:
            del self._expiry[topic]
        return idle

    def on_answered(self, topics: Collection[str]) -> None:
        """An answer spoke of these topics."""
        self._new.difference_update(topics)


class TopicWaiters:
    """Tickets of senders that wait for a topic, in order of arrival."""

    def __init__(self) -> None:
        self._tickets: dict[str, dict[Ticket[ClusterSnapshot], int | None]] = {}

    @property
    def topics(self) -> Collection[str]:
        return self._tickets.keys()

    def count(self) -> int:
        """How many wait. From any thread: each dictionary is copied, or measured, in one step."""
        return sum(map(len, list(self._tickets.values())))

    def add(self, topic: str, partition: int | None, ticket: Ticket[ClusterSnapshot]) -> None:
        """Wait for the topic and, where one is given, for the partition."""
        self._tickets.setdefault(topic, {})[ticket] = partition

    def discard(self, topic: str, ticket: Ticket[ClusterSnapshot]) -> None:
        """Forget a Ticket, if it is here."""
        tickets = self._tickets.get(topic, {})
        tickets.pop(ticket, None)
        if not tickets:
            self._tickets.pop(topic, None)

    def take_all(self) -> list[Ticket[ClusterSnapshot]]:
        """Hand over every Ticket; none is left."""
        tickets = [ticket for waiting in self._tickets.values() for ticket in waiting]
        self._tickets.clear()
        return tickets

    def take_settled(self, answer: MetadataAnswer) -> list[Outcome]:
        """Hand over the Tickets that the answer decides on, each with its error or None."""
        outcomes: list[Outcome] = []
        for topic, tickets in list(self._tickets.items()):
            settled = [
                (ticket, refusal(topic, answer.errors.get(topic)))
                for ticket, partition in tickets.items()
                if _is_refused(answer.errors.get(topic)) or answer.snapshot.has(topic, partition)
            ]
            outcomes += settled
            for ticket, _ in settled:
                self.discard(topic, ticket)
        return outcomes


def end_tickets(outcomes: Iterable[Outcome], snapshot: ClusterSnapshot) -> None:
    """Tell the waiters. Their callbacks run in here: not under a lock."""
    for ticket, error in outcomes:
        if error is None:
            ticket.complete(snapshot)
        else:
            ticket.fail(error)


def _is_refused(error: BrokerError | None) -> bool:
    return isinstance(error, InvalidTopicError | TopicAuthorizationError)


def refusal(topic: str, error: BrokerError | None) -> BrokerError | None:
    """The error for one sender of a topic that the cluster refuses; None for any other error, which may pass.

    Each sender gets its own: an exception that several threads raise gathers the tracebacks of all.
    """
    if isinstance(error, InvalidTopicError):
        return InvalidTopicError(f"the cluster does not allow the topic name '{topic}': {TOPIC_RULE}")
    if isinstance(error, TopicAuthorizationError):
        return TopicAuthorizationError(
            f"not authorized to use topic '{topic}': the rights DESCRIBE and WRITE on it are needed"
        )
    return None
