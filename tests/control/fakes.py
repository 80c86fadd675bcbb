# SPDX-License-Identifier: Apache-2.0
"""A cluster in memory, in virtual time, that answers what a control client asks; tests change its rules."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

from network.fakes import FakeBroker, FakeNetwork, Received, api_versions_body, metadata_body

from penstock.control.client import ControlClient
from penstock.protocol.messages import API_VERSIONS, END_TXN, FETCH, FIND_COORDINATOR, LIST_OFFSETS, METADATA
from penstock.records._batch_cy import BatchWriter
from penstock.records.format import CONTROL_BIT, TRANSACTIONAL_BIT
from penstock.types import Node

# Error codes as brokers number them.
OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC = 3
NOT_LEADER = 6
COORDINATOR_LOADING = 14
COORDINATOR_NOT_AVAILABLE = 15
NOT_COORDINATOR = 16
TOPIC_AUTHORIZATION_FAILED = 29
INVALID_TXN_STATE = 48
CONCURRENT_TRANSACTIONS = 51
ID_AUTHORIZATION_FAILED = 53
PRODUCER_FENCED = 90


def control_batch(producer_id: int, epoch: int, *, commit: bool) -> bytes:
    """A transaction marker as a coordinator writes it."""
    writer = BatchWriter(bytearray(200), 200)
    writer.append(1_700_000_000_000, struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 7), None)
    return bytes(writer.seal(TRANSACTIONAL_BIT | CONTROL_BIT, producer_id, epoch, 0))


def at_offset(batch: bytes, offset: int) -> bytes:
    """A batch as it is stored: the broker has set its first offset, which the checksum does not cover."""
    return offset.to_bytes(8, "big") + batch[8:]


class ScriptedCluster:
    """Brokers 0..n-1 at b0:9092, b1:9092, ...; broker 0 coordinates and leads everything, unless told otherwise.

    Attributes:
        coordinator: who coordinates an id; -1 answers COORDINATOR_NOT_AVAILABLE.
        leaders: the leader of partition 0, by topic; other topics are not known.
        end_codes: the answers to the next EndTxn requests; the last one stays.
        log: what is in every log, in order, with offsets.
        log_start: the first offset that is kept.
        fetch_code: answered to every Fetch instead of records.
    """

    def __init__(self, brokers: int = 1) -> None:
        self.network = FakeNetwork()
        self.clock = self.network.clock
        self.nodes = [Node(index, f"b{index}", 9092) for index in range(brokers)]
        self.brokers = [FakeBroker(self.network, node) for node in self.nodes]
        self.coordinator: Callable[[str], int] = lambda _: 0
        self.leaders = {"t": 0}
        self.end_codes: list[int] = [0]
        self.log: list[tuple[int, bytes]] = []
        self.log_start = 0
        self.fetch_code = 0
        for broker in self.brokers:
            broker.rules |= {
                METADATA.key: self._metadata,
                FIND_COORDINATOR.key: self._find_coordinator,
                END_TXN.key: self._end_txn,
                FETCH.key: self._fetch,
                LIST_OFFSETS.key: self._list_offsets,
            }

    def client(self, **config: Any) -> ControlClient:
        options = {"bootstrap.servers": "b0:9092", "retry.backoff.ms": 100} | config
        return ControlClient(options, clock=self.clock, backend=self.network.backend(), rng=random.Random(7))

    def limit_versions(self, **ranges: tuple[int, int]) -> None:
        for broker in self.brokers:
            broker.rules[API_VERSIONS.key] = lambda _: api_versions_body(**ranges)

    def add_batch(self, batch: bytes, count: int = 1) -> int:
        """Append to the log; the offset."""
        offset = self.end_offset
        self.log.append((offset, at_offset(batch, offset)))
        self._end = offset + count
        return offset

    @property
    def end_offset(self) -> int:
        return getattr(self, "_end", 0)

    def seen(self, key: int, broker: int | None = None) -> list[Received]:
        """Requests of one API, as brokers got them."""
        asked = self.brokers if broker is None else [self.brokers[broker]]
        return [request for one in asked for request in one.seen if request.api.key == key]

    def stop(self, index: int) -> None:
        """Break the connections of a broker and refuse new ones."""
        broker = self.brokers[index]
        for place in [key for key, accept in self.network.listeners.items() if accept == broker._accept]:
            del self.network.listeners[place]
        for peer in broker.peers:
            peer.reset()

    # ---- rules

    def _metadata(self, request: Received) -> dict[str, Any]:
        topics = []
        for row in request.body["topics"]:
            leader = self.leaders.get(row["name"])
            partitions = [{"partition_index": 0, "leader_id": leader, "replica_nodes": [], "isr_nodes": []}]
            known = leader is not None
            topics.append(
                {
                    "error_code": 0 if known else UNKNOWN_TOPIC,
                    "name": row["name"],
                    "partitions": partitions if known else [],
                }
            )
        return metadata_body(*self.nodes) | {"topics": topics, "controller_id": self.nodes[-1].id}

    def _find_coordinator(self, request: Received) -> dict[str, Any]:
        body = request.body
        if request.version < 4:
            return self._coordinator_row(body["key"])
        return {
            "coordinators": [{"key": key} | self._coordinator_row(key) for key in body["coordinator_keys"]]
        }

    def _coordinator_row(self, key: str) -> dict[str, Any]:
        index = self.coordinator(key)
        if index < 0:
            code = COORDINATOR_NOT_AVAILABLE if index == -1 else -index
            return {"error_code": code, "node_id": -1, "host": "", "port": -1}
        node = self.nodes[index]
        return {"error_code": 0, "node_id": node.id, "host": node.host, "port": node.port}

    def _end_txn(self, request: Received) -> dict[str, Any]:
        code = self.end_codes[0]
        if len(self.end_codes) > 1:
            self.end_codes.pop(0)
        return {"error_code": code}

    def _fetch(self, request: Received) -> dict[str, Any]:
        (topic,) = request.body["topics"]
        (part,) = topic["partitions"]
        offset = part["fetch_offset"]
        row: dict[str, Any] = {"partition_index": 0, "error_code": self.fetch_code, "high_watermark": -1}
        if not self.fetch_code and not self.log_start <= offset <= self.end_offset:
            row["error_code"] = OFFSET_OUT_OF_RANGE
        if row["error_code"]:
            return {"responses": [{"topic": topic["topic"], "partitions": [row | {"records": None}]}]}
        following = [*self.log[1:], (self.end_offset, b"")]
        page = b""
        for (_, batch), (next_offset, _) in zip(self.log, following, strict=True):
            if next_offset > offset and (not page or len(page) + len(batch) <= part["partition_max_bytes"]):
                page += batch
        row |= {"high_watermark": self.end_offset, "records": page}
        return {"responses": [{"topic": topic["topic"], "partitions": [row]}]}

    def _list_offsets(self, request: Received) -> dict[str, Any]:
        (topic,) = request.body["topics"]
        row = {"partition_index": 0, "error_code": 0, "offset": self.log_start}
        return {"topics": [{"name": topic["name"], "partitions": [row]}]}
