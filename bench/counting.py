# SPDX-License-Identifier: Apache-2.0
"""How many records a topic has: asked from the broker, with one request on a socket of its own.

A contender that loses records must not look fast, so every run is counted where it ends. Kafka's tool could tell too,
but each call would start a virtual machine beside the next run.
"""

from __future__ import annotations

import socket
import time

from bench.model import BenchError
from penstock.protocol.codec import decode_response_body, encode_request_body
from penstock.protocol.framing import FrameReader, frame_request, parse_response_header
from penstock.protocol.messages import LIST_OFFSETS

_VERSION = 7  # any that the broker has would do
_LATEST = -1  # a timestamp that stands for the end
_TIMEOUT_SECONDS = 30.0
_MAX_ANSWER_BYTES = 1 << 20


def wait_until_counted(bootstrap_server: str, topic: str, partitions: int) -> None:
    """Wait until a new topic has its leaders: creating it returns a moment before.

    Raises:
        BenchError: that took too long.
    """
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while True:
        try:
            count_records(bootstrap_server, topic, partitions)
            return
        except BenchError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def count_records(bootstrap_server: str, topic: str, partitions: int) -> int:
    """The sum of the end offsets; the broker must lead every partition of the topic.

    Raises:
        BenchError: the broker did not tell.
    """
    wanted = [{"partition_index": number, "timestamp": _LATEST} for number in range(partitions)]
    body = {"replica_id": -1, "topics": [{"name": topic, "partitions": wanted}]}
    request = frame_request(
        LIST_OFFSETS, _VERSION, 1, "bench", encode_request_body(LIST_OFFSETS, _VERSION, body)
    )
    host, _, port = bootstrap_server.rpartition(":")
    with socket.create_connection((host, int(port)), _TIMEOUT_SECONDS) as connection:
        connection.sendall(b"".join(request))
        reader = FrameReader(_MAX_ANSWER_BYTES)
        frames: list[bytes | bytearray | memoryview] = []
        while not frames:
            data = connection.recv(65536)
            if not data:
                raise BenchError("the broker closed the connection instead of counting records")
            frames = reader.feed(data)
    _, answer = parse_response_header(LIST_OFFSETS, _VERSION, frames[0])
    total = 0
    for one in decode_response_body(LIST_OFFSETS, _VERSION, answer)["topics"]:
        for partition in one["partitions"]:
            if partition["error_code"] != 0:
                raise BenchError(
                    f"no end offset of {topic}-{partition['partition_index']}: error {partition['error_code']}"
                )
            total += partition["offset"]
    return total
