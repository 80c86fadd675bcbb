# SPDX-License-Identifier: Apache-2.0
"""Keys that go everywhere: how the price of a record grows with the partitions and the brokers. Default settings.

On the real broker, where confluent-kafka does the same; and on fake brokers that cost next to nothing, for as many as
no machine has. What is said of partitions holds for three brokers.
"""

from __future__ import annotations

from bench.cases.common import EXACT
from bench.model import Case

REAL = (60, 600, 2_000)
FAKE = ((60, 3), (10_000, 3), (60, 100), (10_000, 100))  # partitions, brokers

CASES = [
    *(
        Case(
            f"scale-{partitions}",
            f"100-byte values with keys, default settings, {partitions:,} partitions",
            "scale",
            ("penstock-keyed", "confluent-keyed"),
            EXACT,
            partitions=partitions,
            keys=True,
        )
        for partitions in REAL
    ),
    *(
        Case(
            f"fake-{partitions}-{brokers}",
            f"the same, {partitions:,} partitions on {brokers} fake brokers",
            "scale",
            ("penstock-keyed",),
            EXACT,
            partitions=partitions,
            keys=True,
            brokers=brokers,
        )
        for partitions, brokers in FAKE
    ),
]
