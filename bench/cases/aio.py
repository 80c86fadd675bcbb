# SPDX-License-Identifier: Apache-2.0
"""Producers for asyncio: records that are awaited when all are sent, and tasks that wait for each of their records."""

from __future__ import annotations

from bench.cases.common import BATCH_128K
from bench.model import Case

# A task waits for its record: nobody shall let it wait for company besides.
_AT_ONCE = {**BATCH_128K, "linger.ms": "0"}
_PRODUCERS = ("penstock-asyncio", "penstock-uvloop", "aiokafka-asyncio", "aiokafka-uvloop")

CASES = [
    Case(
        "asyncio-send",
        "asyncio, 100-byte values: `await send` in a loop, then await every outcome; 128 KiB batches, linger 5 ms",
        "asyncio",
        (*_PRODUCERS, "confluent-asyncio"),
        BATCH_128K,
    ),
    *(
        Case(
            f"asyncio-{tasks}",
            f"asyncio, 100-byte values, {whose} for each record, linger 0",
            "asyncio",
            (*_PRODUCERS, "confluent-asyncio-waits"),
            _AT_ONCE,
            tasks=tasks,
        )
        for tasks, whose in ((100, "100 tasks that wait"), (1, "one task that waits"))
    ),
]
