# SPDX-License-Identifier: Apache-2.0
"""Where there is no compiler: Penstock's Python sources against kafka-python, which is Python too."""

from __future__ import annotations

from bench.cases.common import BATCH_16K
from bench.model import Case

CASES = [
    Case(
        "pure",
        "100-byte values, 16 KiB batches, linger 5 ms, no compiled modules",
        "pure",
        ("penstock-pure", "kafka-python"),
        BATCH_16K,
    ),
]
