# SPDX-License-Identifier: Apache-2.0
"""One-shot work as steps: a generator that yields what it wants and is sent what came of it.

A job asks a broker (`Ask`) or waits before it tries again (`Backoff`); each is answered with a `Reply`. So the job
itself knows no socket, clock or random number: the runner drives it on a real network, a test calls it directly.

Rules:
1. What a job yields is answered once. A failure is in the Reply and is the job's to judge, but when the time is up the
   runner throws KafkaTimeoutError into the job, which may only say more about it.
2. A job names whom it asks by the role (leader, coordinator), never by remembering a node: who has the
   role is looked up again when `fresh` says that the last one was wrong.
3. Before it asks again after a failure, a job waits (`Backoff`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple, TypeVar

from penstock.error_codes import ErrorCode
from penstock.errors import BrokerError, KafkaError, KafkaTimeoutError, ProtocolError, broker_error
from penstock.protocol.requests import CoordinatorKind, Request
from penstock.types import Node

T = TypeVar("T")


class BrokerChoice(enum.Enum):
    """A broker that is chosen neither by its id nor by what it leads or coordinates."""

    ANY = "any broker"
    CONTROLLER = "the controller"


ANY, CONTROLLER = BrokerChoice.ANY, BrokerChoice.CONTROLLER


class OnNode(NamedTuple):
    """The broker with this node id and address."""

    node: Node

    def __str__(self) -> str:
        return f"broker {self.node}"


class CoordinatorOf(NamedTuple):
    """The broker that keeps the transactional id or group."""

    key: str
    kind: CoordinatorKind = CoordinatorKind.TRANSACTION

    def __str__(self) -> str:
        return f"the {self.kind.name.lower()} coordinator of {self.key!r}"


class LeaderOf(NamedTuple):
    """The leader of a partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"the leader of {self.topic}-{self.partition}"


Target = BrokerChoice | OnNode | CoordinatorOf | LeaderOf


class Ask(NamedTuple):
    """Send a request.

    Attributes:
        request: what is sent; None only finds out who would be asked.
        fresh: the broker that was the target before is not it any more: find out anew.
    """

    target: Target
    request: Request | None
    fresh: bool = False

    def __str__(self) -> str:
        where = self.target.value if isinstance(self.target, BrokerChoice) else str(self.target)
        return where if self.request is None else f"{self.request.api.name} to {where}"


class Backoff(NamedTuple):
    """Wait as long as the backoff says after so many earlier waits.

    Attributes:
        attempts: the earlier waits.
        briefly: what is waited for takes milliseconds as a rule, so begin with a wait as short.
    """

    attempts: int
    briefly: bool = False


class Reply(NamedTuple):
    """What came of a step.

    Attributes:
        at: when.
        body: the decoded answer; None after a failure, and after a backoff.
        error: why there is no answer, or why nobody could be asked.
        node: who answered.
    """

    at: float
    body: Any = None
    error: KafkaError | None = None
    node: Node | None = None


Step = Ask | Backoff
Steps = Generator[Step, Reply, T]

# The error that an answer carries, if it carries one.
ErrorIn = Callable[[Any], KafkaError | None]


def top_level_error(body: Mapping[str, Any]) -> KafkaError | None:
    """The error of an answer that has one code for all of it."""
    code = body["error_code"]
    return broker_error(code, body.get("error_message")) if code else None


def is_soon_over(trouble: KafkaError | None) -> bool:
    """Whether the right broker answered, and is only writing the markers of the id's last transaction."""
    return isinstance(trouble, BrokerError) and trouble.code == ErrorCode.CONCURRENT_TRANSACTIONS


def _is_brief(trouble: KafkaError) -> bool:
    """Whether it may be over in milliseconds: also that of a coordinator which has only just begun to be one."""
    codes = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return isinstance(trouble, BrokerError) and trouble.code in codes


def ask_once(target: Target, request: Request) -> Steps[Any]:
    """Ask, and return whatever the answer is.

    Raises:
        KafkaError: there is none.
    """
    reply = yield Ask(target, request)
    if reply.error is not None:
        raise reply.error
    return reply.body


def ask_until_answered(target: Target, request: Request, error_in: ErrorIn = top_level_error) -> Steps[Any]:
    """Ask, and repeat while the trouble is a passing one.

    Only for requests that do no harm when they arrive twice.

    Raises:
        KafkaError: the trouble is not a passing one, or the time is up.
    """
    reply = yield from _until_untroubled(target, request, error_in, fresh=False)
    return reply.body


def locate(target: Target) -> Steps[Node]:
    """Look up again which broker has the role; waits while none has it.

    Raises:
        KafkaError: that cannot be found out.
    """
    reply = yield from _until_untroubled(target, None, lambda _: None, fresh=True)
    if reply.node is None:
        raise ProtocolError(f"found nobody for {target}, but no error either")
    return reply.node


def _until_untroubled(
    target: Target, request: Request | None, error_in: ErrorIn, *, fresh: bool
) -> Steps[Reply]:
    trouble: KafkaError | None = None
    attempts = 0
    try:
        while True:
            reply = yield Ask(target, request, fresh=fresh)
            trouble = reply.error or error_in(reply.body)
            if trouble is None:
                return reply
            if not trouble.retriable:
                break
            fresh = not is_soon_over(trouble)
            yield Backoff(attempts, briefly=_is_brief(trouble))
            attempts += 1
    except KafkaTimeoutError as up:
        raise with_last_trouble(up, trouble) from trouble
    raise trouble


def with_last_trouble(up: KafkaTimeoutError, trouble: KafkaError | None) -> KafkaTimeoutError:
    """The time is up, and why it was not enough."""
    said = KafkaTimeoutError(f"{up}{also(trouble, up.obstacle)}")
    said.waited_for = up.waited_for
    said.obstacle = up.obstacle
    return said


def also(trouble: BaseException | None, obstacle: KafkaError | None) -> str:
    """How a text about an error goes on with the last error, unless they are the same."""
    if trouble is None or str(trouble) == str(obstacle):
        return ""
    return f"; the last trouble was: {trouble}"
