# SPDX-License-Identifier: Apache-2.0
"""Brokers before Kafka 0.10 do not answer ApiVersions: how the client detects them, and what they can do.

Kafka 0.8.2 closes the connection when it gets an ApiVersions request. Kafka 0.9.0 drops the request: nothing is
answered, the connection stays open, and the requests that follow are answered. A new broker that is frozen or slow
looks the same for a while. If it were taken for an old one, records would be sent without idempotence. Therefore:

1. Silence alone proves nothing. What proves that a broker drops ApiVersions is an answer to a Metadata request that was
   sent after it on the same connection: brokers answer the requests of one connection in order.
2. Two connections must prove it. The second one asks for Metadata first, and for ApiVersions in version 0.
3. A closed connection proves something only where the broker has answered Metadata on that connection before. This must
   happen twice in a row: first after the newest version of ApiVersions, then after version 0.
4. When one broker has answered ApiVersions, no broker of the cluster is taken for an old one any more.
5. What was proven holds for one connection. The next one to the same address begins as the second one did; so do the
   first ones to the other brokers of a cluster that has shown an old one.
6. `broker.version.fallback` names the release. Then one connection is enough for rule 2, and rule 4 does not apply: the
   user knows that the cluster is mixed. But it is asked all the same, so that a forgotten option does no harm after an
   upgrade. Rule 3 stays: a broker that is stopped for its upgrade closes the connection, too.
7. With SASL nothing can be proven, because brokers take no Metadata request before the client has authenticated. It is
   not needed either: before 0.10 there was no SASL but Kerberos.

No clock here: `now` is a parameter. Owned by the I/O thread.
"""

from __future__ import annotations

import enum
import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock._events import Event, tell
from penstock.network.transport import Endpoint
from penstock.protocol.requests import NodeApiVersions
from penstock.types import Node

logger = logging.getLogger("penstock.network")

# What a broker is taken for, unless the user says it. One that closes may be a later build of 0.9 as well: what 0.8.2
# knows works there, too.
RELEASE_THAT_DROPS: Final = "0.9.0"
RELEASE_THAT_CLOSES: Final = "0.8.2"

# Seconds of silence after ApiVersions, until Metadata is asked for behind it. A broker that is only slow then gets one
# request too many, so the first wait is long.
FIRST_PATIENCE: Final = 2.0
LATER_PATIENCE: Final = 0.5  # once a connection has shown that a broker drops ApiVersions
PATIENCE_WITH_FALLBACK: Final = 0.1
# Seconds for which what a closed connection has proven holds for the next one.
_PROOF_LASTS: Final = 30.0
# Rule 3.
_CLOSINGS_THAT_PROVE: Final = 2
# After this number of connections that were closed at ApiVersions the oldest version is asked for: perhaps something
# between client and broker does not accept the newest one.
_CLOSINGS_UNTIL_OLDEST: Final = 2


class OpeningMode(enum.Enum):
    """How a connection begins."""

    ASK = "ask for versions"
    PROBE = "ask for brokers, then for versions"
    ASSUME = "ask nothing"


class Approach(NamedTuple):
    """How the next connection to a broker begins.

    Attributes:
        mode: see OpeningMode.
        oldest: ask for ApiVersions in version 0.
        patience: seconds of silence after ApiVersions until Metadata is asked for behind it; infinity is never.
    """

    mode: OpeningMode
    oldest: bool
    patience: float


@dataclass(slots=True)
class _Evidence:
    """What connections to one address have proven, since the last answer to ApiVersions."""

    mode: OpeningMode = OpeningMode.ASK  # of the next connection
    closings: int = 0  # connections that were closed instead of an answer to ApiVersions
    proofs: int = 0  # of those, in a row, the ones on which Metadata had been answered (rule 3)
    dropped: bool = False  # a connection has shown that ApiVersions is dropped (rule 1)
    assume_until: float = -math.inf
    told: bool = False  # that the broker is taken for an old one


