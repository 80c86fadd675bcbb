# SPDX-License-Identifier: Apache-2.0
"""How long a record takes from send to acknowledgement, at rates that are no effort for anybody."""

from __future__ import annotations

from bench.cases.common import EXACT
from bench.model import Case

CASES = [
    Case(
        f"latency-{rate}",
        f"100-byte values, {rate:,} a second, linger 0",
        "latency",
        ("penstock", "confluent", "java", "aiokafka", "kafka-python", "limit"),
        {**EXACT, "linger.ms": "0"},
        rate=rate,
        often=("penstock", "confluent", "aiokafka"),
    )
    for rate in (1_000, 10_000)
]
