# SPDX-License-Identifier: Apache-2.0
"""Arrow batches out of Spark rows, for versions of Spark that hand rows to a writer.

Spark 4.0 has no Arrow writer for streaming queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

# As many as Spark puts into an Arrow batch.
ROWS = 10_000


def row_batches(rows: Iterable[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Gather rows into batches with the columns of a record.

    Args:
        rows: Spark rows, which can be asked by the name of a column.
        schema: the columns they have, checked before.
    """
    import pyarrow as pa

    bytes_or_text = {"binary": pa.binary(), "string": pa.string()}
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    types = {
        "headers": pa.list_(header),
        "topic": pa.string(),
        "partition": pa.int32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
    columns = {
        field.name: types.get(field.name) or bytes_or_text[field.dataType.typeName()]
        for field in schema.fields
        if field.name in ("key", "value", *types)
    }
    source = iter(rows)
    while chunk := list(islice(source, ROWS)):
        arrays = [
            pa.array([_plain(name, row[name]) for row in chunk], kind) for name, kind in columns.items()
        ]
        yield pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _plain(name: str, value: Any) -> Any:
    """A value as Arrow takes it: headers come as rows, bytes as bytearrays, times without a zone as local ones."""
    if value is None:
        return None
    if name == "headers":
        return [
            header if header is None else {"key": header["key"], "value": header["value"]} for header in value
        ]
    if name == "timestamp" and value.tzinfo is None:
        return value.astimezone()
    return bytes(value) if isinstance(value, bytearray) else value
