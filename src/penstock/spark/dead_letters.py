# SPDX-License-Identifier: Apache-2.0
"""Rows that cannot be sent, as records of the dead-letter topic.

A dead letter has the row's key, value and headers, and headers that say what is wrong with it and where it should have
gone. What does not fit into any record is left out, and a header has its size. Dead letters are sent like all rows: in
a transaction, they become visible with the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import KafkaError
from penstock.types import RowErrors

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.producer.bulk_delivery import BulkDelivery
    from penstock.producer.producer import Producer

ERROR_HEADER: Final = "penstock.error"
TOPIC_HEADER: Final = "penstock.topic"
PARTITION_HEADER: Final = "penstock.spark.partition"
ROW_HEADER: Final = "penstock.spark.row"
VALUE_SIZE_HEADER: Final = "penstock.value.size"
KEY_SIZE_HEADER: Final = "penstock.key.size"
HEADERS_LEFT_OUT_HEADER: Final = "penstock.headers.left.out"

_AT_ONCE = 500  # a table may have many bad rows, and these are Python objects
_LONGEST_ERROR = 1000

Header = tuple[str, bytes | None]


class DeadLetters:
    """Sends bad rows of one Spark partition to the dead-letter topic.

    Args:
        producer: sends them.
        dead_letter_topic: where they go.
        topic: where the rows should have gone; None: the column says it.
        spark_partition: the partition of the DataFrame.
    """

    def __init__(
        self, producer: Producer, dead_letter_topic: str, topic: str | None, spark_partition: int
    ) -> None:
        self._producer = producer
        self._dead_letter_topic = dead_letter_topic
        self._topic = topic
        self._spark_partition = spark_partition

    def send(
        self, batch: pa.RecordBatch, errors: Iterable[RowErrors], first_row: int
    ) -> Iterator[BulkDelivery]:
        """Send the rows that errors name; their deliveries.

        Args:
            batch: where they are.
            errors: their numbers in the batch, and what is wrong.
            first_row: the number of the batch's first row in the partition of the DataFrame.

        Raises:
            KafkaError: a row does not fit into a record even without key, value and headers.
        """
        rows = (
            (number, entry.error) for entry in errors for number in range(entry.first_row, entry.last_row + 1)
        )
        while some := list(islice(rows, _AT_ONCE)):
            letters = [self._letter(batch, number, error, first_row) for number, error in some]
            yield from self._send_letters(letters)

    def _send_letters(self, letters: list[_Letter]) -> Iterator[BulkDelivery]:
        for smaller in (_whole, _without_value, _without_anything):
            bulk = self._producer.send_arrow(
                self._dead_letter_topic, _table([smaller(letter) for letter in letters]), on_error="skip"
            )
            yield bulk
            # Everything but its size is in order with a dead letter.
            too_large = [
                number for entry in bulk.errors for number in range(entry.first_row, entry.last_row + 1)
            ]
            letters = [letters[number] for number in too_large]
            if not letters:
                return
        raise KafkaError(
            f"{len(letters)} bad rows do not fit into a record of {self._dead_letter_topic!r} even without their "
            "content; raise kafka.max.request.size"
        )

    def _letter(self, batch: pa.RecordBatch, number: int, error: Exception, first_row: int) -> _Letter:
        headers, left_out = _headers(batch, number)
        topic = self._topic.encode() if self._topic is not None else _bytes(batch, "topic", number)
        about: list[Header] = [
            (ERROR_HEADER, str(error).encode()[:_LONGEST_ERROR]),
            (TOPIC_HEADER, topic),
            (PARTITION_HEADER, str(self._spark_partition).encode()),
            (ROW_HEADER, str(first_row + number).encode()),
        ]
        if left_out:
            about.append((HEADERS_LEFT_OUT_HEADER, str(left_out).encode()))
        return _Letter(_bytes(batch, "key", number), _bytes(batch, "value", number), headers, about)


class _Letter:
    """A dead letter: what the row had, and what is to be said about it."""

    def __init__(
        self, key: bytes | None, value: bytes | None, headers: list[Header], about: list[Header]
    ) -> None:
        self.key = key
        self.value = value
        self.headers = headers
        self.about = about


def _whole(letter: _Letter) -> _Letter:
    return letter


def _without_value(letter: _Letter) -> _Letter:
    size = (VALUE_SIZE_HEADER, str(len(letter.value or b"")).encode())
    return _Letter(letter.key, None, letter.headers, [*letter.about, size])


def _without_anything(letter: _Letter) -> _Letter:
    sizes = [
        (VALUE_SIZE_HEADER, str(len(letter.value or b"")).encode()),
        (KEY_SIZE_HEADER, str(len(letter.key or b"")).encode()),
        (HEADERS_LEFT_OUT_HEADER, str(len(letter.headers)).encode()),
    ]
    about = [header for header in letter.about if header[0] != HEADERS_LEFT_OUT_HEADER]
    return _Letter(None, None, [], [*about, *sizes])


def _table(letters: list[_Letter]) -> pa.RecordBatch:
    import pyarrow as pa

    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    headers = [
        [{"key": name, "value": value} for name, value in (*letter.headers, *letter.about)]
        for letter in letters
    ]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([letter.key for letter in letters], pa.binary()),
            pa.array([letter.value for letter in letters], pa.binary()),
            pa.array(headers, pa.list_(header)),
        ],
        names=["key", "value", "headers"],
    )


def _bytes(batch: pa.RecordBatch, column: str, number: int) -> bytes | None:
    """A field as bytes; strings may hold bytes that are no UTF-8, so they are not decoded."""
    import pyarrow as pa

    if column not in batch.schema.names:
        return None
    cell = batch.column(column).slice(number, 1)
    if pa.types.is_string(cell.type):
        cell = cell.view(pa.binary())
    elif pa.types.is_large_string(cell.type):
        cell = cell.view(pa.large_binary())
    value: bytes | None = cell[0].as_py()
    return value


def _headers(batch: pa.RecordBatch, number: int) -> tuple[list[Header], int]:
    """The headers of a row that can be sent, and how many cannot."""
    if "headers" not in batch.schema.names or not (cell := batch.column("headers")[number]).is_valid:
        return [], 0
    good: list[Header] = []
    entries = list(cell.values)
    for entry in entries:
        header = _try_header(entry)
        if header is not None:
            good.append(header)
    return good, len(entries) - len(good)


def _try_header(entry: Any) -> Header | None:
    if not entry.is_valid or not entry["key"].is_valid:
        return None
    try:
        return entry["key"].as_py(), entry["value"].as_py()
    except UnicodeDecodeError:
        return None
