# SPDX-License-Identifier: Apache-2.0
"""A small blocking client for requests outside a producer, on top of the network client.

    with ControlClient({"bootstrap.servers": "localhost:9092"}) as client:
        node = client.find_coordinator("orders-1")

Everything happens on the calling thread, within the call; between calls nothing is sent or read. Not for use by several
threads at once.
"""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, TypeVar

from penstock._counted import counted
from penstock._events import ClientEvents, working_for
from penstock._locks import new_lock
from penstock._ticket import Ticket
from penstock._time import Clock, Deadline, ExponentialBackoff, SystemClock
from penstock.config.input import read_some
from penstock.config.kinds import Password, parse_address
from penstock.config.rules import apply_backoffs, security_of
from penstock.config.security_keys import SECURITY_NAMES
from penstock.control.cluster import AskForTopics, ControlMetadata, Coordinators
from penstock.control.runner import Runner
from penstock.control.steps import (
    ANY,
    CoordinatorOf,
    LeaderOf,
    OnNode,
    Steps,
    Target,
    ask_once,
    ask_until_answered,
    locate,
)
from penstock.errors import ConfigError, IllegalStateError, KafkaError, broker_error
from penstock.network import NetworkBackend, NetworkClient, bootstrap_nodes
from penstock.network.settings import CONNECTION_OPTIONS, NetworkSettings
from penstock.network.transport import Endpoint
from penstock.protocol.messages import ADD_PARTITIONS_TO_TXN, END_TXN
from penstock.protocol.requests import CoordinatorKind, NodeApiVersions, Request
from penstock.protocol.schema import ApiSchema
from penstock.types import Node

if TYPE_CHECKING:
    from penstock.security.settings import SecuritySettings

DEFAULT_CLIENT_ID = "penstock-control"
# Brokers work on the requests of one connection one after the other; a few more keep the wire busy.
DEFAULT_MAX_IN_FLIGHT = 16
# Clusters with a client that waits; a process has to do with one, rarely with two.
MAX_IDLE: Final = 4

_OPTIONS: Final = frozenset(
    {
        "bootstrap.servers",
        "client.id",
        "retry.backoff.ms",
        "retry.backoff.max.ms",
        "security.protocol",
        *SECURITY_NAMES,
        *CONNECTION_OPTIONS,
    }
)

DEFAULT_TIMEOUT = 60.0
# The two transaction protocols: the level of the feature transaction.version, and the versions of EndTxn.
FIRST_FEATURE_OF_V2 = 2
FIRST_END_TXN_OF_V2 = 5
LAST_END_TXN_OF_V1 = 3
# Its version 4 is what brokers ask each other with before they take a transactional batch (KIP-890, Kafka 3.6).
FIRST_ADD_PARTITIONS_OF_VERIFICATION = 4

T = TypeVar("T")


class ControlSettings(NamedTuple):
    """What one-shot requests need to know of a configuration, usually that of a producer.

    The options that matter here are read and checked as a producer's are, by the same table. All others are ignored.

    Attributes:
        bootstrap: the servers to start from.
        network: settings of the connections.
        backoff: the waits before something is tried again.
        security: how to connect to brokers; None means plain TCP without a proxy. Nothing of `penstock.security` is
            imported then.
    """

    bootstrap: tuple[Endpoint, ...]
    network: NetworkSettings
    backoff: ExponentialBackoff
    security: SecuritySettings | None = None

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], max_in_flight: int = DEFAULT_MAX_IN_FLIGHT
    ) -> ControlSettings:
        """Read the few options that matter here, by their dotted names or in snake case.

        Args:
            config: options; those of a producer that mean nothing here are ignored.
            max_in_flight: requests of one connection that may wait for their answer.

        Raises:
            ConfigError: bootstrap.servers is missing, a value is wrong, an option is given twice, or the options of
                security contradict each other.
        """
        if not isinstance(config, Mapping):
            raise ConfigError(f"the configuration must be a mapping of options, not {type(config).__name__}")
        values, explicit, written = read_some(config, _OPTIONS)
        apply_backoffs(values, explicit)
        network = NetworkSettings.from_options(
            values,
            client_id=DEFAULT_CLIENT_ID if values["client.id"] is None else values["client.id"],
            max_in_flight=max_in_flight,
            cluster_check=True,
        )
        backoff = ExponentialBackoff(values["retry.backoff.ms"], values["retry.backoff.max.ms"])
        bootstrap = tuple(Endpoint(*parse_address(server)) for server in values["bootstrap.servers"])
        return cls(bootstrap, network, backoff, security_of(values, explicit, written))


