# SPDX-License-Identifier: Apache-2.0
"""From names to addresses.

Three jobs: the addresses of one node, tried one after the other (`HostAddresses`), the bootstrap servers of the
configuration (`bootstrap_nodes`), and the first look-up of these away from the I/O thread, within a budget of time
(`DeferredBootstrap`). Asking the name service is a function that is handed in.

Where names are resolved: a connection attempt resolves the name of its node on the I/O thread, as the Java client does,
so a name service that hangs holds up all connections of the producer for as long as the operating system waits for it
(see resolv.conf: timeout, attempts). Numeric addresses ask nobody. Only the first look-up of the bootstrap servers can
be had elsewhere: in the constructor, or on a thread of its own.

With bootstrap.resolve.timeout.ms above 0 a producer can be made before its DNS knows the brokers. The names are then
looked up on a helper thread, because a name service may block for long; the I/O thread only asks how far it has come.

Rules of that first look-up:
1. One look-up at a time; one that failed is repeated when the retry backoff has passed.
2. The budget starts when the I/O thread asks for the first time. An answer counts when it is there by the end of it.
3. Success and failure are final.
4. Nobody waits for the helper thread: one that hangs in the name service dies with the process, and what it finds after
   `close` is dropped.
"""

from __future__ import annotations

import logging
import math
import random
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from penstock._events import Event, current, tell, tell_error
from penstock.errors import BootstrapError
from penstock.network.transport import Address, Endpoint
from penstock.types import Node

logger = logging.getLogger("penstock.network")

# All addresses of a host; raises OSError when it has none.
Resolve = Callable[[str, int], Sequence[Address]]
# The full name of an address.
ReverseResolve = Callable[[Address], str]
# What getaddrinfo gives: family, type, protocol, canonical name, address.
_AddressInfo = tuple[Any, Any, int, str, Any]

USE_ALL_DNS_IPS = "use_all_dns_ips"
RESOLVE_CANONICAL = "resolve_canonical_bootstrap_servers_only"


def system_resolve(host: str, port: int) -> list[Address]:
    """Ask this machine's name service; may block for as long as that takes. A numeric address never blocks.

    IPv4 comes first. Only the first address's family is tried, and brokers that are bound to 127.0.0.1 while
    `localhost` means ::1 first are common; the Java client prefers IPv4 as well.

    Raises:
        OSError: the name is not known, or the name service cannot be asked.
    """
    try:
        found = _numeric_addresses(host, port) or _look_up(host, port)
    except UnicodeError as error:  # a label longer than 63 characters, for example
        raise OSError(f"not a host name: {error}") from error
    # TCP over anything but IPv4 and IPv6 does not come out of getaddrinfo, so these are the two forms of addresses.
    addresses = [Address(int(family), sockaddr) for family, _, _, _, sockaddr in found]
    return sorted(addresses, key=lambda address: address.family != socket.AF_INET)


def _numeric_addresses(host: str, port: int) -> list[_AddressInfo]:
    try:
        return _look_up(host, port, socket.AI_NUMERICHOST)
    except socket.gaierror:
        return []  # a name, not a number; where it is neither, the look-up that follows says so


def _look_up(host: str, port: int, flags: int = 0) -> list[_AddressInfo]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=flags)


def system_reverse_resolve(address: Address) -> str:
    """The full name of an address, or the address itself when it has none."""
    try:
        return socket.getnameinfo(address.sockaddr, 0)[0]
    except OSError:
        return address.ip


class HostAddresses:
    """The addresses of one host, in the order in which they are tried. Owned by the I/O thread.

    Each attempt takes the next address. When all have been tried the name is resolved again; the address tried last is
    then not the first to be tried, if there are others.
    """

    __slots__ = ("_addresses", "_last_tried", "_next", "host", "port")

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._addresses: list[Address] = []
        self._next = 0
        self._last_tried: Address | None = None

    def take_next(self, resolve: Resolve) -> Address:
        """The address for the next attempt.

        Raises:
            OSError: the name cannot be resolved.
        """
        if self._next >= len(self._addresses):
            self._addresses = _of_first_family(resolve(self.host, self.port))
            self._next = int(len(self._addresses) > 1 and self._addresses[0] == self._last_tried)
        self._last_tried = self._addresses[self._next]
        self._next += 1
        return self._last_tried

    def forget(self) -> None:
        """Resolve again next time: the node was connected and is gone, so it may have moved."""
        self._addresses = []
        self._next = 0


