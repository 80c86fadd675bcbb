# SPDX-License-Identifier: Apache-2.0
"""What one-shot requests know of the cluster: the brokers, the controller, leaders of partitions, and coordinators.

Belongs to the thread that drives the network client, as everything here.

Rules of the metadata:
1. Topics are asked for by name and never created by asking.
2. An answer is used until somebody finds it wrong or it is five minutes old.

Rules of the coordinators. Hundreds of jobs may want to know theirs at once, so what is wanted is collected, and one
request asks for many keys (FindCoordinator 4 and later; older brokers are asked key by key):
1. One look-up at a time. What is wanted meanwhile goes into the next one.
2. A failure that may pass is tried again after a rest, for as long as somebody wants the key. Any other failure is told
   to one of those who wait, and the next one asks again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from penstock._quiet_cy import QuietTime
from penstock._time import ExponentialBackoff
from penstock.control.rights import answered
from penstock.control.steps import ANY, Ask, CoordinatorOf, Reply, Steps
from penstock.error_codes import ErrorCode
from penstock.errors import (
    BootstrapError,
    KafkaError,
    LeaderNotAvailableError,
    ProtocolError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
    broker_error,
    error_row,
)
from penstock.protocol.codec import decode_response_body, encode_request_body
from penstock.protocol.messages import METADATA
from penstock.protocol.requests import CoordinatorKind, FindCoordinator, Request
from penstock.protocol.schema import Buffer
from penstock.types import Node

MAX_AGE_SECONDS = 300.0
# An id may have hundreds of bytes; so many of them are still a small request.
KEYS_PER_REQUEST = 500

_LONG_AGO = -math.inf
# Of Metadata.
_FIRST_VERSION_THAT_CREATES_NOTHING = 4
_FIRST_VERSION_WITH_OPERATIONS = 8


class AskForTopics:
    """A Metadata request that can be sent to any broker to which it makes a difference.

    Args:
        topics: the topics that are asked for. Brokers before 0.10 take an empty list for all topics.
        create: brokers may make topics that do not exist, if they are set so.
        operations: ask what this client may do with the topics; brokers before 2.3 do not tell.
    """

    api = METADATA
    max_version = METADATA.max_version
    expects_response = True

    def __init__(self, topics: Iterable[str], *, create: bool, operations: bool = False) -> None:
        self._topics = [{"name": topic} for topic in topics]
        self._create = create
        self._operations = operations
        # Older brokers cannot be told to make no topic.
        self.min_version = 0 if create or not self._topics else _FIRST_VERSION_THAT_CREATES_NOTHING

    def encode(self, version: int) -> list[Buffer]:
        """The body in that version."""
        body: dict[str, Any] = {"topics": self._topics}
        if version >= _FIRST_VERSION_THAT_CREATES_NOTHING:
            body["allow_auto_topic_creation"] = self._create
        if version >= _FIRST_VERSION_WITH_OPERATIONS:
            body["include_topic_authorized_operations"] = self._operations
        return encode_request_body(METADATA, version, body)

    def decode_response(self, version: int, body: memoryview) -> dict[str, Any]:
        """The answer as a dict.

        Raises:
            ProtocolError: the bytes are not an answer in that version.
        """
        return decode_response_body(METADATA, version, body)


class ControlMetadata:
    """Implements `network.MetadataUpdater`.

    Attributes:
        fatal_error: set when no request can succeed (authentication, no common version).
        last_trouble: why there is no metadata, or no connection; None where there is no error.
        answers: how many answers of use there were.
        named: the brokers of the latest one; still here when they were of no use, and the client has started again.
    """

    def __init__(self, bootstrap: Sequence[Node], backoff: ExponentialBackoff, rng: random.Random) -> None:
        self.fatal_error: KafkaError | None = None
        self.last_trouble: KafkaError | None = None
        self.answers = 0
        self.named: Sequence[Node] = ()
        self._bootstrap = list(bootstrap)
        self._backoff = backoff
        self._rng = rng
        self._nodes: dict[int, Node] = {}
        self._controller_id = -1
        self._cluster_id: str | None = None
        self._topics: dict[str, _Topic] = {}
        self._connection_failures: dict[int, tuple[float, KafkaError]] = {}
        self._due_at = _LONG_AGO
        self._rest_until = _LONG_AGO
        self._failures = 0
        self._rebootstrap_wanted = False
        self.quiet = QuietTime()  # none: it is asked in every turn

    # ---- what jobs want to know

    @property
    def answered(self) -> bool:
        """Whether the brokers are known, and not just the servers to start from."""
        return bool(self._nodes)

    def controller(self) -> Node | None:
        """The controller, or the broker that takes its requests; None while it is not known."""
        return self._nodes.get(self._controller_id)

    def leader(self, topic: str, partition: int, after: int = 0) -> Node | KafkaError | None:
        """The leader of a partition.

        Args:
            topic: the topic.
            partition: its index.
            after: only later answers than so many count.

        Returns:
            The node; what the brokers said of the topic instead; None while they have said nothing, which `want`
            changes.
        """
        known = self._topics.get(topic)
        if known is None or known.answer_number <= after:
            return None
        if known.error is not None:
            return known.error
        if partition not in known.leaders:
            return UnknownTopicOrPartitionError(f"topic {topic!r} has no partition {partition}")
        leader = self._nodes.get(known.leaders[partition])
        if leader is None:
            return LeaderNotAvailableError(f"{topic}-{partition} has no leader at the moment")
        return leader

    def want(self, topic: str, now: float) -> None:
        """Ask for a topic; it may be known, but not well enough."""
        if topic not in self._topics:
            self._topics[topic] = _Topic()
            self._rest_until = _LONG_AGO  # somebody waits for something new
        self.request_update(now)

    def request_update(self, now: float) -> None:
        """Ask the brokers again as soon as possible: what is known has proved wrong."""
        self._due_at = min(self._due_at, now)

    def connection_failure(self, node_id: int, since: float) -> KafkaError | None:
        """Why a node could not be reached at or after that time; None when it was not tried, or could be reached."""
        at, error = self._connection_failures.get(node_id, (_LONG_AGO, None))
        return error if at >= since else None

    # ---- what the network client calls

    def nodes(self) -> Sequence[Node]:
        """The brokers; the servers to start from until they are known."""
        return list(self._nodes.values()) or self._bootstrap

    def cluster_id(self) -> str | None:
        """The cluster's id as a broker told it."""
        return self._cluster_id

    def on_bootstrap(self, nodes: Sequence[Node]) -> None:
        """The servers to start from are known."""
        self._bootstrap = list(nodes)

    def on_bootstrap_delayed(self, error: BootstrapError) -> None:
        """They are not, for the time being."""
        self.last_trouble = error

    def seconds_to_update(self, now: float) -> float:
        """Seconds until the brokers are asked."""
        return max(0.0, max(self._due_at, self._rest_until) - now)

    def build_request(self, now: float) -> Request:
        """The question for all topics that jobs wanted to know of."""
        self._due_at = math.inf  # what is wanted from here on is not covered by the answer
        return AskForTopics(self._topics, create=False)

    def on_response(self, request: Request, body: dict[str, Any], version: int, now: float) -> None:
        """Take over what the brokers said."""
        code = body.get("error_code", 0)
        if code == ErrorCode.REBOOTSTRAP_REQUIRED:
            self._rebootstrap_wanted = True
        if code or not body["brokers"]:
            # A broker that has just started may know no broker at all, not even itself.
            error = broker_error(code) if code else ProtocolError("the answer to Metadata names no broker")
            self.on_failure(error, now)
            return
        self.answers += 1
        self._nodes = {
            row["node_id"]: Node(row["node_id"], row["host"], row["port"], row.get("rack"))
            for row in body["brokers"]
        }
        self.named = tuple(self._nodes.values())
        self._controller_id = body["controller_id"]
        self._cluster_id = body.get("cluster_id") or self._cluster_id
        for row in body["topics"]:
            topic = self._topics.get(row["name"])
            if topic is not None:
                topic.on_answer(row, self.answers)
        self._failures = 0
        self.last_trouble = self.fatal_error = None
        self._rest_until = now + self._backoff.seconds(0, self._rng)
        self._due_at = min(self._due_at, now + MAX_AGE_SECONDS)

    def on_failure(self, error: KafkaError, now: float) -> None:
        """The question in progress got no answer of use."""
        self.last_trouble = error
        self._due_at = now
        self._rest_until = now + self._backoff.seconds(self._failures, self._rng)
        self._failures += 1

    def on_fatal(self, error: KafkaError) -> None:
        """Keep the error: no request can be answered."""
        self.fatal_error = error

    def on_connection_failed(self, node: Node, error: KafkaError, now: float) -> None:
        """Remember it for the requests that wait for that node; perhaps the node is gone."""
        self._connection_failures[node.id] = (now, error)
        self.last_trouble = error
        if getattr(error, "code", None) == ErrorCode.REBOOTSTRAP_REQUIRED:
            self._rebootstrap_wanted = True
        if self.answered:
            self.request_update(now)

    def keep_nodes(self, kept: Container[int]) -> None:
        """Forget why all other nodes could not be reached."""
        failures = self._connection_failures
        self._connection_failures = {node_id: failures[node_id] for node_id in failures if node_id in kept}

    def rebootstrap_due(self, now: float) -> bool:
        """Whether a broker told us to start again."""
        return self._rebootstrap_wanted

    def rebootstrap(self, now: float) -> None:
        """Forget the brokers and start again."""
        self._rebootstrap_wanted = False
        self._nodes = {}
        self._controller_id = -1
        self._due_at = now


