# SPDX-License-Identifier: Apache-2.0
"""What several integration tests need: the batches that went out, and the log files of a whole topic."""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fix_broker import LoggedBatch, parse_dump

from penstock.devbroker import DevCluster
from penstock.devbroker.settings import QUICK_JVM
from penstock.network.backend import NetworkBackend
from penstock.network.settings import NetworkSettings
from penstock.network.transport import Address, Endpoint, Transport
from penstock.protocol._wire_reader import Cursor
from penstock.protocol.codec import decode_request_body
from penstock.protocol.messages import PRODUCE
from penstock.protocol.schema import Buffer

TOPIC_COMMAND = "org.apache.kafka.tools.TopicCommand"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
_DUMP = "org.apache.kafka.tools.DumpLogSegments"

_FRAME = struct.Struct(">i")
_REQUEST_HEADER = struct.Struct(">hhih")


class SentBatches:
    """Notes every batch that producers write to their connections, while it watches."""

    def __init__(self) -> None:
        self.by_partition: defaultdict[int, list[bytes]] = defaultdict(list)

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        make = NetworkBackend.tcp

        def tcp(settings: NetworkSettings) -> NetworkBackend:
            backend = make(settings)

            def connect(address: Address, endpoint: Endpoint) -> Transport:
                return _NotingTransport(backend.connect(address, endpoint), self._on_request)

            return backend._replace(connect=connect)

        patch.setattr(NetworkBackend, "tcp", tcp)

    def checksums(self, partition: int) -> list[tuple[int, int]]:
        """Size and checksum of each batch, in the order in which they went out."""
        return [
            (len(batch), int.from_bytes(batch[17:21], "big"))  # where the format has its checksum
            for batch in self.by_partition[partition]
        ]

    def _on_request(self, frame: bytes) -> None:
        key, version, _, name_size = _REQUEST_HEADER.unpack_from(frame)
        if key != PRODUCE.key:
            return
        cursor = Cursor(memoryview(frame))
        cursor.advance(_REQUEST_HEADER.size + max(0, name_size))
        if PRODUCE.request_header_version(version) >= 2:
            cursor.skip_tagged_fields()
        body = decode_request_body(PRODUCE, version, cursor.data[cursor.pos :])
        for topic in body["topic_data"]:
            for row in topic["partition_data"]:
                self.by_partition[row["index"]].append(bytes(row["records"]))


class _NotingTransport:
    """Passes everything on to a transport, and tells of each request that was written whole."""

    def __init__(self, inner: Transport, on_request: Callable[[bytes], None]) -> None:
        self._inner = inner
        self._on_request = on_request
        self._written = bytearray()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send_some(self, buffers: Sequence[Buffer]) -> int:
        sent = self._inner.send_some(buffers)
        left = sent
        for buffer in buffers:
            self._written += memoryview(buffer)[:left]
            left -= min(left, len(buffer))
        while len(self._written) >= _FRAME.size:
            end = _FRAME.size + _FRAME.unpack_from(self._written)[0]
            if len(self._written) < end:
                break
            self._on_request(bytes(self._written[_FRAME.size : end]))
            del self._written[:end]
        return sent


def dump_topic(cluster: DevCluster, topic: str) -> dict[int, list[LoggedBatch]]:
    """Read the log files of all partitions of a topic with one run of Kafka's log dump."""
    files = [
        str(name)
        for path in cluster.log_dirs().values()
        for name in sorted(path.glob(f"{topic}-[0-9]*/*.log"))
    ]
    done = cluster.run_tool(_DUMP, "--deep-iteration", "--files", ",".join(files), jvm=QUICK_JVM)
    assert done.returncode == 0, done.stderr
    found: defaultdict[int, list[LoggedBatch]] = defaultdict(list)
    for text in done.stdout.split("Dumping ")[1:]:
        name = re.match(r"\S*-(\d+)/\d+\.log\n", text)
        assert name is not None, text[:200]
        found[int(name[1])] += parse_dump(text)
    return dict(found)


def grow_topic(cluster: DevCluster, topic: str, partitions: int) -> None:
    """Give a topic more partitions."""
    done = cluster.run_tool(
        TOPIC_COMMAND,
        *("--bootstrap-server", cluster.bootstrap_servers, "--alter", "--topic", topic),
        *("--partitions", str(partitions)),
        jvm=QUICK_JVM,
    )
    assert done.returncode == 0, done.stdout + done.stderr
