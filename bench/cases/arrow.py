# SPDX-License-Identifier: Apache-2.0
"""Whole Arrow tables, against batches that need no work at all."""

from __future__ import annotations

from bench.cases.common import BATCH_128K
from bench.model import Case

CASES = [
    Case(
        "arrow",
        "Arrow tables, 100-byte values, 128 KiB batches",
        "arrow",
        ("penstock-arrow", "limit"),
        BATCH_128K,
    ),
    Case(
        "arrow-keys",
        "Arrow tables, 100-byte values and 7-byte keys that are hashed, 128 KiB batches",
        "arrow",
        ("penstock-arrow",),
        BATCH_128K,
        keys=True,
    ),
]
