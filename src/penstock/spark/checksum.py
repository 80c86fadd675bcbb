# SPDX-License-Identifier: Apache-2.0
"""A checksum of the keys and values of a partition: the same for the same rows, however they were cut into batches.

It is taken over the bytes of the columns as they lie, without an object for a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crc32c import crc32c

if TYPE_CHECKING:
    import pyarrow as pa


class RunningChecksum:
    """Takes up batch after batch, in order."""

    def __init__(self) -> None:
        self._keys = 0
        self._values = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take up the columns `key`, if there is one, and `value`."""
        if "key" in batch.schema.names:
            self._keys = _extended(self._keys, batch.column("key"))
        self._values = _extended(self._values, batch.column("value"))

    @property
    def value(self) -> int:
        """The checksum so far, 64 bits: that of the keys above that of the values."""
        return self._keys << 32 | self._values


def _extended(checksum: int, column: pa.Array) -> int:
    """The checksum with the bytes of one more array. Spark leaves no bytes below a null, so nulls add none."""
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return checksum
    # 64-bit offsets under spark.sql.execution.arrow.useLargeVarTypes.
    places = memoryview(offsets).cast("B").cast("q" if str(column.type).startswith("large_") else "i")
    start, end = places[column.offset], places[column.offset + len(column)]
    return crc32c(memoryview(data)[start:end], checksum)
