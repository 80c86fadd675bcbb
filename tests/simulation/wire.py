# SPDX-License-Identifier: Apache-2.0
"""Virtual time, and the network between the client and the fake cluster.

A `Link` is a connection: the client's transport at one end, a session of the cluster at the other. Requests travel as
whole frames, so that a cut loses a request or lets it arrive, perhaps long after the client has given up on it; answers
travel as frames, too. `World` keeps the agenda of all that will happen, and is the client's NetworkBackend.
"""

from __future__ import annotations

import errno
import math
import random
import socket
from collections.abc import Callable, Sequence
from typing import Any

from fix_network import MemoryNetwork, MemoryTransport, VirtualClock

from penstock.network._sockets_cy import Wakeup
from penstock.network.backend import NetworkBackend
from penstock.network.transport import Address, Endpoint
from penstock.protocol.messages import PRODUCE, SASL_AUTHENTICATE
from penstock.testing.cluster import FakeCluster
from penstock.testing.session import Session
from simulation.guard import SASL_KEYS, Guard, authenticate
from simulation.late import LateRequest, LateRequests

EPOCH = 1_700_000_000.0  # what the wall clocks show when virtual time is 0
_ARRIVE_LATE = 0.7  # how many of the requests of a cut connection arrive
_PRODUCE = PRODUCE.key.to_bytes(2, "big")
_TOKEN = SASL_AUTHENTICATE.key.to_bytes(2, "big")
_UNREADABLE = ("not a Kafka request", "a request that cannot be read", "API ")  # why a session is closed
_TICK = 1e-6  # no two looks at the clock see the same time, as on a real machine


def sim_clock() -> VirtualClock:
    """The client's clock: moved by the simulator, and a little by each look."""
    return VirtualClock(tick=_TICK, wall_offset=EPOCH)


class SimWakeup(Wakeup):
    """The real wake-up, but that its byte is written into memory.

    Attributes:
        byte: whether there is one.
        seen: whether the last wait has ended with it.
    """

    __slots__ = ("byte", "seen")

    def __init__(self) -> None:
        self._sleeping = False
        self._wanted = False
        self.byte = False
        self.seen = False

    def _write_byte(self) -> None:
        self.byte = True


