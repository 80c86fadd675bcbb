# SPDX-License-Identifier: Apache-2.0
"""What transactions want to know of the cluster: its features, the versions of its brokers, the ids of its topics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from penstock.network import NetworkClient
from penstock.producer.metadata.cluster import NO_TOPIC_ID
from penstock.producer.metadata.metadata import ProducerMetadata
from penstock.protocol.messages import END_TXN, TXN_OFFSET_COMMIT
from penstock.protocol.requests import NodeApiVersions
from penstock.protocol.schema import ApiSchema

FIRST_OFFSETS_BY_TOPIC_ID = 6  # version of TxnOffsetCommit


class ClusterFacts:
    """Answers from what is known at the moment; asks no broker itself. I/O thread only.

    Args:
        client: knows what each connected broker can do.
        metadata: knows the topics.
        now: the present moment.
    """

    def __init__(self, client: NetworkClient, metadata: ProducerMetadata, now: Callable[[], float]) -> None:
        self._client = client
        self._metadata = metadata
        self._now = now

    def transaction_version(self) -> int | None:
        """The finalized feature of that name, as the newest answer has it; 0 without, None while nobody can tell."""
        known = self._known()
        if not known:
            return None
        newest = max(known, key=lambda versions: versions.finalized_features_epoch)
        return newest.finalized_features.get("transaction.version", 0)

    def end_txn_version(self) -> int | None:
        """The highest version of EndTxn that every connected broker accepts; None while nobody can tell."""
        return min(map(_highest(END_TXN), self._known()), default=None)

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, bytes] | None:
        """The ids of all these topics; None when one is not known, or no connected broker takes offsets by id.

        Those that are not known are asked for, so that the next offsets may go by id.
        """
        offered = max(map(_highest(TXN_OFFSET_COMMIT), self._known()), default=-1)
        if offered < FIRST_OFFSETS_BY_TOPIC_ID:
            return None
        for topic in topics:
            self._metadata.want_topic(topic, self._now())
        snapshot = self._metadata.snapshot
        ids = {topic: snapshot.topic_id(topic) for topic in topics}
        return None if NO_TOPIC_ID in ids.values() else ids

    def doubt_topics(self) -> None:
        """A broker did not know a topic: ask for all of them again."""
        self._metadata.request_update(self._now())

    def _known(self) -> list[NodeApiVersions]:
        nodes = self._metadata.nodes()
        return [versions for node in nodes if (versions := self._client.api_versions(node.id)) is not None]


def _highest(api: ApiSchema) -> Callable[[NodeApiVersions], int]:
    def highest(versions: NodeApiVersions) -> int:
        offered = versions.range(api.key)
        return -1 if offered is None else offered[1]

    return highest
