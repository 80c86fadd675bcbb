# SPDX-License-Identifier: Apache-2.0
"""Drives jobs (see `steps`) on one network client, on the calling thread.

One turn: wake the jobs whose rest is over, find a broker for every question that is not on its way and send it, then
wait in the network client for what happens first. There is no thread: Ctrl-C interrupts the wait, and a simulator's
clock and network make it virtual.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterable
from typing import Any, TypeVar

from penstock._ticket import Ticket
from penstock._time import Clock, Deadline, ExponentialBackoff
from penstock.control.cluster import ControlMetadata, Coordinators
from penstock.control.steps import ANY, Ask, Backoff, CoordinatorOf, LeaderOf, OnNode, Reply, Step, Steps
from penstock.errors import KafkaError, KafkaTimeoutError
from penstock.network import ClientRequest, InFlightRequest, NetworkClient
from penstock.protocol.requests import Request
from penstock.types import Node

T = TypeVar("T")

# Where the next attempt cannot be told from any event, look again after this long.
_GLANCE_SECONDS = 0.01
# The waits for something that takes milliseconds as a rule: a quick look, then doubling ones.
_QUICK_SECONDS = 0.004
_BRIEF_SECONDS = 0.009


class Runner:
    """Runs jobs until they are done or the time is up.

    Args:
        client: the network; its settings' request time-out is that of each request.
        metadata: the view of the cluster that the client keeps up to date.
        coordinators: who coordinates what.
        backoff: how long a `Backoff` is.
        clock: read once per turn.
        rng: for the jitter of rests.
        request_timeout: seconds that one request may take.
    """

    def __init__(
        self,
        client: NetworkClient,
        metadata: ControlMetadata,
        coordinators: Coordinators,
        backoff: ExponentialBackoff,
        clock: Clock,
        rng: random.Random,
        request_timeout: float,
    ) -> None:
        self._client = client
        self._metadata = metadata
        self._coordinators = coordinators
        self._backoff = backoff
        self._clock = clock
        self._rng = rng
        self._request_timeout = request_timeout
        self._jobs: list[_Job] = []
        self._replies: list[tuple[_Job, Reply]] = []  # came with the last poll

    def run_all(
        self, work: Iterable[Steps[T]], timeout: float | None, at_most: int = 1000
    ) -> list[Ticket[T]]:
        """Run jobs side by side, and return when all have ended.

        Args:
            work: the jobs.
            timeout: seconds for all of them; None waits for ever.
            at_most: how many are under way at the same time; the others wait for their turn.

        Returns:
            How each ended, in the order of `work`. Those that ran out of time failed with KafkaTimeoutError.
        """
        began_at = self._clock.now()
        deadline = Deadline.after(began_at, timeout)
        backlog = deque(_Job(steps, began_at) for steps in work)
        tickets = [job.ticket for job in backlog]
        mine: list[_Job] = []
        self._metadata.fatal_error = None  # of an earlier call: what was refused then may have been put right
        # The network was not polled since the last call: a connection that was closed meanwhile must not be written to.
        self._client.poll(0.0, began_at)
        try:
            while True:
                now = self._clock.now()
                mine = [job for job in mine if not job.ticket.done]
                while backlog and len(mine) < at_most:
                    mine.append(backlog[0])
                    self._begin(backlog.popleft(), now)
                wait = self._turn(now)
                if not backlog and all(job.ticket.done for job in mine):
                    return tickets
                if deadline.passed(now):
                    self._time_is_up([*mine, *backlog], now - began_at)
                    return tickets
                self._client.poll(min(wait, deadline.remaining(now)), now)
        finally:
            # Also when Ctrl-C ends the wait: answers that come later have no request.
            self._drop_everything()

    # ---- one turn

    def _turn(self, now: float) -> float:
        """Move every job on as far as it goes; seconds until there is something to do without an event."""
        replies, self._replies = self._replies, []
        for job, reply in replies:
            if not job.ticket.done:
                self._go_on(job, reply)
        while True:
            wait = min((self._move(job, now) for job in list(self._jobs)), default=math.inf)
            self._jobs = [job for job in self._jobs if not job.ticket.done]
            look_up_in = self._coordinators.seconds_to_look_up(now)
            if look_up_in > 0:
                return min(wait, look_up_in)
            # A look-up is a job, too.
            self._begin(_Job(self._coordinators.look_up(), now), now)

    def _move(self, job: _Job, now: float) -> float:
        """Move one job on; seconds until it is worth trying again, infinity when an event will tell."""
        while not job.ticket.done:
            if not isinstance(job.step, Ask):
                if job.wake_at > now:
                    return job.wake_at - now
                self._go_on(job, Reply(now))
                continue
            if job.sent:
                return math.inf
            node = self._place(job.step, job, now)
            if isinstance(node, float):
                return node
            if isinstance(node, KafkaError):
                self._go_on(job, Reply(now, error=node))
            elif job.step.request is None:
                self._go_on(job, Reply(now, node=node))
            else:
                self._send(job, node, job.step.request, now)
        return math.inf

    def _place(self, ask: Ask, job: _Job, now: float) -> Node | KafkaError | float:
        """A node that takes the question now; or why there is none; or seconds until it is worth trying again."""
        if self._metadata.fatal_error is not None:
            return self._metadata.fatal_error
        node = self._find(ask, job, now)
        if not isinstance(node, Node):
            return math.inf if node is None else node
        if ask.request is None or self._client.ready(node, now):
            return node
        # Any broker will do: then another one is chosen next time. An error of any other target is given to the job.
        if ask.target is not ANY:
            failure = self._metadata.connection_failure(node.id, job.since)
            if failure is not None:
                return failure
        delay: float = self._client.connection_delay(node, now)
        return max(delay, _GLANCE_SECONDS)

    def _find(self, ask: Ask, job: _Job, now: float) -> Node | KafkaError | float | None:
        """Who is to be asked; None while that is being found out."""
        target = ask.target
        if isinstance(target, OnNode):
            return target.node
        if isinstance(target, LeaderOf):
            after = job.answers_before if ask.fresh else 0
            leader = self._metadata.leader(target.topic, target.partition, after)
            if leader is None:
                self._metadata.want(target.topic, now)
            return leader
        if isinstance(target, CoordinatorOf):
            if ask.fresh and not job.forgot:
                job.forgot = True
                self._coordinators.forget(target)
            return self._coordinators.find(target)
        if not self._metadata.answered:
            return None  # the client is asking the servers it was given
        controller = None if target is ANY else self._metadata.controller()
        return controller or self._client.least_loaded_node(now) or _GLANCE_SECONDS

    def _send(self, job: _Job, node: Node, request: Request, now: float) -> None:
        job.sent = True
        step = job.step

        def on_response(response: InFlightRequest) -> None:
            if job.step is step:
                reply = Reply(response.received_at, response.body, response.error, response.node)
                self._replies.append((job, reply))

        try:
            self._client.send(ClientRequest(node, request, self._request_timeout, on_response), now)
        except ValueError as error:  # it cannot be said in the broker's version
            self._end(job, error)
        except Exception as cause:  # noqa: BLE001 - whatever it is, it must not end another job
            failure = KafkaError(f"{request.api.name} could not be sent to {node}: {cause!r}")
            failure.__cause__ = cause
            self._go_on(job, Reply(now, error=failure, node=node))

    # ---- a job's life

    def _begin(self, job: _Job, now: float) -> None:
        self._jobs.append(job)
        self._advance(job, now, None)

    def _go_on(self, job: _Job, reply: Reply) -> None:
        self._advance(job, reply.at, reply)

    def _advance(self, job: _Job, now: float, reply: Reply | None) -> None:
        try:
            step = next(job.steps) if reply is None else job.steps.send(reply)
        except StopIteration as end:
            job.ticket.complete(end.value)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the job's outcome
            job.ticket.fail(error)
        else:
            job.take(step, now, 0.0 if isinstance(step, Ask) else self._seconds(step))
            job.answers_before = self._metadata.answers

    def _seconds(self, step: Backoff) -> float:
        seconds = self._backoff.seconds(step.attempts, self._rng)
        shortest = _GLANCE_SECONDS
        if step.briefly:
            shortest = _QUICK_SECONDS
            brief = _BRIEF_SECONDS * 2.0 ** min(step.attempts, 10) if step.attempts else _QUICK_SECONDS
            seconds = min(seconds, brief)
        # A backoff without a wait would let a job repeat within one turn, without a look at network or clock.
        return max(seconds, shortest)

    def _end(self, job: _Job, error: Exception) -> None:
        job.steps.close()
        job.ticket.fail(error)

    def _time_is_up(self, jobs: Iterable[_Job], seconds: float) -> None:
        for job in jobs:
            if job.ticket.done:
                continue
            error = self._out_of_time(job, seconds)
            try:
                job.steps.throw(error)
            except StopIteration:
                job.ticket.fail(error)  # it has nothing to say, which is not an answer
            except Exception as end:  # noqa: BLE001 - the job's own words for it
                job.ticket.fail(end)
            else:
                self._end(job, error)

    def _out_of_time(self, job: _Job, seconds: float) -> KafkaTimeoutError:
        """The error that says what a job was waiting for when the time was up, and why it did not get it."""
        text = f"not done after {seconds:.1f} s"
        step = job.step
        if step is None:
            return KafkaTimeoutError(f"{text}, and not even begun")
        if not isinstance(step, Ask):
            return KafkaTimeoutError(text)
        obstacle = None if job.sent else self._metadata.last_trouble
        if isinstance(step.target, CoordinatorOf) and not job.sent:
            obstacle = self._coordinators.trouble_with(step.target) or obstacle
        waited = f", waiting for {'the answer to ' if job.sent else ''}{step}"
        error = KafkaTimeoutError(f"{text}{waited}" if obstacle is None else f"{text}{waited}: {obstacle}")
        error.waited_for = step.target
        error.obstacle = obstacle
        return error

    def _drop_everything(self) -> None:
        for job in self._jobs:
            if not job.ticket.done:
                job.steps.close()
                job.ticket.give_up()
        self._jobs.clear()
        self._replies.clear()
        self._coordinators.stop()


class _Job:
    """A job and the step that it waits for."""

    __slots__ = ("answers_before", "forgot", "sent", "since", "step", "steps", "ticket", "wake_at")

    def __init__(self, steps: Steps[Any], now: float) -> None:
        self.steps = steps
        self.ticket: Ticket[Any] = Ticket("a control job")
        self.step: Step | None = None
        self.since = now  # when it took the step
        self.answers_before = 0  # answers to Metadata before that
        self.wake_at = -math.inf  # the end of a rest
        self.sent = False  # the question is on its way
        self.forgot = False  # what was known of the target is forgotten

    def take(self, step: Step, now: float, rest: float) -> None:
        """Let the job wait for this step."""
        self.step = step
        self.since = now
        self.wake_at = now + rest
        self.sent = False
        self.forgot = False
