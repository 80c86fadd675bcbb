# SPDX-License-Identifier: Apache-2.0
"""Metadata answers as they arrive, handed to whoever keeps the metadata."""

from __future__ import annotations

from typing import Any

from penstock.producer.metadata.metadata import ProducerMetadata
from penstock.protocol.codec import encode_response_body
from penstock.protocol.messages import METADATA
from penstock.protocol.requests import MetadataResponse, Request


def arrived(body: dict[str, Any], version: int = 13) -> MetadataResponse:
    return MetadataResponse(version, b"".join(map(bytes, encode_response_body(METADATA, version, body))))


def hand_over(
    metadata: ProducerMetadata, request: Request, body: dict[str, Any], now: float, version: int = 13
) -> int:
    """Take an answer whole; how many turns it took beyond the first."""
    return len(list(metadata.on_response(request, arrived(body, version), version, now)))
