# SPDX-License-Identifier: Apache-2.0
"""As many small records as possible, with the batches that clients make by default and with larger ones."""

from __future__ import annotations

from bench.model import Case

# Not idempotent: what every contender can do today.
_ACKNOWLEDGED = {"acks": "all", "enable.idempotence": "false"}

CASES = [
    Case(
        "default",
        "100-byte values, each client's own defaults (Java, Penstock: 16 KiB batches), acks=all, not idempotent",
        _ACKNOWLEDGED,
    ),
    Case(
        "batch-128k",
        "100-byte values, 128 KiB batches, acks=all, not idempotent",
        {**_ACKNOWLEDGED, "batch.size": str(128 * 1024), "linger.ms": "5"},
    ),
]
