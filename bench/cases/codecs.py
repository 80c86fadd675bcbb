# SPDX-License-Identifier: Apache-2.0
"""The codecs, on values that compress as JSON events do; the same level for everybody.

lz4 and snappy have none that all could set: everybody's default is the fast one.
"""

from __future__ import annotations

from bench.cases.common import BATCH_128K
from bench.model import Case

_LEVELS = {"gzip": "6", "zstd": "3"}


def _settings(codec: str) -> dict[str, str]:
    level = {f"compression.{codec}.level": _LEVELS[codec]} if codec in _LEVELS else {}
    return {**BATCH_128K, "compression.type": codec, **level}


CASES = [
    Case(
        codec,
        f"JSON events of 300 bytes, {codec}{f' level {_LEVELS[codec]}' if codec in _LEVELS else ''}, 128 KiB batches",
        "codecs",
        ("penstock", "confluent", "java"),
        _settings(codec),
        record_size=300,
        values="events",
    )
    for codec in ("zstd", "lz4", "snappy", "gzip")
]
