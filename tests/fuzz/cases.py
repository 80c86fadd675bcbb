# SPDX-License-Identifier: Apache-2.0
"""Every API and version whose answers this package reads, with a request to be answered and answers to be corrupted."""

from __future__ import annotations

import random
from typing import NamedTuple

from network.harness import batch
from protocol.random_bodies import random_body
from records.legacy.entries import entry

from penstock.protocol._produce_cy import FIRST_VERSION_WITH_TOPIC_IDS, PartitionBatch, ProduceRequest
from penstock.protocol.codec import encode_response_body
from penstock.protocol.messages import API_BY_KEY, API_VERSIONS, PRODUCE
from penstock.protocol.messages.produce import FIRST_VERSION_WITH_BATCHES
from penstock.protocol.requests import Request, SchemaRequest
from penstock.protocol.schema import ApiSchema

TOPIC_ID = bytes(range(16))


class Case(NamedTuple):
    """An API in one of its versions."""

    api: ApiSchema
    version: int

    def __str__(self) -> str:
        return f"{self.api.name}-v{self.version}"

    def request(self) -> Request:
        """A request that is answered in this version."""
        if self.api is PRODUCE:
            topic_id = TOPIC_ID if self.version >= FIRST_VERSION_WITH_TOPIC_IDS else bytes(16)
            records = batch(100) if self.version >= FIRST_VERSION_WITH_BATCHES else entry(magic=0)
            batches = [PartitionBatch("t", topic_id, partition, records) for partition in range(3)]
            return ProduceRequest(-1, 1000, batches, max_version=self.version)
        body = random_body(self.api.request, self.version, random.Random(1))
        return SchemaRequest.of(self.api, body, self.version, self.version)

    def answer(self, seed: int) -> bytes:
        """The bytes of some answer that is well made."""
        body = random_body(self.api.response, self.version, random.Random(seed))
        return b"".join(bytes(part) for part in encode_response_body(self.api, self.version, body))


# ApiVersions belongs to the first exchange of a connection, and has tests of its own.
CASES = [
    Case(api, version)
    for api in API_BY_KEY.values()
    if api is not API_VERSIONS
    for version in range(api.min_version, api.max_version + 1)
]
HANDSHAKES = [
    Case(API_VERSIONS, version) for version in range(API_VERSIONS.min_version, API_VERSIONS.max_version + 1)
]
