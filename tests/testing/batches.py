# SPDX-License-Identifier: Apache-2.0
"""Batches that a broker must refuse, and batches with sequence numbers: asked of the fake cluster and of Kafka."""

from __future__ import annotations

import struct

from google_crc32c import value as crc32c
from testing.wire import NOW_MS, Producer, batch

from penstock.records import format as layout
from penstock.testing import Code

GOOD = batch(2)


def changed(data: bytes, at: int, fmt: str, value: int, *, crc: bool = True) -> bytes:
    """A batch with another value in its header, and a checksum that fits."""
    result = bytearray(data)
    struct.pack_into(fmt, result, at, value)
    if crc:
        struct.pack_into(">I", result, layout.CRC_AT, crc32c(bytes(result[layout.CHECKED_FROM :])))
    return bytes(result)


# name, bytes, and what a broker answers
NO_BATCH: list[tuple[str, bytes | None, Code]] = [
    ("null", None, Code.INVALID_RECORD),
    ("empty", b"", Code.INVALID_RECORD),
    ("cut off", GOOD[:-1], Code.INVALID_RECORD),
    ("two batches", GOOD + GOOD, Code.INVALID_RECORD),
    ("magic 1", changed(GOOD, layout.MAGIC_AT, "b", 1, crc=False), Code.INVALID_RECORD),
    ("tiny length", changed(GOOD, layout.BATCH_LENGTH_AT, ">i", 5, crc=False), Code.CORRUPT_MESSAGE),
    ("flipped bit", GOOD[:-1] + bytes([GOOD[-1] ^ 1]), Code.CORRUPT_MESSAGE),
    ("base offset", changed(GOOD, layout.BASE_OFFSET_AT, ">q", 7, crc=False), Code.INVALID_RECORD),
    ("count too high", changed(GOOD, layout.RECORDS_COUNT_AT, ">i", 3), Code.INVALID_RECORD),
    ("no records", changed(GOOD, layout.RECORDS_COUNT_AT, ">i", 0), Code.INVALID_RECORD),
    ("delta too high", changed(GOOD, layout.LAST_OFFSET_DELTA_AT, ">i", 2), Code.INVALID_RECORD),
    ("control bit", changed(GOOD, layout.ATTRIBUTES_AT, ">h", layout.CONTROL_BIT), Code.INVALID_RECORD),
    ("unknown bit", changed(GOOD, layout.ATTRIBUTES_AT, ">h", 0x200), Code.INVALID_RECORD),
    ("codec 6", changed(GOOD, layout.ATTRIBUTES_AT, ">h", 6), Code.UNSUPPORTED_COMPRESSION_TYPE),
    ("wrong codec", changed(GOOD, layout.ATTRIBUTES_AT, ">h", 1), Code.UNKNOWN_SERVER_ERROR),
    ("broker's time", changed(GOOD, layout.ATTRIBUTES_AT, ">h", 8), Code.INVALID_TIMESTAMP),
    ("largest timestamp", changed(GOOD, layout.MAX_TIMESTAMP_AT, ">q", NOW_MS + 1), Code.INVALID_RECORD),
    ("id, no sequence", changed(GOOD, layout.PRODUCER_ID_AT, ">q", 5), Code.INVALID_RECORD),
]

P = Producer(1000, 0)
NEXT = P.bumped()
OUT_OF_ORDER = (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
Step = tuple[Producer, int, int]
# name -> batches (producer, first number, records), each with the error code and the base offset of its answer
SEQUENCES: dict[str, list[tuple[Step, tuple[int, int]]]] = {
    "in-order": [((P, 0, 2), (0, 0)), ((P, 2, 1), (0, 2)), ((P, 3, 5), (0, 3))],
    "duplicate": [((P, 0, 2), (0, 0)), ((P, 2, 1), (0, 2)), ((P, 0, 2), (0, 0)), ((P, 2, 1), (0, 2))],
    "gap": [((P, 0, 2), (0, 0)), ((P, 3, 1), OUT_OF_ORDER), ((P, 2, 1), (0, 2))],
    "overlap": [((P, 0, 2), (0, 0)), ((P, 1, 2), OUT_OF_ORDER)],
    "unknown-producer-anywhere": [((P, 17, 1), (0, 0)), ((P, 18, 1), (0, 1))],
    "wrap": [((P, 2**31 - 2, 2), (0, 0)), ((P, 0, 1), (0, 2)), ((P, 2**31 - 2, 2), (0, 0))],
    "wrap-inside": [((P, 2**31 - 1, 3), (0, 0)), ((P, 2, 1), (0, 3))],
    "old-epoch": [((NEXT, 0, 1), (0, 0)), ((P, 0, 1), (Code.INVALID_PRODUCER_EPOCH, -1))],
    "new-epoch": [((P, 0, 4), (0, 0)), ((NEXT, 4, 1), OUT_OF_ORDER), ((NEXT, 0, 1), (0, 4))],
    # Refused behind a gap, then late copies of both, then sent again under a new epoch: the second one is there twice.
    "late-copies": [
        ((P, 0, 1), (0, 0)), ((P, 2, 1), OUT_OF_ORDER), ((P, 1, 1), (0, 1)), ((P, 2, 1), (0, 2)),
        ((NEXT, 0, 1), (0, 3)),
    ],
    # Once the new epoch has been seen, late copies are refused.
    "late-copies-behind-the-new-epoch": [
        ((P, 0, 1), (0, 0)), ((P, 2, 1), OUT_OF_ORDER), ((NEXT, 0, 1), (0, 1)),
        ((P, 1, 1), (Code.INVALID_PRODUCER_EPOCH, -1)), ((P, 2, 1), (Code.INVALID_PRODUCER_EPOCH, -1)),
    ],
    "two-producers": [((P, 0, 1), (0, 0)), ((Producer(7, 0), 0, 1), (0, 1)), ((P, 1, 1), (0, 2))],
    "five-kept": [*[((P, i, 1), (0, i)) for i in range(6)], ((P, 1, 1), (0, 1)), ((P, 0, 1), OUT_OF_ORDER)],
}  # fmt: skip
