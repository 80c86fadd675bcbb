# SPDX-License-Identifier: Apache-2.0
"""Rows that cannot be sent, as records of the dead-letter topic.

A dead letter has the row's key, value and headers, and headers that say what is wrong with it and where it should have
gone. What does not fit into any record is left out, and a header has its size. Dead letters are sent like all rows: in
a transaction, they become visible with the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import DamagedRowError, KafkaError, RecordTooLargeError
from penstock.records.arrow_rows import moment_text
from penstock.types import RowErrors

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.producer.producer import Producer
    from penstock.producer.send.bulk_delivery import BulkDelivery

ERROR_HEADER: Final = "penstock.error"
TOPIC_HEADER: Final = "penstock.topic"
PARTITION_HEADER: Final = "penstock.spark.partition"
ROW_HEADER: Final = "penstock.spark.row"
TIMESTAMP_HEADER: Final = "penstock.timestamp"
WANTED_PARTITION_HEADER: Final = "penstock.partition"
VALUE_SIZE_HEADER: Final = "penstock.value.size"
KEY_SIZE_HEADER: Final = "penstock.key.size"
HEADERS_LEFT_OUT_HEADER: Final = "penstock.headers.left.out"

# A table may have many bad rows, and large ones: so many are copied at a time, whichever is reached first.
_AT_ONCE = 500
_BYTES_AT_ONCE = 1 << 20
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
        letters: list[_Letter] = []
        size = 0
        for number, error in rows:
            letters.append(self._letter(batch, number, error, first_row))
            size += letters[-1].size
            if len(letters) >= _AT_ONCE or size >= _BYTES_AT_ONCE:
                yield from self._send_letters(letters)
                letters, size = [], 0
        if letters:
            yield from self._send_letters(letters)

    def _send_letters(self, letters: list[_Letter]) -> Iterator[BulkDelivery]:
        for smaller in (_whole, _without_value, _without_anything):
            bulk = self._producer.send_arrow(
                self._dead_letter_topic, _table([smaller(letter) for letter in letters]), on_error="skip"
            )
            yield bulk
            # Everything but its size is in order with a dead letter; what the broker refuses is told by its delivery.
            too_large = [
                number
                for entry in bulk.errors
                if isinstance(entry.error, RecordTooLargeError)
                for number in range(entry.first_row, entry.last_row + 1)
            ]
            letters = [letters[number] for number in too_large]
            if not letters:
                return
        raise KafkaError(
            f"{len(letters)} bad {'row does' if len(letters) == 1 else 'rows do'} not fit into a record of "
            f"{self._dead_letter_topic!r} even without the content; raise kafka.max.request.size"
        )

    def _letter(self, batch: pa.RecordBatch, number: int, error: Exception, first_row: int) -> _Letter:
        is_damaged = isinstance(error, DamagedRowError)
        topic = None if self._topic is None else self._topic.encode()
        if topic is None and not is_damaged:
            topic = _topic(batch, number)
        about: list[Header] = [
            (ERROR_HEADER, str(error).encode()[:_LONGEST_ERROR]),
            (TOPIC_HEADER, topic),
            (PARTITION_HEADER, str(self._spark_partition).encode()),
            (ROW_HEADER, str(first_row + number).encode()),
            *_numbers(batch, number),
        ]
        if is_damaged:  # Arrow would read whatever memory the row names
            return _Letter(None, None, [], about)
        headers, left_out = _headers(batch, number)
        if left_out:
            about.append((HEADERS_LEFT_OUT_HEADER, str(left_out).encode()))
        letter = _Letter(_view(batch, "key", number), _view(batch, "value", number), headers, about)
        # With more headers it fits even less: its value need not be copied to find that out.
        return _without_value(letter) if isinstance(error, RecordTooLargeError) else letter


class _Letter:
    """A dead letter: what the row had, and what is to be said about it. Key and value still lie in the batch.

    Attributes:
        value_size: of the row's value, also where the letter goes without it.
    """

    def __init__(
        self, key: memoryview | None, value: memoryview | None, headers: list[Header], about: list[Header]
    ) -> None:
        self.key = key
        self.value = value
        self.headers = headers
        self.about = about
        self.value_size = _length(value)

    @property
    def size(self) -> int:
        """The bytes of key, value and headers."""
        texts = sum(len(name) + _length(value) for name, value in self.headers)
        return _length(self.key) + _length(self.value) + texts


def _length(content: bytes | memoryview | None) -> int:
    return 0 if content is None else len(content)


def _whole(letter: _Letter) -> _Letter:
    return letter


def _without_value(letter: _Letter) -> _Letter:
    smaller = _Letter(letter.key, None, letter.headers, [*_kept(letter), _size_header(letter)])
    smaller.value_size = letter.value_size
    return smaller


def _without_anything(letter: _Letter) -> _Letter:
    sizes = [
        _size_header(letter),
        (KEY_SIZE_HEADER, str(_length(letter.key)).encode()),
        (HEADERS_LEFT_OUT_HEADER, str(len(letter.headers)).encode()),
    ]
    about = [header for header in _kept(letter) if header[0] != HEADERS_LEFT_OUT_HEADER]
    return _Letter(None, None, [], [*about, *sizes])


def _kept(letter: _Letter) -> list[Header]:
    """What was said so far, but for the value's size."""
    return [header for header in letter.about if header[0] != VALUE_SIZE_HEADER]


def _size_header(letter: _Letter) -> Header:
    return VALUE_SIZE_HEADER, str(letter.value_size).encode()


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


def _view(batch: pa.RecordBatch, column: str, number: int) -> memoryview | None:
    """The bytes of a field, where they lie; strings may hold bytes that are no UTF-8, so they are not decoded."""
    if column not in batch.schema.names:
        return None
    buffer = batch.column(column)[number].as_buffer()
    return None if buffer is None else memoryview(buffer).cast("B")


def _topic(batch: pa.RecordBatch, number: int) -> bytes | None:
    view = _view(batch, "topic", number)
    return None if view is None else bytes(view)


def _numbers(batch: pa.RecordBatch, number: int) -> Iterator[Header]:
    """The timestamp and the partition that a row has: the record for it has others."""
    names = batch.schema.names
    if "timestamp" in names and (cell := batch.column("timestamp")[number]).is_valid:
        yield TIMESTAMP_HEADER, moment_text(cell.value, cell.type.unit).encode()
    if "partition" in names and (cell := batch.column("partition")[number]).is_valid:
        yield WANTED_PARTITION_HEADER, str(cell.as_py()).encode()


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
