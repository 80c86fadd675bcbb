# SPDX-License-Identifier: Apache-2.0
"""A producer, its network and a broker on one thread, without sockets: the same work in the same order in every run.

`InMemoryBroker` is the producer's NetworkBackend. A request is answered when it is written, and the answer is read in
the next turn of the I/O thread. Produce is answered by a few lines, so that they weigh little in what is counted; all
else, which a producer asks for at its start, by the fake cluster of `penstock.testing`.

`InlineProducer` holds a real `Producer` whose I/O thread was never started: `take_turns` does that thread's work until
there is none left. Its monotonic clock goes on by the same little with every look at it; timestamps of records are the
system's, which `send` reads without a call.
"""

from __future__ import annotations

import itertools
import random
import socket
import struct
import threading
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any
from unittest import mock

from penstock import Producer
from penstock.network.backend import NetworkBackend
from penstock.network.transport import NOTHING, READ, WRITE, Address, Endpoint
from penstock.producer import assembly, lifecycle
from penstock.testing.cluster import FakeCluster

RELEASE = "4.3"
_PRODUCE_KEY, _PRODUCE_VERSION = 0, 13
_HEADER = struct.Struct(">ihhih")  # size, API key, version, correlation id, length of the client id
_ACKS_AND_TIMEOUT = 2 + 4
_TOPIC_ID = 16
_COUNT_AT = 57  # in a record batch: the number of records
_INT32 = struct.Struct(">i")
# index, error, base offset, append time, start of the log, no record errors, no message, no tagged fields
_PARTITION_ANSWER = struct.Struct(">ihqqqBBB")
_ENDED = b"\0\0\0\0\0\0"  # of the topic: no tagged fields; not throttled; of the answer: no tagged fields
_TICK = 1e-6  # seconds
_MOST_TURNS = 100_000


class SteadyClock:
    """The system's clock as the producer knows it, but that its monotonic time depends on nothing outside."""

    def __init__(self) -> None:
        self.now = itertools.count(1000.0, _TICK).__next__  # a call into C, as that of the system's clock is

    def wall_ms(self) -> int:
        """Milliseconds since the epoch; asked at the start only."""
        return 1_700_000_000_000


class InMemoryBroker:
    """One broker, and everything between it and the client: selector, transport, names.

    Attributes:
        records: how many have arrived.
        requests: how many Produce requests they came in.
        cluster: answers all but Produce.

    Args:
        brokers: more than one where other code brings the requests (`bench.fake_brokers`).
    """

    def __init__(self, topic: str, partitions: int, brokers: int = 1) -> None:
        self.records = 0
        self.requests = 0
        self.cluster = FakeCluster(brokers, release=RELEASE)
        self.cluster.create_topic(topic, partitions)
        self._next_offsets = [0] * partitions
        self._links: dict[int, tuple[_Link, Any, int]] = {}
        self._numbers = itertools.count(1)

    def backend(self) -> NetworkBackend:
        """What a client needs."""
        return NetworkBackend(self, self._connect, _resolve, run_aside=lambda work: work())

    def _connect(self, address: Address, endpoint: Endpoint) -> _Link:
        del address, endpoint  # there is one
        return _Link(self, next(self._numbers))

    # ---- as a Selector

    def watch(self, transport: Any, owner: Any, interest: int) -> None:
        self._links[transport.fileno()] = (transport, owner, interest)

    def unwatch(self, transport: Any) -> None:
        self._links.pop(transport.fileno(), None)

    def poll(self, timeout: float) -> list[tuple[Any, int]]:
        """Who can be read or written; nobody waits."""
        del timeout
        return [
            (owner, ready)
            for link, owner, interest in self._links.values()
            if (ready := interest & (READ | WRITE if link.answers else WRITE))
        ]

    def wakeup(self) -> None:
        """Do nothing: the thread that sends takes the turns."""

    def close(self) -> None:
        """Do nothing: no file is open."""

    @property
    def has_answers(self) -> bool:
        """Whether the client has still to read something."""
        return any(link.answers for link, _, _ in self._links.values())

    # ---- as a broker

    def answer(self, request: bytes | bytearray, session: Any) -> bytes:
        """Take a request, and say what comes back."""
        _, key, version, correlation_id, name_size = _HEADER.unpack_from(request)
        if key == _PRODUCE_KEY:
            if version != _PRODUCE_VERSION:
                raise RuntimeError(f"Produce version {version}: this broker reads {_PRODUCE_VERSION}")
            body = self._write(
                request, _HEADER.size + name_size + 1
            )  # behind the tagged fields of the header
            return _INT32.pack(len(body) + 5) + _INT32.pack(correlation_id) + b"\0" + body
        session.feed(request, 0.0)
        if session.closed:
            raise RuntimeError(f"the broker closed the connection: {session.close_reason}")
        return b"".join(session.output(0.0))

    def _write(self, request: bytes | bytearray, at: int) -> bytes:
        """Produce: one topic, named by its id, without a transaction."""
        at += 1 + _ACKS_AND_TIMEOUT + 1
        topic_id = request[at : at + _TOPIC_ID]
        count, at = _uvarint(request, at + _TOPIC_ID)
        parts = [b"\x02", topic_id, _put_uvarint(count)]
        for _ in range(count - 1):
            (partition,) = _INT32.unpack_from(request, at)
            size, at = _uvarint(request, at + 4)
            (records,) = _INT32.unpack_from(request, at + _COUNT_AT)
            parts.append(_PARTITION_ANSWER.pack(partition, 0, self._next_offsets[partition], -1, 0, 1, 0, 0))
            self._next_offsets[partition] += records
            self.records += records
            at += size  # one more than the batch has bytes: the tagged fields
        self.requests += 1
        parts.append(_ENDED)
        return b"".join(parts)

    def session(self, broker_id: int = 0) -> Any:
        """The fake cluster's end of a connection."""
        return self.cluster.session(broker_id)