class ControlClient:
    """Asks the brokers of one cluster.

    Args:
        config: options of a client, by their dotted names or in snake case; bootstrap.servers is all that is needed.
            Options of a producer that mean nothing here are ignored.
        max_in_flight: requests of one connection that may wait for their answer.
        clock: the time; a simulator brings its own.
        backend: the sockets, likewise.
        rng: the source of random numbers, likewise.

    Raises:
        ConfigError: an option is wrong, or a file of certificates or keys cannot be used.
        BootstrapError: no bootstrap server can be resolved.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
        clock: Clock | None = None,
        backend: NetworkBackend | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._closed = True  # until all is built
        self._pid = os.getpid()
        self._has_threads = False
        settings = ControlSettings.from_config(config, max_in_flight)
        self._clock = clock = clock or SystemClock()
        rng = rng or random.Random()
        self._events = ClientEvents(settings.network.client_id or "", clock.now)
        if backend is None:
            secured = settings.security
            with working_for(self._events):
                backend = (
                    NetworkBackend.tcp(settings.network)
                    if secured is None
                    else secured.backend(settings.network)
                )
            self._has_threads = secured is not None
        try:
            nodes, _ = bootstrap_nodes(
                settings.bootstrap, settings.network.client_dns_lookup, backend.resolve, rng
            )
        except BaseException:
            backend.close()  # nobody else would
            raise
        self._metadata = ControlMetadata(nodes, settings.backoff, rng)
        self._network = NetworkClient(settings.network, backend, self._metadata, clock, rng)
        self._runner = Runner(
            self._network,
            self._metadata,
            Coordinators(settings.backoff, rng),
            settings.backoff,
            clock,
            rng,
            settings.network.request_timeout_ms / 1000,
        )
        self._closed = False

    # ---- jobs

    def run(self, steps: Steps[T], timeout: float | None = DEFAULT_TIMEOUT) -> T:
        """Run one job to its end; what it returns, or raises.

        Raises:
            KafkaTimeoutError: the time is up.
        """
        (ticket,) = self.run_all([steps], timeout)
        return ticket.result

    def run_all(
        self, work: Iterable[Steps[T]], timeout: float | None = DEFAULT_TIMEOUT, at_most: int = 1000
    ) -> list[Ticket[T]]:
        """Run jobs side by side to their ends, at most so many at a time; how each ended, in the same order.

        Raises:
            IllegalStateError: the client is closed.
        """
        if self._closed:
            raise IllegalStateError("the control client is closed")
        with working_for(self._events):
            return self._runner.run_all(work, timeout, at_most)

    def deadline(self, timeout: float | None) -> Callable[[], float | None]:
        """For work in several calls: a function that tells the seconds left of `timeout`, which starts now."""
        deadline = Deadline.after(self._clock.now(), timeout)
        return lambda: None if timeout is None else deadline.remaining(self._clock.now())

    # ---- requests

    def request(
        self,
        where: Node | Target | Literal["any"],
        request: Request,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> Any:
        """Send one request, once, and return the decoded answer; error codes in it are the caller's to judge.

        Raises:
            KafkaTimeoutError: no broker could be asked within the time, or none answered.
            NetworkError: the connection broke; whether the broker did what was asked is not known.
            UnsupportedVersionError: there is no common version; nothing was sent.
        """
        target = ANY if where == "any" else OnNode(where) if isinstance(where, Node) else where
        return self.run(ask_once(target, request), timeout)

    def brokers(self, timeout: float | None = DEFAULT_TIMEOUT) -> Sequence[Node]:
        """All brokers that the cluster has at the moment."""
        body = self.run(ask_until_answered(ANY, AskForTopics((), create=False), _metadata_error), timeout)
        return [Node(row["node_id"], row["host"], row["port"], row.get("rack")) for row in body["brokers"]]

    def find_coordinator(
        self,
        key: str,
        kind: CoordinatorKind = CoordinatorKind.TRANSACTION,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> Node:
        """The broker that coordinates a transactional id or a group, asked anew."""
        return self.find_coordinators([key], kind, timeout)[key]

    def find_coordinators(
        self,
        keys: Iterable[str],
        kind: CoordinatorKind = CoordinatorKind.TRANSACTION,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> dict[str, Node]:
        """The coordinators of many keys, with few requests.

        Raises:
            KafkaError: one of them could not be found out.
        """
        wanted = list(dict.fromkeys(keys))
        located = self.run_all(
            [locate(CoordinatorOf(key, kind)) for key in wanted], timeout, len(wanted) or 1
        )
        return {key: ticket.result for key, ticket in zip(wanted, located, strict=True)}

    def end_txn_version(self, timeout: float | None = DEFAULT_TIMEOUT) -> int:
        """The version of EndTxn for a transaction that is begun now: it says which protocol the cluster uses.

        5 for the newer one (KIP-890), else the highest of the older one that all known brokers take.
        """
        known = self._versions_of_brokers(timeout)
        newest = max(known, key=lambda versions: versions.finalized_features_epoch)
        if newest.finalized_features.get("transaction.version", 0) >= FIRST_FEATURE_OF_V2:
            return FIRST_END_TXN_OF_V2
        offered = [versions.range(END_TXN.key) or (0, 0) for versions in known]
        return min(LAST_END_TXN_OF_V1, *(highest for _, highest in offered))

    def verifies_transactions(self, timeout: float | None = DEFAULT_TIMEOUT) -> bool:
        """Whether all known brokers refuse a batch of a transaction that its coordinator does not have open.

        Brokers before 3.6 take what a producer writes after somebody else has aborted its transaction. Nobody ever ends
        that, and readers of committed records wait for it for ever.
        """
        offered = [
            versions.range(ADD_PARTITIONS_TO_TXN.key) for versions in self._versions_of_brokers(timeout)
        ]
        return all(
            found is not None and found[1] >= FIRST_ADD_PARTITIONS_OF_VERIFICATION for found in offered
        )

    def release_without(
        self, apis: Iterable[ApiSchema], timeout: float | None = DEFAULT_TIMEOUT
    ) -> str | None:
        """The release of a known broker that does not offer all of these APIs; None where each one does."""
        wanted = [api.key for api in apis]
        for versions in self._versions_of_brokers(timeout):
            if any(versions.range(key) is None for key in wanted):
                return versions.release
        return None

    def _versions_of_brokers(self, timeout: float | None) -> list[NodeApiVersions]:
        known = self._known_versions()
        if not known:
            self.brokers(timeout)
            known = self._known_versions()
        return known

    def _known_versions(self) -> list[NodeApiVersions]:
        nodes = self._metadata.nodes()
        return [versions for node in nodes if (versions := self._network.api_versions(node.id)) is not None]

    def leader(self, topic: str, partition: int, timeout: float | None = DEFAULT_TIMEOUT) -> Node:
        """The leader of a partition, asked anew; waits while there is none."""
        return self.run(locate(LeaderOf(topic, partition)), timeout)

    def unreached(self) -> Mapping[Node, KafkaError | None]:
        """The brokers that the cluster names, each with its last trouble, while none was ever reached; else none.

        The bootstrap servers are others: one that answers may name brokers by addresses that are of no use here.
        """
        named = self._metadata.named
        if any(self._network.was_ready(node.id) for node in named):
            return {}
        return {node: self._network.connection_error(node.id) for node in named}

    # ---- taking down

    def close(self) -> None:
        """Close all connections. Twice is harmless."""
        self._closed = True
        with working_for(self._events):
            self._network.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Forgotten without close(): the threads of security would wait, and fetch tokens, for ever. A child made by a
        # fork does not have them, nor connections of its own: to end TLS there would end it for the parent. When the
        # program ends, such a thread may have stopped for ever while it held a lock.
        if getattr(self, "_closed", True) or not self._has_threads:
            return
        if self._pid == os.getpid() and not sys.is_finalizing():
            name = repr(self)
            self.close()
            warnings.warn(
                f"{name} was forgotten without close(). Call close(), or use the client in a with statement.",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{counted(len(self._metadata.nodes()), 'node')} known"
        return f"<ControlClient: {state}>"


# Where a function takes its cluster from: options for a client of its own, or a client that is there already.
ControlSource = Mapping[str, Any] | ControlClient


@contextmanager
def control_client(
    source: ControlSource, max_in_flight: int = DEFAULT_MAX_IN_FLIGHT
) -> Iterator[ControlClient]:
    """The client that is there, which stays open; or one of its own, closed at the end."""
    if isinstance(source, ControlClient):
        yield source
        return
    with ControlClient(source, max_in_flight=max_in_flight) as client:
        yield client


def _metadata_error(body: Mapping[str, Any]) -> KafkaError | None:
    code = body.get("error_code", 0)
    return broker_error(code) if code else None


class IdleClients:
    """Connected clients of one process that nobody uses at the moment. Safe for several threads.

    Connecting costs more than all that a batch of the sink asks of the brokers. Between calls a client does nothing. A
    connection that brokers have closed meanwhile is noticed when it is next used.

    A client is used again for the same options alone: other credentials get a client of their own.
    """

    def __init__(self) -> None:
        self._lock: Any = new_lock()
        self._salt = os.urandom(32)
        # Guarded by the lock. A child made by a fork forgets its parent's, whose connections are not its own.
        self._pid = os.getpid()
        self._idle: dict[_Options, ControlClient] = {}

    @contextmanager
    def borrow(self, config: Mapping[str, Any]) -> Iterator[ControlClient]:
        """A client with these options: one that waited, or a new one. It waits again, unless there was an error."""
        options = _options_of(config, self._salt)
        client = self._take(options) or ControlClient(config)
        try:
            yield client
        except BaseException:
            client.close()
            raise
        self._give_back(options, client)

    def close(self) -> None:
        """Close the clients that nobody uses."""
        with self._lock:
            idle, self._idle = self._idle, {}
            ours = self._pid == os.getpid()
        for client in idle.values() if ours else ():
            client.close()

    def _take(self, options: _Options) -> ControlClient | None:
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._idle = os.getpid(), {}
            return self._idle.pop(options, None)

    def _give_back(self, options: _Options, client: ControlClient) -> None:
        with self._lock:
            surplus = self._idle.pop(options, None)
            if surplus is None and len(self._idle) >= MAX_IDLE:
                surplus = self._idle.pop(next(iter(self._idle)))
            self._idle[options] = client
        if surplus is not None:
            surplus.close()


class _Same:
    """An object as part of a key: equal to itself alone. It is kept, so that no other one can come in its place."""

    __slots__ = ("_kept",)

    def __init__(self, kept: object) -> None:
        self._kept = kept

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._kept is self._kept

    def __hash__(self) -> int:
        return id(self._kept)


class _Options(NamedTuple):
    """What tells one set of options from another, without their texts, some of which are secrets.

    Attributes:
        digest: of the names and the texts.
        objects: those that have no text: a ready ssl_context, a token provider.
    """

    digest: bytes
    objects: tuple[_Same, ...]


def _options_of(config: Mapping[str, Any], salt: bytes) -> _Options:
    from hashlib import blake2b  # a client of its own needs none of it

    parts = [part for name in sorted(config, key=str) for part in (str(name), *_parts(config[name]))]
    digest = blake2b(key=salt)
    for text in (part.encode("utf-8", "surrogatepass") for part in parts if isinstance(part, str)):
        digest.update(len(text).to_bytes(8, "big"))
        digest.update(text)
    return _Options(digest.digest(), tuple(part for part in parts if isinstance(part, _Same)))


def _parts(value: Any) -> Iterator[str | _Same]:
    """A value in pieces that can be compared. Its text stands for it only where nothing is left out of it."""
    if isinstance(value, Password) and not value.is_read_anew:
        value = value.value
    if isinstance(value, list | tuple):
        yield f"{len(value)} items"
        for item in value:
            yield from _parts(item)
    elif value is None or isinstance(value, str | int | float):
        yield type(value).__name__
        yield str(value)
    else:
        yield "object"
        yield _Same(value)
