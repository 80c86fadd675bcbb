# SPDX-License-Identifier: Apache-2.0
"""Which Kafka release speaks what: version ranges of the APIs, features, and the few rules that changed.

What is advertised is what is answered. Where a release knows higher versions than the message tables of this package,
the range ends with the tables; the one exception is Produce, whose versions 0 to 2 brokers advertise for the sake of
old clients and refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.protocol.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    API_VERSIONS,
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    LIST_TRANSACTIONS,
    METADATA,
    OFFSET_FETCH,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    TXN_OFFSET_COMMIT,
)
from penstock.protocol.schema import ApiSchema
from penstock.testing.settings import NO_LIMIT

TRANSACTION_VERSION: Final = "transaction.version"
_METADATA_VERSION: Final = "metadata.version"
_KRAFT_VERSION: Final = "kraft.version"  # supported; finalized only where the controllers' quorum may change

_NAMES: Final = ("2.4", "2.8", "3.0", "3.7", "3.9", "4.0", "4.1", "4.3")

# The highest version by release, in the order of _NAMES; None: the release does not have the API. Of AddPartitionsToTxn
# the versions from 4 on are for brokers alone, which verify transactions with them.
_HIGHEST: Final[dict[ApiSchema, tuple[int | None, ...]]] = {
    PRODUCE:               (8, 9, 9, 10, 11, 12, 13, 13),
    FETCH:                 (11, 12, 12, 16, 17, 17, 17, 17),
    LIST_OFFSETS:          (5, 6, 7, 8, 9, 10, 10, 10),
    METADATA:              (9, 11, 11, 12, 12, 13, 13, 13),
    OFFSET_FETCH:          (6, 7, 8, 9, 9, 9, 9, 9),
    FIND_COORDINATOR:      (3, 3, 4, 4, 6, 6, 6, 6),
    SASL_HANDSHAKE:        (1, 1, 1, 1, 1, 1, 1, 1),
    API_VERSIONS:          (3, 3, 3, 3, 4, 4, 4, 4),
    CREATE_TOPICS:         (5, 7, 7, 7, 7, 7, 7, 7),
    INIT_PRODUCER_ID:      (2, 4, 4, 4, 5, 5, 5, 5),
    ADD_PARTITIONS_TO_TXN: (1, 3, 3, 4, 5, 5, 5, 5),
    ADD_OFFSETS_TO_TXN:    (1, 3, 3, 3, 4, 4, 4, 4),
    END_TXN:               (1, 3, 3, 3, 4, 5, 5, 5),
    TXN_OFFSET_COMMIT:     (2, 3, 3, 3, 4, 5, 5, 5),
    SASL_AUTHENTICATE:     (1, 2, 2, 2, 2, 2, 2, 2),
    DESCRIBE_CONFIGS:      (2, 4, 4, 4, 4, 4, 4, 4),
    DESCRIBE_TRANSACTIONS: (None, None, 0, 0, 0, 0, 0, 0),
    LIST_TRANSACTIONS:     (None, None, 0, 0, 1, 1, 2, 2),
}  # fmt: skip

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
        ranges: lowest and highest version by API key, as advertised.
        features: finalized features of a new cluster.
        supported_features: lowest and highest level of each.
        verifies_transactions: a transactional batch is appended only when the coordinator knows of it (from 3.6).
        knows_unknown_producers: a batch that does not start at sequence 0, of a producer without state, is an
            UNKNOWN_PRODUCER_ID (before 2.5); later releases accept it.
        timestamp_after_max_ms: how far in the future a record may be (an hour from 4.0 on).
        has_old_topic_options: those are known that 4.0 has dropped.
        caps_min_insync_replicas: no more replicas need to be in step than the partition has (from 3.7).
    """

    name: str
    ranges: Mapping[int, tuple[int, int]]
    features: Mapping[str, int] = field(default_factory=dict)
    supported_features: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    verifies_transactions: bool = True
    knows_unknown_producers: bool = False
    timestamp_after_max_ms: int = NO_LIMIT
    has_old_topic_options: bool = False
    caps_min_insync_replicas: bool = True

    def accepts(self, api: ApiSchema, version: int) -> bool:
        """Whether a request in this version is answered; some versions are for brokers alone."""
        low, high = self.ranges.get(api.key, (0, -1))
        return max(low, api.min_version) <= version <= min(high, api.max_version)


def _release(name: str, column: int) -> Release:
    ranges = {
        api.key: (0 if api is PRODUCE else api.min_version, versions[column] or 0)
        for api, versions in _HIGHEST.items()
        if versions[column] is not None
    }
    number = tuple(int(part) for part in name.split("."))
    return Release(
        name,
        ranges,
        _FEATURES.get(name, {}),
        _supported(_FEATURES.get(name, {})),
        verifies_transactions=number >= (3, 6),
        knows_unknown_producers=number < (2, 5),
        timestamp_after_max_ms=_ONE_HOUR_MS if number >= (4, 0) else NO_LIMIT,
        has_old_topic_options=number < (4, 0),
        caps_min_insync_replicas=number >= (3, 7),
    )


def _supported(finalized: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    if not finalized:
        return {}
    ranges = {name: (0, level) for name, level in finalized.items()} | {_KRAFT_VERSION: (0, 1)}
    return ranges | {_METADATA_VERSION: (_OLDEST_METADATA_VERSION, finalized[_METADATA_VERSION])}


RELEASES: Final[dict[str, Release]] = {name: _release(name, column) for column, name in enumerate(_NAMES)}


def release_named(name: str) -> Release:
    """The row of a release.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in RELEASES:
        raise ValueError(f"the fake cluster knows no Kafka {name}, only {', '.join(RELEASES)}")
    return RELEASES[name]
