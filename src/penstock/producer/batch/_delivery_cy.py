# SPDX-License-Identifier: Apache-2.0
"""The Delivery: what send() returns, one per record. Compiled if possible.

What all records of a batch have in common is in their BatchResult; a Delivery adds only what is the record's own,
because an application may keep millions of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from penstock._arguments import check_callable, check_timeout
from penstock.errors import KafkaError, KafkaTimeoutError
from penstock.producer.batch.delivery import follow, until_done
from penstock.types import RecordMetadata

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from penstock.producer.batch.delivery import BatchResult


# By another name, so that Cython looks at what users give instead of converting it.
Seconds = float


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.final
# A Delivery refers to its batch's result only, and once that is done, nothing in it leads back: its errors are its own,
# and users get twins of them, so that no traceback, and with it no frame that holds the Delivery, hangs on them.
@cython.no_gc
@cython.freelist(256)
@cython.cclass
class Delivery:
    """The future of one accepted record.

    It can be waited for (`result`, `exception`), asked (`done`), followed (`add_done_callback`), and awaited inside a
    running asyncio loop. It cannot be cancelled: the record is on its way.
    """

    def __init__(
        self, batch: BatchResult, index: int, timestamp: int = -1, key_size: int = -1, value_size: int = -1
    ) -> None:
        self._batch = batch
        self._index = index
        self._timestamp = timestamp
        self._key_size = key_size
        self._value_size = value_size

    def done(self) -> bool:
        """Whether the outcome is known and its callback has run."""
        batch = self._batch
        if batch.pieces:
            batch = self._answered_by()
        return bool(batch.done)

    def result(self, timeout: Seconds | None = None) -> RecordMetadata:
        """Wait for the acknowledgement; where the record is.

        Raises:
            KafkaTimeoutError: the time is up; the record goes on.
            KafkaError: the record was not acknowledged, and why.
        """
        metadata, error = self._wait(timeout)
        if error is not None:
            raise error
        return metadata

    def exception(self, timeout: Seconds | None = None) -> KafkaError | None:
        """Wait for the outcome; the error, or None when the record was acknowledged.

        Raises:
            KafkaTimeoutError: the time is up; the record goes on.
        """
        # What is plainly right costs no call: a program may ask for each record.
        if timeout is not None and type(timeout) is not int and type(timeout) is not float:
            check_timeout(timeout)
        batch = self._batch
        if batch.done and batch.error is None:
            return None  # the ordinary case: all records of the batch were acknowledged
        answer = batch.wait(self._index, timeout)
        if answer is None:
            raise self._out_of_time(timeout)
        error = answer[0].error_of(answer[1])
        if error is None:
            return None
        answer[0].look_at(answer[1])
        return error.twin()

    def add_done_callback(self, fn: Callable[[Delivery], object]) -> None:
        """Call `fn(delivery)` when it is done: on the I/O thread, or at once when it is done already."""
        check_callable(fn, "fn")

        def call(delivery: Delivery) -> object:
            batch, index = delivery._place_now()
            batch.look_at(index)
            return fn(delivery)

        follow(self, call)

    def _follow(self, fn: Callable[[Delivery], object]) -> None:
        """The same for somebody who will ask for the outcome later, or perhaps not."""
        follow(self, fn)

    def _place_in_batch(self) -> tuple[BatchResult, int]:
        """The result of the batch that the record was accepted in, and its index there."""
        return self._batch, self._index

    def _payload(self) -> int:
        """Bytes of key and value."""
        return max(0, self._key_size) + max(0, self._value_size)

    def _place_now(self) -> tuple[BatchResult, int]:
        """The result that answers for the record now, and its index there."""
        return self._batch.resolve(self._index)

    def _answered_by(self) -> BatchResult:
        """The result that answers for the record now: its batch's or, after a split, a piece's."""
        return self._batch.resolve(self._index)[0]

    def _outcome(self, look: object = True) -> tuple[RecordMetadata, KafkaError | None]:
        """Metadata and error of a settled record, as callbacks get them; `look`: they are the sender's."""
        batch, index = self._batch.resolve(self._index)
        error = batch.error_of(index)
        if error is not None and look:
            batch.look_at(index)
        return (
            batch.metadata_of(index, self._timestamp, self._key_size, self._value_size),
            None if error is None else error.twin(),
        )

    def _wait(self, timeout: Seconds | None) -> tuple[RecordMetadata, KafkaError | None]:
        if timeout is not None and type(timeout) is not int and type(timeout) is not float:
            check_timeout(timeout)
        if self._batch.wait(self._index, timeout) is None:
            raise self._out_of_time(timeout)
        return self._outcome()

    def _out_of_time(self, timeout: Seconds | None) -> KafkaTimeoutError:
        return KafkaTimeoutError(
            f"no outcome for a record of {self._batch.topic_partition} within {timeout} s; it is still on its way"
        )

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        yield from until_done(self)
        return self.result(0)

    def __repr__(self) -> str:
        batch, _ = self._batch.resolve(self._index)
        if not batch.done:
            return f"<Delivery {batch.topic_partition} pending>"
        metadata, error = self._outcome()
        return f"<Delivery {batch.topic_partition} {error!r}>" if error else f"<Delivery {metadata}>"


@cython.cfunc
def new_delivery(
    batch: BatchResult,
    index: cython.Py_ssize_t,
    timestamp: cython.longlong,
    key_size: cython.Py_ssize_t,
    value_size: cython.Py_ssize_t,
) -> Delivery:
    """The Delivery of a record that was appended; in compiled code without a call of its constructor."""
    delivery: Delivery
    if not cython.compiled:
        return Delivery(batch, index, timestamp, key_size, value_size)
    delivery = Delivery.__new__(Delivery)
    delivery._batch = batch
    delivery._index = index
    delivery._timestamp = timestamp
    delivery._key_size = key_size
    delivery._value_size = value_size
    return delivery