class OldBrokers:
    """Remembers, by address, what is known of brokers that do not answer ApiVersions.

    Args:
        fallback: the release that such brokers have, as the user says; None to find it out.
    """

    def __init__(self, fallback: str | None) -> None:
        self._fallback = fallback
        self._cluster_answers = False  # rule 4
        self._any_old = False  # a broker was taken for an old one
        self._any_dropped = False  # a connection has shown that a broker drops ApiVersions
        self._evidence: dict[tuple[str, int], _Evidence] = {}

    def approach(self, node: Node, now: float, *, authenticates: bool) -> Approach:
        """How to begin a connection to that broker."""
        known = self._evidence.get(_address(node)) or _Evidence()
        if authenticates or (self._cluster_answers and self._fallback is None):
            return Approach(OpeningMode.ASK, known.closings >= _CLOSINGS_UNTIL_OLDEST, math.inf)
        mode = known.mode
        if mode is OpeningMode.ASSUME and now >= known.assume_until:
            mode = OpeningMode.PROBE
        if mode is OpeningMode.ASK and self._any_old and not self._cluster_answers:
            mode = OpeningMode.PROBE  # rule 5
        oldest = known.dropped or known.proofs > 0 or known.closings > _CLOSINGS_UNTIL_OLDEST
        return Approach(mode, oldest, self._patience())

    def _patience(self) -> float:
        if self._fallback is not None:
            return PATIENCE_WITH_FALLBACK
        return LATER_PATIENCE if self._any_dropped else FIRST_PATIENCE

    def assumed(self, node: Node) -> NodeApiVersions:
        """What a broker that is not asked can do; the connection after this one asks again (rule 5)."""
        known = self._of(node)
        known.mode = OpeningMode.PROBE
        known.proofs = _CLOSINGS_THAT_PROVE - 1
        return self._take_for(node, RELEASE_THAT_CLOSES)

    # ---- what connections have shown

    def on_answered(self, node: Node) -> None:
        """The broker has answered ApiVersions."""
        self._cluster_answers = True
        self._evidence.pop(_address(node), None)

    def on_dropped(self, node: Node, mode: OpeningMode) -> NodeApiVersions | None:
        """The broker has dropped ApiVersions: what it can do, or None where a second connection must prove it."""
        known = self._of(node)
        known.dropped = self._any_dropped = True
        known.mode = OpeningMode.PROBE
        if mode is OpeningMode.ASK and self._fallback is None:
            return None
        return self._take_for(node, RELEASE_THAT_DROPS)

    def on_closed(self, node: Node, mode: OpeningMode, now: float, *, after_metadata: bool) -> None:
        """The broker has closed the connection instead of an answer.

        Args:
            node: the broker.
            mode: how the connection had begun.
            now: the time.
            after_metadata: Metadata had been answered on it, and ApiVersions was asked for.
        """
        known = self._of(node)
        known.closings += 1
        if mode is OpeningMode.ASK:
            known.mode = OpeningMode.PROBE
        elif not after_metadata:
            self._start_over(known)
        else:
            known.proofs += 1
            if known.proofs >= _CLOSINGS_THAT_PROVE:
                known.mode = OpeningMode.ASSUME
                known.assume_until = now + _PROOF_LASTS

    def on_silent(self, node: Node) -> None:
        """The connection was given up without an answer, and proves nothing."""
        known = self._evidence.get(_address(node))
        if known is not None:
            self._start_over(known)

    def keep_nodes(self, kept: Iterable[Node]) -> None:
        """Forget all other addresses: brokers may get new ones for ever. One that comes back must prove it again."""
        addresses = {_address(node) for node in kept}
        self._evidence = {where: known for where, known in self._evidence.items() if where in addresses}

    # ---- inside

    def _of(self, node: Node) -> _Evidence:
        return self._evidence.setdefault(_address(node), _Evidence())

    def _start_over(self, known: _Evidence) -> None:
        known.mode = OpeningMode.ASK
        known.proofs = 0

    def _take_for(self, node: Node, release: str) -> NodeApiVersions:
        versions = NodeApiVersions.of_release(self._fallback or release)
        known = self._of(node)
        self._any_old = True
        if not known.told:
            known.told = True
            why = (
                "broker.version.fallback says so"
                if self._fallback
                else "set broker.version.fallback if it is not"
            )
            tell(
                logger, logging.WARNING, Event.OLD_BROKER,
                "The broker at %s does not answer ApiVersions, as brokers before Kafka 0.10 do not: it is taken for "
                "Kafka %s (%s)",
                Endpoint(node.host, node.port), versions.release, why,
                node=node,
            )  # fmt: skip
        return versions


def _address(node: Node) -> tuple[str, int]:
    return node.host, node.port
