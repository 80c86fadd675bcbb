# SPDX-License-Identifier: Apache-2.0
"""The fake cluster on TCP, for any client.

    with FakeKafka(brokers=1, topics={"orders": 3}) as kafka:
        producer = Producer(bootstrap_servers=kafka.bootstrap_servers)

One thread serves all brokers, each on a port of its own on 127.0.0.1. The cluster belongs to the lock: the thread holds
it while it works, and code that looks into the cluster from outside takes it with `locked()`.
"""

from __future__ import annotations

import contextlib
import inspect
import selectors
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self

from penstock._locks import mark_serving_thread, new_nesting_lock
from penstock.records.reader import Record
from penstock.testing.arguments import check_names, check_topics, is_number
from penstock.testing.cluster import FakeCluster
from penstock.testing.faults import Fault
from penstock.testing.partition_log import Isolation
from penstock.testing.security.settings import FakeSecurity
from penstock.testing.security.tls import TlsEnd
from penstock.testing.session import Session
from penstock.testing.settings import ClusterSettings

_HOST: Final = "127.0.0.1"
_READ_BYTES: Final = 1 << 18
_JOIN_SECONDS: Final = 10.0
_BACKLOG: Final = 64
_LONGEST_WAIT: Final = 3600.0  # a selector takes 24 days, and a test may ask for any delay


class _Connection:
    """A socket and its session, and TLS between them where it is used. Belongs to the serving thread."""

    __slots__ = ("session", "sock", "tls", "unsent")

    def __init__(self, sock: socket.socket, session: Session, tls: TlsEnd | None) -> None:
        self.sock = sock
        self.session = session
        self.tls = tls
        self.unsent = bytearray()

    def feed(self, data: bytes, now: float) -> None:
        """Handle bytes that were received."""
        if self.tls is None:
            self.session.feed(data, now)
            return
        plain = self.tls.feed(data)
        if plain:
            self.session.authentication.note_certificate(self.tls.client_name)
            self.session.feed(plain, now)
        if self.tls.failure is not None:
            self.session.close(self.tls.failure)

    def collect_output(self, now: float) -> None:
        """Add what the session says to what is unsent."""
        data = b"".join(self.session.output(now))
        if self.tls is None:
            self.unsent += data
            return
        self.tls.write(data)
        self.unsent += self.tls.take_output()