class _Link:
    """A connection that is there at once and takes everything."""

    def __init__(self, broker: InMemoryBroker, number: int) -> None:
        self.answers: list[bytes] = []
        self._broker = broker
        self._session = broker.session()
        self._number = number

    def finish_connect(self) -> int:
        return NOTHING

    def send_some(self, buffers: Sequence[Any]) -> int:
        data = b"".join(buffers)
        if _INT32.unpack_from(data)[0] + 4 != len(data):
            raise RuntimeError("a write has another size than one request")
        self.answers.append(self._broker.answer(data, self._session))
        return len(data)

    def recv_some(self, max_bytes: int) -> bytes | None:
        del max_bytes  # answers are small
        return self.answers.pop(0) if self.answers else None

    def has_pending(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._number

    def close(self) -> None:
        self.answers.clear()


class _NoThread:
    """Stands where the producer has its I/O thread."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], **options: Any) -> None:
        del options
        self.work = partial(target, *args)

    def start(self) -> None:
        """`take_turns` does its work."""

    def join(self, timeout: float | None = None) -> None:
        """Do nothing: no thread has run."""


class InlineProducer:
    """A producer whose I/O is done by `take_turns`.

    Args:
        settings: options by their Java names, without the servers.
        topic: the one that it can send to.
        partitions: of that topic.
    """

    def __init__(self, settings: dict[str, str], topic: str, partitions: int) -> None:
        self.broker = InMemoryBroker(topic, partitions)
        assemble = partial(assembly.assemble, backend=self.broker.backend(), rng=random.Random(1))
        with (
            mock.patch.object(assembly, "SystemClock", SteadyClock),
            mock.patch.object(lifecycle, "assemble", assemble),
            mock.patch.object(threading, "Thread", _NoThread),
        ):
            self.producer = Producer({**settings, "bootstrap.servers": "broker:9092"})
        self._parts = self.producer._parts  # noqa: SLF001 - turns are taken from inside
        self._drive(self._parts.send_path.await_topic(topic, None))

    def take_turns(self) -> None:
        """Do the I/O thread's work until it would wait."""
        broker, sender, now = self.broker, self._parts.sender, self._parts.clock.now
        for _ in range(_MOST_TURNS):
            before = broker.requests
            sender.run_once(now(), may_rest=True)
            if broker.requests == before and not broker.has_answers:
                return
        raise RuntimeError("the producer does not come to rest")

    def flush(self) -> None:
        """Send what is left, and wait for the outcomes."""
        ticket = self._parts.accumulator.flush()
        self.take_turns()
        if not ticket.done:
            raise RuntimeError("records have no outcome after the last turn")
        ticket.give_up()

    def close(self) -> None:
        """End the producer: its I/O thread runs now, for what it does last."""
        self._parts.io_thread.initiate_close()
        # Not on this thread, which would count as an I/O thread from then on.
        thread = threading.Thread(target=self.producer._core.thread.work)  # type: ignore[attr-defined]  # noqa: SLF001
        thread.start()
        thread.join()
        self.producer.close()

    def _drive(self, steps: Generator[Any, Any, Any]) -> None:
        """Run steps of the producer that wait for its I/O."""
        try:
            item = next(steps)
            while True:
                if isinstance(item, str):
                    item = next(steps)
                    continue
                for _ in range(_MOST_TURNS):
                    if item.done:
                        break
                    self._parts.sender.run_once(self._parts.clock.now(), may_rest=True)
                else:
                    raise RuntimeError(f"the producer waits in vain for {item.what}")
                item = steps.send(item.result)
        except StopIteration:
            return


def _resolve(host: str, port: int) -> list[Address]:
    del host
    return [Address(socket.AF_INET, ("10.0.0.1", port))]


def _uvarint(data: bytes | bytearray, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _put_uvarint(value: int) -> bytes:
    low = b""
    while value >= 0x80:
        low += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return low + bytes((value,))
