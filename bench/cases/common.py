# SPDX-License-Identifier: Apache-2.0
"""Settings that several cases share. Everybody is idempotent and waits for all acknowledgements."""

from __future__ import annotations

EXACT = {"acks": "all", "enable.idempotence": "true"}
# What matters to a measurement is said, not left to defaults that differ.
BATCH_16K = {**EXACT, "batch.size": str(16 * 1024), "linger.ms": "5"}
BATCH_128K = {**EXACT, "batch.size": str(128 * 1024), "linger.ms": "5"}