class FakeKafka:
    """A cluster that listens.

    Attributes:
        cluster: guarded by the lock; see `locked`.

    Args:
        brokers: how many.
        topics: name and number of partitions of topics to begin with.
        **options: those of FakeCluster (release, features, settings, clock, rng, security).

    Raises:
        TypeError, ValueError: an argument that is not known, or is not what it must be.
    """

    def __init__(self, brokers: int = 1, topics: Mapping[str, int] | None = None, **options: Any) -> None:
        _check_arguments(brokers, topics, options)
        self.cluster = FakeCluster(brokers, **options)
        for name, partitions in (topics or {}).items():
            self.cluster.create_topic(name, partitions)
        self._lock: Any = new_nesting_lock()
        self._selector = selectors.DefaultSelector()
        self._listeners: dict[int, socket.socket] = {}
        self._kept: dict[int, socket.socket] = {}  # hold the ports of brokers that were stopped
        self._connections: set[_Connection] = set()
        self._wake_in, self._wake_out = socket.socketpair()
        self._stopping = False  # guarded by the lock
        self._failure: Exception | None = None  # guarded by the lock
        self._thread = threading.Thread(target=self._run, name="penstock-fake-kafka", daemon=True)

    # ------------------------------------------------------------------------------------------ for tests

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, as the option wants them."""
        return ",".join(f"{node.host}:{node.port}" for node in self.cluster.nodes.values())

    def client_options(self, mechanism: str | None = None, user: str | None = None) -> dict[str, str]:
        """All that a client writes to connect: bootstrap.servers, and what the cluster's security wants."""
        return {
            "bootstrap.servers": self.bootstrap_servers,
            **self.cluster.security.client_options(mechanism, user),
        }

    @contextlib.contextmanager
    def locked(self) -> Iterator[FakeCluster]:
        """The cluster, under its lock; what was changed takes effect at once."""
        with self._lock:
            yield self.cluster
        self._wake()

    def add_fault(self, fault: Fault) -> None:
        """Make the cluster fail in this way."""
        with self.locked() as cluster:
            cluster.faults.add(fault)

    def create_topic(self, name: str, partitions: int = 1, **options: Any) -> None:
        """Make a topic; see FakeCluster."""
        with self.locked() as cluster:
            cluster.create_topic(name, partitions, **options)

    def records(
        self, topic: str, partition: int | None = None, isolation: Isolation = "read_committed"
    ) -> list[Record]:
        """What a consumer would get from the whole partition; without one, from all, one after the other.

        Raises:
            KeyError: there is no such topic or partition.
            ValueError: the isolation level is neither "read_committed" nor "read_uncommitted".
        """
        with self._lock:
            return self.cluster.records(topic, partition, isolation)

    def stop_broker(self, broker_id: int) -> None:
        """Stop a broker: its connections break, and new ones are refused."""
        with self.locked() as cluster:
            cluster.stop_broker(broker_id)
            self._match_listeners()

    def start_broker(self, broker_id: int, *, lose_unreplicated: bool = False) -> None:
        """Start a broker again, on its old port."""
        with self.locked() as cluster:
            cluster.start_broker(broker_id, lose_unreplicated=lose_unreplicated)
            self._match_listeners()

    # ------------------------------------------------------------------------------------------ life

    def __enter__(self) -> Self:
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._selector.register(self._wake_out, selectors.EVENT_READ, None)
        with self._lock:
            self._match_listeners()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if self._failure is not None and error is None:
            raise self._failure

    def close(self) -> None:
        """Stop listening and serving. A mistake of the fake itself is raised when `with` is left."""
        with self._lock:
            self._stopping = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)
        for connection in list(self._connections):
            self._drop(connection)
        for listener in (*self._listeners.values(), *self._kept.values()):
            listener.close()
        self._listeners.clear()
        self._kept.clear()
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()

    def _wake(self) -> None:
        # Full means that a wake-up is on its way; closed, that the serving thread has ended.
        with contextlib.suppress(OSError):
            self._wake_in.send(b"\0")

    def _match_listeners(self) -> None:
        """Listen for the brokers that are up and for no other; with the lock held."""
        for broker_id in set(self._listeners) - self.cluster.live:
            listener = self._listeners.pop(broker_id)
            self._selector.unregister(listener)
            listener.close()
            self._kept[broker_id] = _bind(self.cluster.nodes[broker_id].port)
        for broker_id in self.cluster.live - set(self._listeners):
            known = self.cluster.nodes[broker_id]
            kept = self._kept.pop(broker_id) if broker_id in self._kept else None
            listener = kept or _bind(known.port if known.host == _HOST else 0)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, broker_id)
            self._listeners[broker_id] = listener
            self.cluster.set_address(broker_id, _HOST, listener.getsockname()[1])

    # ------------------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        mark_serving_thread("the thread of a FakeKafka")
        try:
            while self._turn():
                pass
        except Exception as error:  # noqa: BLE001 - kept, and raised in the thread of the test
            with self._lock:
                self._failure = error
                self.cluster.drop_connections()
                for connection in list(self._connections):
                    self._drop(connection)

    def _turn(self) -> bool:
        """Wait for something and do it; False when the server is to stop."""
        with self._lock:
            wait = self.cluster.next_event_at() - time.monotonic()
        events = self._selector.select(min(max(0.0, wait), _LONGEST_WAIT))
        with self._lock:
            if self._stopping:
                return False
            self._match_listeners()  # before the events: a broker may have been stopped meanwhile
            now = time.monotonic()
            for key, mask in events:
                self._on_event(key.fileobj, key.data, mask, now)
            self.cluster.tick(now)
            for connection in list(self._connections):
                self._pump(connection, now)
        return True

    def _on_event(self, fileobj: Any, data: Any, mask: int, now: float) -> None:
        if isinstance(data, _Connection):
            if mask & selectors.EVENT_READ and data in self._connections:
                self._read(data, now)
        elif data is None:
            with contextlib.suppress(BlockingIOError):
                self._wake_out.recv(4096)
        elif (listener := self._listeners.get(data)) is not None and listener is fileobj:
            self._accept(listener, data)

    def _accept(self, listener: socket.socket, broker_id: int) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return  # the client has gone again
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context = self.cluster.security.tls if self.cluster.security.uses_tls else None
        tls = None if context is None else TlsEnd(context)
        connection = _Connection(sock, self.cluster.session(broker_id), tls)
        self._connections.add(connection)
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _read(self, connection: _Connection, now: float) -> None:
        try:
            data = connection.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            connection.feed(data, now)
        else:
            connection.session.close("the client closed the connection")
            self._drop(connection)

    def _pump(self, connection: _Connection, now: float) -> None:
        """Write what can be written; drop the connection when its session is over."""
        connection.collect_output(now)
        try:
            while connection.unsent:
                sent = connection.sock.send(connection.unsent)
                del connection.unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            connection.session.close("the client broke the connection")
            connection.unsent.clear()
        if connection.session.closed and not connection.unsent:
            self._drop(connection)
            return
        interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        self._selector.modify(connection.sock, interest, connection)

    def _drop(self, connection: _Connection) -> None:
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        connection.session.close("the server closed the connection")
        self._selector.unregister(connection.sock)
        connection.sock.close()


def _bind(port: int) -> socket.socket:
    """Take a port, without listening yet: connections are refused, and no other process is given it."""
    bound = socket.socket()
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((_HOST, port))
    except OSError:
        bound.close()
        raise
    return bound


def _check_arguments(brokers: object, topics: object, options: Mapping[str, Any]) -> None:
    """Refuse what would fail somewhere inside, with words about something else.

    Raises:
        TypeError: an argument is unknown, or of the wrong type.
    """
    known = ("brokers", "topics", *list(inspect.signature(FakeCluster).parameters)[1:])
    check_names(options, known)
    if not is_number(brokers):
        raise TypeError(f"brokers is a number, not {brokers!r}")
    if not isinstance(options.get("settings"), ClusterSettings | None):
        raise TypeError(f"settings are a penstock.testing.ClusterSettings, not {options['settings']!r}")
    if not isinstance(options.get("security", ""), FakeSecurity | str):
        raise TypeError(
            f"security is a protocol or a penstock.testing.FakeSecurity, not {options['security']!r}"
        )
    check_topics(topics)
