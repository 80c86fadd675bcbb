# SPDX-License-Identifier: Apache-2.0
"""The same work over SASL_SSL with SCRAM-SHA-256, TLS 1.3: what encryption leaves of everybody's speed."""

from __future__ import annotations

from bench.cases.common import BATCH_128K, EXACT
from bench.model import Case

_PRODUCERS = ("penstock", "confluent", "java")
_ACCESS = "sasl_ssl-scram-sha-256"

CASES = [
    Case(
        "tls-default",
        "100-byte values, each client's own batches and linger, SASL_SSL",
        "tls",
        _PRODUCERS,
        EXACT,
        access=_ACCESS,
    ),
    Case(
        "tls-128k",
        "100-byte values, 128 KiB batches, linger 5 ms, SASL_SSL",
        "tls",
        (*_PRODUCERS, "limit"),
        BATCH_128K,
        access=_ACCESS,
    ),
    Case(
        "tls-latency-1000",
        "100-byte values, 1,000 a second, linger 0, SASL_SSL",
        "tls-latency",
        _PRODUCERS,
        {**EXACT, "linger.ms": "0"},
        rate=1_000,
        often=("penstock", "confluent"),
        access=_ACCESS,
    ),
]