def _of_first_family(addresses: Sequence[Address]) -> list[Address]:
    if not addresses:
        raise OSError("the name has no address")
    family = addresses[0].family
    # A name service may list an address twice; trying it twice would only lose time.
    return list(dict.fromkeys(address for address in addresses if address.family == family))


class BootstrapFailure(NamedTuple):
    """A configured server whose name could not be resolved."""

    endpoint: Endpoint
    error: OSError


def resolve_bootstrap(
    endpoints: Sequence[Endpoint],
    dns_lookup: str,
    resolve: Resolve,
    reverse_resolve: ReverseResolve = system_reverse_resolve,
) -> tuple[list[Endpoint], list[BootstrapFailure]]:
    """Where first contact can be made, and the servers that were left out. Blocks as long as `resolve` does.

    With `resolve_canonical_bootstrap_servers_only` each address of a server counts under its canonical name, as
    Kerberos needs it; otherwise names are kept and resolved again for each connection.

    Raises:
        BootstrapError: no name can be resolved; the text has the cause for each.
    """
    hosts: list[Endpoint] = []
    failures: list[BootstrapFailure] = []
    for endpoint in endpoints:
        try:
            addresses = resolve(endpoint.host, endpoint.port)
        except OSError as error:
            failures.append(BootstrapFailure(endpoint, error))
            continue
        if dns_lookup == RESOLVE_CANONICAL:
            hosts.extend(Endpoint(reverse_resolve(address), endpoint.port) for address in addresses)
        else:
            hosts.append(endpoint)
    if not hosts:
        causes = "; ".join(
            f"{failure.endpoint}: {failure.error.strerror or failure.error}" for failure in failures
        )
        raise BootstrapError(
            f"none of the bootstrap.servers can be resolved ({causes}). Check the names, and the DNS."
        )
    return list(dict.fromkeys(hosts)), failures


def as_bootstrap_nodes(hosts: Sequence[Endpoint], rng: random.Random) -> list[Node]:
    """The nodes for first contact, with ids -1, -2, ... in random order, so that clients spread over the servers."""
    shuffled = list(hosts)
    rng.shuffle(shuffled)
    return [Node(-1 - index, host, port) for index, (host, port) in enumerate(shuffled)]


def bootstrap_nodes(
    endpoints: Sequence[Endpoint],
    dns_lookup: str,
    resolve: Resolve,
    rng: random.Random,
    reverse_resolve: ReverseResolve = system_reverse_resolve,
) -> tuple[list[Node], list[BootstrapFailure]]:
    """Both in one: the nodes for first contact, and the servers that were left out.

    Raises:
        BootstrapError: no name can be resolved; the text has the cause for each.
    """
    hosts, failures = resolve_bootstrap(endpoints, dns_lookup, resolve, reverse_resolve)
    return as_bootstrap_nodes(hosts, rng), failures


# ------------------------------------------------------------------------------------------ the first look-up, aside

# The servers to start from, after looking them up; blocks, and raises BootstrapError when there is none.
LookUp = Callable[[], Sequence[Endpoint]]
# Runs a function where it may block, and returns at once.
RunAside = Callable[[Callable[[], None]], None]