class Link(MemoryTransport):
    """One connection of the client, with what is on its way in both directions."""

    def __init__(self, world: World, broker_id: int, fileno: int) -> None:
        super().__init__(fileno)
        self.world = world
        self.broker_id = broker_id
        self.session: Session | None = None
        self.severed = False  # nothing is delivered any more
        self.throttled_until = -math.inf  # by what the client has read
        self._half_written = False  # the client has begun a request, and has still to write the rest
        self._begun_before_throttle = False
        self._throttles: list[
            tuple[int, float]
        ] = []  # answers on their way: bytes still to be read, until when
        self.in_transit: list[bytes] = []  # requests that were written and have not arrived
        self._frame = bytearray()  # the request that is being written
        self._up_at = 0.0
        self._down_at = 0.0

    # ---- the client's end

    def send_some(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        self.world.on_write()
        if self.broken is not None:
            raise self.broken
        if self.blocked:
            self._half_written = True
            return 0
        data = b"".join(buffers)
        taken = self.world.room_for(len(data))
        if taken < len(data):
            self.blocked = True
            self.world.after(self.world.latency(), self._unblock)
            data = data[:taken]
        self._frame += data
        while len(self._frame) >= 4:
            size = 4 + int.from_bytes(self._frame[:4], "big")
            if len(self._frame) < size:
                break
            frame = bytes(self._frame[:size])
            del self._frame[:size]
            self._depart(frame)
        self._half_written = self.blocked
        self._begun_before_throttle = self._begun_before_throttle and self._half_written
        return taken

    def there_of(self, size: int) -> int:
        return self.world.there_of(size)

    def on_read(self, size: int) -> None:
        """The client knows what the answers say that ended with these bytes."""
        left = []
        for ends_at, until in self._throttles:
            if ends_at <= size:
                if until > self.throttled_until:
                    self.throttled_until = until
                    self._begun_before_throttle = self._half_written
            else:
                left.append((ends_at - size, until))
        self._throttles = left

    def close(self) -> None:
        super().close()
        self.world.sever(self)

    # ---- in between

    def stall(self, seconds: float) -> None:
        """Hold back what is written from now on."""
        self._up_at = max(self._up_at, self.world.clock.time + seconds)

    def stall_answers(self, seconds: float) -> None:
        """Hold back what the broker says from now on; what it is asked for takes effect."""
        self._down_at = max(self._down_at, self.world.clock.time + seconds)

    def _unblock(self) -> None:
        self.blocked = False

    def _depart(self, frame: bytes) -> None:
        world = self.world
        # A token that was asked for before may go: the broker will not look at it earlier.
        is_token = frame[4:6] == _TOKEN
        if world.clock.time < self.throttled_until and not self._begun_before_throttle and not is_token:
            world.violate(
                f"API {int.from_bytes(frame[4:6], 'big')} is sent to broker {self.broker_id}, which throttles for "
                f"another {self.throttled_until - world.clock.time:.3f} s"
            )
        if len(frame) > world.max_request_size and frame[4:6] == _PRODUCE:
            self._check_size(frame)
        self.in_transit.append(frame)
        self._up_at = max(self._up_at, world.clock.time + world.latency())
        world.at(self._up_at, self._arrive)
        if len(self.in_transit) >= world.cut_when_under_way:
            world.cut_when_under_way = math.inf
            world.after(0.0, world.cut, self)

    def _check_size(self, frame: bytes) -> None:
        sizes = [
            len(part["records"])
            for topic in self.world.late.read(frame).body["topic_data"]
            for part in topic["partition_data"]
        ]
        if len(sizes) > 1 and sum(sizes) > self.world.max_request_size:
            self.world.violate(
                f"a request to broker {self.broker_id} has {len(sizes)} batches of {sum(sizes)} bytes, and "
                f"{self.world.max_request_size} are allowed"
            )

    def _arrive(self) -> None:
        if self.severed or self.session is None:
            return
        frame = self.in_transit.pop(0)
        guard = self.world.guard
        if guard is not None and not guard.lets_through(self, frame):
            return
        self.session.feed(frame, self.world.clock.time)
        if self.session.closed and self.session.close_reason.startswith(_UNREADABLE):
            self.world.violate(f"broker {self.broker_id} closes the connection: {self.session.close_reason}")
        self.world.pump()

    def collect(self) -> None:
        """Send on what the broker has said, and that it has closed, if it has."""
        session, world = self.session, self.world
        if session is None or self.severed:
            return
        frames = session.output(world.clock.time)
        for number, frame in enumerate(frames, 1):
            self._down_at = max(self._down_at, world.clock.time + world.latency())
            # A broker that throttles looks at nothing more: it is the last answer that says so.
            until = session._muted_until if number == len(frames) else -math.inf
            world.at(self._down_at, self._deliver, frame, until)
        if session.closed:
            world.sever(self)
            self._down_at = max(self._down_at, world.clock.time + world.latency())
            world.at(self._down_at, self._end)

    def send_down(self, frame: bytes) -> None:
        """An answer that does not come from the broker itself."""
        self._down_at = max(self._down_at, self.world.clock.time + self.world.latency())
        self.world.at(self._down_at, self._deliver, frame, -math.inf)

    def _deliver(self, frame: bytes, throttled_until: float) -> None:
        if not self.closed and self.broken is None:
            self.inbound += frame
            self._throttles.append((len(self.inbound), throttled_until))

    def _end(self) -> None:
        self.ended = True

    def __str__(self) -> str:
        return f"connection {self._fileno} to broker {self.broker_id}"


class World(MemoryNetwork):
    """The agenda of what will happen, the links, and the client's selector.

    Args:
        cluster: the brokers.
        clock: virtual time.
        rng: latencies, partial writes, what becomes of requests on a cut connection.
        late: which of those may arrive.
    """

    link_type = Link

    def __init__(
        self, cluster: FakeCluster, clock: VirtualClock, rng: random.Random, late: LateRequests
    ) -> None:
        super().__init__(clock)
        self.cluster = cluster
        self.late = late
        self.rng = rng
        self.slowest = 0.02  # the longest latency, in seconds
        self.latest = 3.0  # how much later than the one before a request of a cut connection may arrive
        self.partial_writes = 0.0  # how many of the writes find too little room
        self.partial_reads = 0.0  # how many of the reads find a part of what will be there
        self.reads = random.Random(0)  # which, and how much
        self.max_request_size = math.inf  # bytes of batches that a Produce request may have
        self.cut_when_under_way = math.inf  # the next connection with so many requests on their way is cut
        self.silent: set[int] = set()  # brokers that do not answer attempts to connect
        self.frozen_until: dict[
            int, float
        ] = {}  # brokers that take connections, and look at nothing until then
        self.guard: Guard | None = None  # who wants to know who is there; None: nobody
        self.links: list[Link] = []
        self._cut_sessions: list[
            Session
        ] = []  # of cut links: the broker goes on, and its answers reach nobody
        self._wakeup = SimWakeup()
        self.must_not_wait = False
        self.violate: Callable[[str], None] = lambda problem: None
        self.on_trouble: Callable[[float], None] = lambda seconds: None
        self.late_arrivals = 0
        self.late_losses = 0  # requests that did not arrive because of a hole in Kafka's protocol
        self.on_write: Callable[[], None] = lambda: None
        self.poll_with: Callable[[float], list[tuple[Any, int]]] = lambda timeout: []
        self.note: Callable[..., None] = lambda text, *args: None

    @property
    def woken(self) -> bool:
        """Whether the client's wait is to end: a byte was written."""
        return self._wakeup.byte

    # ---- what happens when

    def next_at(self) -> float:
        return min(super().next_at(), self.cluster.next_event_at())

    def happen(self, moment: float, until: float) -> None:
        """Let happen what is due; moves the clock to it, never beyond `until`.

        Args:
            moment: when the next thing happens; not later than `until`.
        """
        clock, agenda = self.clock, self._agenda
        while moment <= until:
            clock.time = max(clock.time, moment)
            if agenda and agenda[0][0] <= clock.time:
                self.do_next()
            else:
                self.cluster.tick(clock.time)
                self.pump()
            if self.woken or self.is_any_ready():
                return
            moment = self.next_at()

    def pump(self) -> None:
        """Take the brokers' answers, wherever there are any."""
        for link in tuple(self.links):  # one that has ended leaves the list
            link.collect()
        for session in self._cut_sessions:
            session.output(self.clock.time)

    def latency(self) -> float:
        return 0.0002 + self.rng.random() ** 3 * self.slowest

    def room_for(self, size: int) -> int:
        if self.partial_writes and self.rng.random() < self.partial_writes:
            return int(self.rng.random() * size)
        return size

    def there_of(self, size: int) -> int:
        """How many of the bytes that were sent have come so far."""
        if self.partial_reads and self.reads.random() < self.partial_reads:
            return 1 + int(self.reads.random() * (size - 1))
        return size

    # ---- cuts

    def cut(self, link: Link) -> None:
        """Break a connection in the middle."""
        if link.closed or link.broken is not None:
            return
        self.note("%s is cut, %s request(s) on their way", link, len(link.in_transit))
        self.on_trouble(0.0)
        self.sever(link)
        link.broken = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    def sever(self, link: Link) -> None:
        """Nothing more is sent on this link; but requests that were on their way may arrive, perhaps late.

        The broker need not know of the cut: it goes on with what it has received, in order and one at a time, until it
        finds out that nobody is there. So the first of the requests take effect, never one behind a lost one.
        """
        if link.severed:
            return
        link.severed = True
        if link in self.links:
            self.links.remove(link)
        session = link.session
        if session is None or session.closed:
            return
        arrives_at = self.clock.time
        late = 0
        received = [len(frame).to_bytes(4, "big") + frame for frame in session._requests]
        session._requests.clear()
        sent = [frame for frame in link.in_transit if int.from_bytes(frame[4:6], "big") not in SASL_KEYS]
        for frame in (*received, *sent):
            if self.rng.random() > _ARRIVE_LATE:
                break
            arrives_at += self.latency() if self.rng.random() < 0.6 else self.rng.random() * self.latest
            self.at(arrives_at, self._arrive_late, session, self.late.read(frame))
            late += 1
        if late:
            self._cut_sessions.append(session)
            self.at(arrives_at + 3, self._hang_up, session)
        else:
            self._hang_up(session)

    def _arrive_late(self, session: Session, late: LateRequest) -> None:
        if session.closed:
            return  # the broker was stopped, or has found out: it was too late
        if (
            session._pending is not None
            or session._held is not None
            or self.clock.time < session._muted_until
        ):
            # The broker has still to do with the one before, or throttles: what becomes of it is decided then.
            self.after(self.latency(), self._arrive_late, session, late)
        elif self.late.is_lost(late):
            self.late_losses += 1
            self.note("a request (API %s) of a cut connection is lost: Kafka could not cope", late.api_key)
            self._hang_up(session)
        else:
            self.late_arrivals += 1
            self.on_trouble(0.0)
            self.note(
                "a request (API %s) of a cut connection reaches broker %s", late.api_key, session.broker_id
            )
            session.feed(late.frame, self.clock.time)
            self.pump()

    def _hang_up(self, session: Session) -> None:
        """The broker finds out that nobody is there any more."""
        session.close("the connection was cut")
        if session in self._cut_sessions:
            self._cut_sessions.remove(session)

    # ---- the client's backend

    def backend(self) -> NetworkBackend:
        if self.guard is None:
            return NetworkBackend(self, self.connect, self.resolve, run_aside=lambda work: work())

        def run_aside(work: Callable[[], None]) -> None:
            self.after(self.latency(), work)

        return NetworkBackend(self, self.connect, self.resolve, authenticate, run_aside)

    def resolve(self, host: str, port: int) -> list[Address]:
        return [Address(socket.AF_INET, (f"10.0.0.{host.removeprefix('broker-')}", port))]

    def connect(self, address: Address, endpoint: Endpoint) -> Link:
        del endpoint  # the address names the broker
        link = self.link_type(self, int(address.ip.rpartition(".")[2]), next(self._numbers))
        self.note("%s is opened", link)
        if link.broker_id not in self.silent:
            self.after(self.latency(), self._establish, link)
        return link

    def _establish(self, link: Link) -> None:
        if link.closed:
            return
        try:
            link.session = self.cluster.session(link.broker_id)
        except ConnectionRefusedError:
            link.broken = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
            return
        link.established = True
        link.stall(self.frozen_until.get(link.broker_id, 0.0) - self.clock.time)
        self.links.append(link)

    def wakeup(self) -> None:
        self._wakeup.wake()

    def poll(self, timeout: float) -> list[tuple[Any, int]]:
        """As SocketSelector does it: a byte that was seen is taken out before the next wait."""
        wakeup = self._wakeup
        if wakeup.seen:
            wakeup.seen = wakeup.byte = False
        self.must_not_wait = wakeup._wanted  # there is work that the I/O thread has not looked for
        may_wait = wakeup.before_wait()
        try:
            return self.poll_with(timeout if may_wait else 0.0)
        finally:
            wakeup.seen = wakeup.byte
            wakeup.after_wait()

    @property
    def open_transports(self) -> int:
        return len(self._watched)

    @property
    def is_quiet(self) -> bool:
        return not self._agenda and self.cluster.next_event_at() == math.inf

    def close(self) -> None:
        """As a Selector; there is nothing to release."""