class _Topic:
    """What the brokers said of one topic."""

    __slots__ = ("answer_number", "error", "leaders")

    def __init__(self) -> None:
        self.answer_number = 0  # of the answer that told it; 0 for none
        self.error: KafkaError | None = None
        self.leaders: dict[int, int] = {}

    def on_answer(self, row: Mapping[str, Any], number: int) -> None:
        self.answer_number = number
        code = row["error_code"]
        self.error = (
            answered(code, "DESCRIBE", "it", f"topic {row['name']!r}: {error_row(code).description}")
            if code
            else None
        )
        self.leaders = {part["partition_index"]: part["leader_id"] for part in row["partitions"]}


class Coordinators:
    """Which broker coordinates which transactional id or group.

    Says what has to be looked up, and remembers the answers. Knows no network: the runner runs `look_up`.
    """

    def __init__(self, backoff: ExponentialBackoff, rng: random.Random) -> None:
        self._backoff = backoff
        self._rng = rng
        self._nodes: dict[CoordinatorOf, Node] = {}
        self._wanted: set[CoordinatorOf] = set()
        self._refused: dict[CoordinatorOf, KafkaError] = {}
        self._troubles: dict[CoordinatorOf, KafkaError] = {}
        self._failures = 0
        self._rest_until = _LONG_AGO
        self._looking = False

    def find(self, target: CoordinatorOf) -> Node | KafkaError | None:
        """The coordinator; why it cannot be had; None while it is looked up."""
        node = self._nodes.get(target)
        if node is None and (refused := self._refused.pop(target, None)) is not None:
            return refused
        if node is None:
            self._wanted.add(target)
        return node

    def forget(self, target: CoordinatorOf) -> None:
        """It proved to be another one, or gone."""
        self._nodes.pop(target, None)

    def trouble_with(self, target: CoordinatorOf) -> KafkaError | None:
        """Why the latest look-up gave nothing."""
        return self._troubles.get(target)

    def seconds_to_look_up(self, now: float) -> float:
        """Seconds until there is something to look up; infinity when there is not, or it is under way."""
        if self._looking or not self._wanted:
            return math.inf
        return max(0.0, self._rest_until - now)

    def look_up(self) -> Steps[None]:
        """Ask for what is wanted, or as much of it as fits into one request."""
        self._looking = True
        kind = next(iter(self._wanted)).kind
        asked = [target for target in self._wanted if target.kind is kind][:KEYS_PER_REQUEST]
        return self._look_up(kind, asked)

    def stop(self) -> None:
        """Forget the coordinators that were to be looked up."""
        self._wanted.clear()
        self._refused.clear()
        self._troubles.clear()
        self._looking = False

    def _look_up(self, kind: CoordinatorKind, asked: Sequence[CoordinatorOf]) -> Steps[None]:
        reply = yield Ask(ANY, FindCoordinator(kind, [target.key for target in asked]))
        if isinstance(reply.error, UnsupportedVersionError):
            for target in asked:
                reply = yield Ask(ANY, FindCoordinator(kind, [target.key]))
                self._take(target, reply)
        else:
            for target in asked:
                self._take(target, reply)
        self._after_look_up(asked, reply)

    def _take(self, target: CoordinatorOf, reply: Reply) -> None:
        error = reply.error
        row: Mapping[str, Any] | None = reply.body["coordinators"].get(target.key) if error is None else None
        if error is None and row is None:
            error = broker_error(ErrorCode.UNKNOWN_SERVER_ERROR, "the broker left the key out of its answer")
        elif error is None and row is not None and row["error_code"]:
            kept = "group" if target.kind is CoordinatorKind.GROUP else "transactional id"
            right = "DESCRIBE (WRITE or READ implies it)"
            error = answered(row["error_code"], right, f"{kept} {target.key!r}", row["error_message"])
        if error is None and row is not None:
            self._nodes[target] = Node(row["node_id"], row["host"], row["port"])
            self._wanted.discard(target)
            self._troubles.pop(target, None)
            return
        if error is not None:
            self._troubles[target] = error
            if not error.retriable:
                self._refused[target] = error
                self._wanted.discard(target)

    def _after_look_up(self, asked: Sequence[CoordinatorOf], reply: Reply) -> None:
        self._looking = False
        if self._wanted.isdisjoint(asked):
            self._failures = 0
            return
        self._rest_until = reply.at + self._backoff.seconds(self._failures, self._rng)
        self._failures += 1
