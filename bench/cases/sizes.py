# SPDX-License-Identifier: Apache-2.0
"""Records of other sizes than 100 bytes, which batch-128k has."""

from __future__ import annotations

from bench.cases.common import BATCH_128K
from bench.model import Case

CASES = [
    Case(
        f"size-{name}",
        f"values of {size:,} bytes, 128 KiB batches, linger 5 ms",
        "sizes",
        ("penstock", "confluent", "java"),
        BATCH_128K,
        record_size=size,
    )
    for name, size in (("10b", 10), ("1k", 1_000), ("10k", 10_000))
]