def run_on_daemon_thread(work: Callable[[], None]) -> None:
    """Run the function on a thread that does not keep the process alive.

    Where no thread can be started it runs here: Python refuses new threads from 3.12 on when the program ends.
    """
    thread = threading.Thread(target=work, name="penstock-aside", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        tell(logger, logging.DEBUG, Event.NO_THREAD, "No thread could be started: %s", error)
        work()


class BootstrapSettings(NamedTuple):
    """How long to try, and how long to rest between two look-ups."""

    resolve_timeout_ms: float
    retry_backoff_ms: float


class DeferredBootstrap:
    """Looks up the bootstrap servers until it succeeds or the time is up.

    Args:
        settings: the budget and the backoff.
        look_up: asks the name service; called on the helper thread.
        run_aside: starts the helper thread.
        wake: wakes the I/O thread; called on the helper thread when a look-up has ended.
    """

    def __init__(
        self, settings: BootstrapSettings, look_up: LookUp, run_aside: RunAside, wake: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._look_up = look_up
        self._run_aside = run_aside
        self._wake = wake
        self._events = current()  # it looks up on a thread of its own
        # Written by the helper thread, taken by the I/O thread: how the look-up ended, None while it has not.
        self._outcome: Sequence[Endpoint] | BootstrapError | None = None
        # Written by the I/O thread, read by the helper thread.
        self._closed = False
        # Owned by the I/O thread.
        self._deadline: float | None = None
        self._looking = False
        self._next_look_up_at = -math.inf
        self._last_error: BootstrapError | None = None
        self._final: Sequence[Endpoint] | BootstrapError | None = None

    @property
    def last_error(self) -> BootstrapError | None:
        """Why the latest look-up failed; None when none has."""
        return self._last_error

    def advance(self, now: float) -> Sequence[Endpoint] | BootstrapError | None:
        """Take the next step.

        Returns:
            The servers to start from, or the error when the time is up, told once; None before and after.
        """
        if self._final is not None or self._closed:
            return None
        if self._deadline is None:
            self._deadline = now + self._settings.resolve_timeout_ms / 1000
        self._final = self._take_outcome(now)
        if self._final is None:
            if now >= self._deadline:
                self._final = self._time_is_up()
            elif not self._looking and now >= self._next_look_up_at:
                self._looking = True
                self._run_aside(self._work)
        return self._final

    def seconds_to_advance(self, now: float) -> float:
        """Seconds until `advance` has something to do; the end of a look-up wakes the I/O thread."""
        if self._final is not None or self._deadline is None:
            return math.inf
        until = self._deadline if self._looking else min(self._deadline, self._next_look_up_at)
        return max(0.0, until - now)

    def close(self) -> None:
        """Stop; a look-up under way is left alone."""
        self._closed = True

    def _take_outcome(self, now: float) -> Sequence[Endpoint] | None:
        outcome, self._outcome = self._outcome, None
        if outcome is None:
            return None
        self._looking = False
        if not isinstance(outcome, BootstrapError):
            return outcome
        if self._last_error is None:
            text = "%s They are looked up again until the time is up."
            tell(logger, logging.WARNING, Event.BOOTSTRAP_UNRESOLVED, text, outcome, error=outcome)
        self._last_error = outcome
        self._next_look_up_at = now + self._settings.retry_backoff_ms / 1000
        return None

    def _time_is_up(self) -> BootstrapError:
        cause = self._last_error
        why = str(cause) if cause is not None else "The name service gave no answer."
        error = BootstrapError(
            f"the bootstrap servers could not be resolved within bootstrap.resolve.timeout.ms "
            f"({self._settings.resolve_timeout_ms:.0f} ms), and this producer has given up: {why}"
        )
        error.__cause__ = cause
        return error

    def _work(self) -> None:
        """The body of the helper thread."""
        outcome: Sequence[Endpoint] | BootstrapError
        try:
            outcome = self._look_up()
        except BootstrapError as error:
            outcome = error
        except Exception as error:  # noqa: BLE001 - it is logged
            # Nobody could catch it here, and the look-up must end for the I/O thread.
            tell_error(
                logger, Event.BOOTSTRAP_UNRESOLVED,
                "Looking up the bootstrap servers failed in an unexpected way",
                of=self._events, error=error,
            )  # fmt: skip
            outcome = BootstrapError(f"the bootstrap servers could not be looked up: {error!r}")
            outcome.__cause__ = error
        if not self._closed:
            self._outcome = outcome
            self._wake()

    def __repr__(self) -> str:
        state = (
            "failed" if isinstance(self._final, BootstrapError)
            else "done" if self._final is not None
            else "looking" if self._looking
            else "resting"
        )  # fmt: skip
        return f"<DeferredBootstrap: {state}>"
