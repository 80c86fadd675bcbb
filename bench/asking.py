# SPDX-License-Identifier: Apache-2.0
"""One request to the broker, on a socket of its own.

Kafka's tools could make topics and tell offsets too, but each call would start a virtual machine beside the runs.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from bench.model import BenchError
from penstock.protocol._framing_cy import FrameReader, frame_request, parse_response_header
from penstock.protocol.codec import decode_response_body, encode_request_body
from penstock.protocol.schema import ApiSchema

TIMEOUT_SECONDS = 30.0
_MAX_ANSWER_BYTES = 1 << 20


def ask(server: str, api: ApiSchema, version: int, body: Mapping[str, Any]) -> dict[str, Any]:
    """Send a request and wait for its answer.

    Raises:
        BenchError: the broker closed the connection.
        OSError: it cannot be reached, or does not answer.
    """
    request = frame_request(api, version, 1, "bench", encode_request_body(api, version, dict(body)))
    host, _, port = server.rpartition(":")
    with socket.create_connection((host, int(port)), TIMEOUT_SECONDS) as connection:
        connection.sendall(b"".join(request))
        reader = FrameReader(_MAX_ANSWER_BYTES)
        frames: list[bytes | bytearray | memoryview] = []
        while not frames:
            data = connection.recv(65536)
            if not data:
                raise BenchError(f"the broker closed the connection instead of answering {api.name}")
            frames = reader.feed(data)
    _, answer = parse_response_header(api, version, frames[0])
    found: dict[str, Any] = decode_response_body(api, version, answer)
    return found
