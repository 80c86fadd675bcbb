# SPDX-License-Identifier: Apache-2.0
"""What each Kafka release understands: version ranges of the APIs, features, and the few rules that changed.

What is advertised is what is answered. Where a release knows more versions than the message tables of this package, the
range is that of the tables. The one exception is Produce: from 4.0 on brokers advertise versions 0 to 2 because of
old clients, and refuse them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.error_codes import ErrorCode
from penstock.protocol.messages import ADD_PARTITIONS_TO_TXN, API_BY_KEY, PRODUCE
from penstock.protocol.releases import ranges_of, release_name, releases
from penstock.protocol.schema import ApiSchema
from penstock.testing.producer_state import BATCHES_KEPT
from penstock.testing.settings import NO_LIMIT

TRANSACTION_VERSION: Final = "transaction.version"
_METADATA_VERSION: Final = "metadata.version"
_KRAFT_VERSION: Final = "kraft.version"  # supported; finalized only where the controllers' quorum may change

_OLDEST: Final = (0, 9, 0)
_LEFT_OUT: Final = ("4.2",)  # what it finalizes is not known here; its versions are those of 4.3
_FIRST_PRODUCE_WITH_BATCHES: Final = 3

# Finalized features of a cluster that was made with the release. Clients look at transaction.version alone; 4.3 has
# them all, as its brokers tell them.
_FEATURES: Final[dict[str, dict[str, int]]] = {
    "4.0": {_METADATA_VERSION: 25, TRANSACTION_VERSION: 2, "group.version": 1},
    "4.1": {_METADATA_VERSION: 27, TRANSACTION_VERSION: 2, "group.version": 1},
    "4.3": {
        _METADATA_VERSION: 30,
        TRANSACTION_VERSION: 2,
        "eligible.leader.replicas.version": 1,
        "group.version": 1,
        "share.version": 1,
        "streams.version": 1,
    },
}
_OLDEST_METADATA_VERSION: Final = 7  # of all releases with features

_ONE_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class Release:
    """One row.

    Attributes:
        ranges: lowest and highest version by API key, as advertised; before 0.10, which advertises nothing, as known.
        features: finalized features of a new cluster.
        supported_features: lowest and highest level of each.
        verifies_transactions: a transactional batch is appended only when the coordinator knows of it (from 3.6).
        knows_unknown_producers: a batch that does not start at sequence 0, of a producer without state, is an
            UNKNOWN_PRODUCER_ID (before 2.5); later releases accept it.
        timestamp_after_max_ms: how far in the future a record may be (an hour from 4.0 on).
        has_old_topic_options: those are known that 4.0 has dropped.
        wants_idempotent_write: batches are numbered only for who has that right on the cluster (before 2.8).
        caps_min_insync_replicas: no more replicas need to be in step than the partition has (from 3.7).
        message_format: the magic in which records are stored.
        keeps_message_format: a topic may be stored in an older one, by its option message.format.version (0.10 to 2.8).
        takes_message_sets: Produce 0 to 2 are answered, and carry message sets (before 4.0).
        drops_unknown: a request that is not known is not answered, and the connection stays (0.9); else it is closed.
        hints_versions: the refusal of a version of ApiVersions tells which ones there are (from 2.4).
        creates_without_leader: a topic that was just made has no leader yet, and not: it is unknown (before 3.0).
        closes_for_sets: a message set in Produce 3 and later closes the connection (before 2.1); else it is refused.
        batches_kept: so many batches of a producer are known again in a partition (1 before 1.0).
        code_for_records: the answer to a batch with records that cannot be taken (INVALID_RECORD from 2.4 on).
    """

    name: str
    ranges: Mapping[int, tuple[int, int]]
    features: Mapping[str, int] = field(default_factory=dict)
    supported_features: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    verifies_transactions: bool = True
    knows_unknown_producers: bool = False
    timestamp_after_max_ms: int = NO_LIMIT
    has_old_topic_options: bool = False
    wants_idempotent_write: bool = False
    caps_min_insync_replicas: bool = True
    message_format: int = 2
    keeps_message_format: bool = False
    takes_message_sets: bool = False
    drops_unknown: bool = False
    hints_versions: bool = True
    creates_without_leader: bool = False
    closes_for_sets: bool = False
    batches_kept: int = BATCHES_KEPT
    code_for_records: ErrorCode = ErrorCode.INVALID_RECORD

    def accepts(self, api: ApiSchema, version: int) -> bool:
        """Whether a request in this version is answered; some versions are for brokers alone."""
        low, high = self.ranges.get(api.key, (0, -1))
        if api is PRODUCE and not self.takes_message_sets:
            low = max(low, _FIRST_PRODUCE_WITH_BATCHES)
        return max(low, api.min_version) <= version <= min(high, api.max_version)


def _release(name: str) -> Release:
    number = _number(name)
    return Release(
        name,
        _ranges(name),
        _FEATURES.get(name, {}),
        _supported(_FEATURES.get(name, {})),
        verifies_transactions=number >= (3, 6),
        knows_unknown_producers=number < (2, 5),
        timestamp_after_max_ms=_ONE_HOUR_MS if number >= (4, 0) else NO_LIMIT,
        has_old_topic_options=number < (4, 0),
        wants_idempotent_write=number < (2, 8),
        caps_min_insync_replicas=number >= (3, 7),
        message_format=0 if number < (0, 10) else 1 if number < (0, 11) else 2,
        keeps_message_format=(0, 10) <= number < (3, 0),
        takes_message_sets=number < (4, 0),
        drops_unknown=number < (0, 10),
        hints_versions=number >= (2, 4),
        creates_without_leader=number < (3, 0),
        closes_for_sets=number < (2, 1),
        batches_kept=1 if number < (1, 0) else BATCHES_KEPT,
        code_for_records=ErrorCode.INVALID_RECORD if number >= (2, 4) else ErrorCode.CORRUPT_MESSAGE,
    )


def _ranges(name: str) -> dict[int, tuple[int, int]]:
    """What the release has of each API that this package knows, as far as its message tables go."""
    ranges = {}
    for key, (low, high) in ranges_of(name).items():
        api = API_BY_KEY[key]
        if high >= api.min_version:
            # The higher versions of this one are for brokers alone; clients only look whether they are there.
            last = high if api is ADD_PARTITIONS_TO_TXN else min(high, api.max_version)
            ranges[key] = (max(low, api.min_version), last)
    return ranges


def _number(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split("."))


def _supported(finalized: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    if not finalized:
        return {}
    ranges = {name: (0, level) for name, level in finalized.items()} | {_KRAFT_VERSION: (0, 1)}
    return ranges | {_METADATA_VERSION: (_OLDEST_METADATA_VERSION, finalized[_METADATA_VERSION])}


RELEASES: Final[dict[str, Release]] = {
    name: _release(name) for name in releases() if _number(name) >= _OLDEST and name not in _LEFT_OUT
}


def release_named(name: str) -> Release:
    """The row of a release, also by the name of a patch: 0.10.2.2, 2.8.2.

    Raises:
        ValueError: there is none of that name.
    """
    try:
        found = RELEASES.get(release_name(name))
    except ValueError:
        found = None
    if found is None:
        raise ValueError(f"the fake cluster knows no Kafka {name}, only {', '.join(RELEASES)}")
    return found
