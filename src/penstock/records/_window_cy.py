# SPDX-License-Identifier: Apache-2.0
# cython: boundscheck=False, wraparound=False, initializedcheck=False, nonecheck=False
"""Rows that follow each other: checked, placed, sorted by partition and appended to batches. Compiled if possible.

Rows are handled a window at a time, so that the memory for a table does not grow with the table.

Rules:
1. The loops over rows make no Python object. Placing and sorting run without the interpreter lock, so that the I/O
   thread works meanwhile; appending does where a chunk has many rows and the batch much room (see `_MUCH_ROOM`).
2. What a window appends is what `BatchWriter.append` would have written, row by row, and it refuses what that would
   have refused.
"""

from __future__ import annotations

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_GET_SIZE
    from cython.cimports.libc.string import memcmp
    from cython.cimports.penstock._primitives_cy import partition_at
    from cython.cimports.penstock.records._batch_cy import NEEDS_SEGMENT, NO_ROOM, BatchWriter
    from cython.cimports.penstock.records._columns_cy import BytesColumn, prefetch_in
    from cython.cimports.penstock.records._layout_cy import HEADER_SIZE
    from cython.cimports.penstock.records._rows_cy import Rows
else:
    from penstock._primitives_cy import partition_at
    from penstock.records._batch_cy import NEEDS_SEGMENT, NO_ROOM, BatchWriter
    from penstock.records._columns_cy import BytesColumn
    from penstock.records._memory import prefetch_in
    from penstock.records._rows_cy import Rows
    from penstock.records.format import HEADER_SIZE

from penstock.records._columns_cy import LIES
from penstock.records._rows_cy import BAD_LAYOUT, CHANGED

STICKY = -1  # as `Rows.place` says
NO_TOPIC = -6  # what is wrong with a row whose topic is null or cannot be

# C variables when compiled, so that their use costs nothing.
_STICKY = cython.declare(cython.int, STICKY)
_BAD_LAYOUT = cython.declare(cython.int, BAD_LAYOUT)
_LIES = cython.declare(cython.Py_ssize_t, LIES)
_CHANGED = cython.declare(cython.Py_ssize_t, CHANGED)
_CHANGED_ROW = cython.declare(cython.Py_ssize_t, -3)
_LARGEST_RECORD = cython.declare(cython.Py_ssize_t, 0x7FFFFFFF)
_NO_TOPIC = cython.declare(cython.int, NO_TOPIC)
# To let go of the interpreter lock for less than this costs more than it brings: getting it back means to wait until
# the I/O thread has done its turn. Seen: with batches of 16 KiB up to twice as slow, with 128 KiB a little faster.
_MANY_ROWS = cython.declare(cython.Py_ssize_t, 256)
_MUCH_ROOM = cython.declare(cython.Py_ssize_t, 48 * 1024)
# Topics by the hashes of their names. More topics than this only mean that some are looked up in the dictionary.
_NOTED_TOPICS = cython.declare(cython.int, 256)
# Rows of a partition lie apart, so that the processor cannot prefetch the next one by itself: the code prefetches it so
# many rows before.
_AHEAD = cython.declare(cython.Py_ssize_t, 12)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.cfunc
def _ints_of(memory: bytearray) -> cython.p_int:
    if cython.compiled:
        return cython.cast(cython.p_int, PyByteArray_AS_STRING(memory))
    return memoryview(memory).cast("i")


@cython.cfunc
@cython.inline
def _is_same(name: bytes, data: cython.p_const_uchar, size: cython.Py_ssize_t) -> cython.bint:
    """Whether a name is the bytes that a column has found."""
    if cython.compiled:
        return PyBytes_GET_SIZE(name) == size and memcmp(PyBytes_AS_STRING(name), data, size) == 0
    return name == data


@cython.final
@cython.cclass
class Window:
    """Rows that follow each other: placed, sorted by slot, and appended to batches.

    A slot stands for one partition of one topic: the partitions of the first topic come first.

    Args:
        capacity: the most rows that it takes at once.
    """

    def __init__(self, capacity: cython.Py_ssize_t) -> None:
        self.capacity = capacity
        self._place_memory = bytearray(4 * capacity)
        self._order_memory = bytearray(4 * capacity)
        self._topic_memory = bytearray(0)
        self._places = _ints_of(self._place_memory)
        self._order = _ints_of(self._order_memory)
        self.now_ms = 0
        self.expendable = False
        self.refusal: int = 0

    def open(self, rows: Rows, first: cython.Py_ssize_t, last: cython.Py_ssize_t) -> None:
        """Look at other rows; no more than the capacity."""
        if not 0 <= first <= last <= rows.length or last - first > self.capacity:
            raise ValueError(f"rows {first} to {last} do not fit the window")
        self.rows = rows
        self.first = first
        self.last = last
        self._has_topics = False
        self.ordered = False

    def read_topics(self, known: dict) -> None:  # type: ignore[type-arg]
        """Give each row the number that its topic has among those `known`; new ones are added to it, as bytes."""
        column: BytesColumn = self.rows.topic
        if not self._topic_memory:
            self._topic_memory = bytearray(len(self._place_memory))
            self._topics = _ints_of(self._topic_memory)
        self._has_topics = True
        names: list = list(known)
        memory: bytearray = bytearray(4 * _NOTED_TOPICS)
        noted: cython.p_int = _ints_of(memory)  # by the hash of a name: its number, plus 1
        number: cython.int
        at: cython.int
        size: cython.Py_ssize_t
        row: cython.Py_ssize_t
        for row in range(self.first, self.last):
            size = column.find(row)
            if size < 0:
                self._topics[row - self.first] = _BAD_LAYOUT if size == _LIES else _NO_TOPIC
                continue
            at = partition_at(column.found, size, _NOTED_TOPICS)
            number = noted[at] - 1
            if number < 0 or not _is_same(names[number], column.found, size):
                number = _number_of(column.get(row), known, names)
                noted[at] = number + 1
            self._topics[row - self.first] = number

    def place(self, counts: list, limit: cython.Py_ssize_t, key_hash: cython.int) -> None:  # type: ignore[type-arg]
        """Find out where each row goes, and which cannot be sent.

        Args:
            counts: the partitions of each topic, by number; 0 for a topic that cannot be.
            limit: what a record may take.
            key_hash: how keys choose partitions: IGNORED, MURMUR2 or CRC32.
        """
        self._bases = []
        self._slots = 0
        for count in counts:
            self._bases.append(self._slots)
            self._slots += count
        if self._has_topics:
            numbers: bytearray = bytearray(8 * len(counts))
            pairs: cython.p_int = _ints_of(numbers)
            topics: cython.Py_ssize_t = len(counts)
            at: cython.Py_ssize_t
            for at in range(topics):
                pairs[at] = self._bases[at]
                pairs[topics + at] = counts[at]
            if cython.compiled:
                with cython.nogil:
                    self._place_by_topic(pairs, pairs + topics, limit, key_hash)
            else:
                self._place_by_topic(pairs, pairs[topics:], limit, key_hash)
            return
        partitions: cython.int = counts[0]
        with cython.nogil:
            self._place(partitions, limit, key_hash)

    def _place(self, partitions: cython.int, limit: cython.Py_ssize_t, key_hash: cython.int) -> None:
        bad: cython.Py_ssize_t = 0
        sticky: cython.Py_ssize_t = 0
        row: cython.Py_ssize_t
        place: cython.int
        for row in range(self.first, self.last):
            place = self.rows.place(row, partitions, limit, key_hash)
            self._places[row - self.first] = place
            if place == _STICKY:
                sticky += 1
            elif place < 0:
                bad += 1
        self.bad = bad
        self.sticky = sticky
        self.count = self.last - self.first - bad

    def _place_by_topic(
        self,
        bases: cython.p_const_int,
        counts: cython.p_const_int,
        limit: cython.Py_ssize_t,
        key_hash: cython.int,
    ) -> None:
        bad: cython.Py_ssize_t = 0
        sticky: cython.Py_ssize_t = 0
        row: cython.Py_ssize_t
        topic: cython.int
        place: cython.int
        for row in range(self.first, self.last):
            topic = self._topics[row - self.first]
            place = topic
            if topic >= 0:
                place = _NO_TOPIC
                if counts[topic] > 0:
                    place = self.rows.place(row, counts[topic], limit, key_hash)
            if place == _STICKY:
                sticky += 1
            elif place < 0:
                bad += 1
            else:
                place += bases[topic]
            self._places[row - self.first] = place
        self.bad = bad
        self.sticky = sticky
        self.count = self.last - self.first - bad

    def bad_rows(self) -> list[tuple[int, int]]:
        """The rows that cannot be sent, each with what is wrong with it."""
        return [
            (self.first + at, self._places[at])
            for at in range(self.last - self.first)
            if self._places[at] < _STICKY
        ]

    def settle_sticky(self, choosers: list, share: cython.Py_ssize_t) -> None:  # type: ignore[type-arg]
        """Choose partitions for rows without one, a new one after each `share` bytes.

        For windows that have other rows too: the rows of a partition keep their order only if all are sorted at once.

        Args:
            choosers: for each topic a function that gives a partition.
            share: the bytes.
        """
        chosen: list = [-1] * len(choosers)
        given: list = [0] * len(choosers)
        at: cython.Py_ssize_t
        topic: cython.int = 0
        size: cython.Py_ssize_t
        for at in range(self.last - self.first):
            if self._places[at] != _STICKY:
                continue
            if self._has_topics:
                topic = self._topics[at]
            if chosen[topic] < 0 or given[topic] >= share:
                chosen[topic] = self._bases[topic] + choosers[topic]()
                given[topic] = 0
            size = self.rows.bound(self.first + at, _LARGEST_RECORD) - HEADER_SIZE
            given[topic] += size
            self._places[at] = chosen[topic]
        self.sticky = 0

    def sort(self) -> list[tuple[int, int, int]]:
        """Sort the rows by slot, each slot's in their order; (slot, first, last) in the order for those that have any.

        Where all rows are sticky they make one group, of the slot STICKY.
        """
        if self.sticky == self.count:
            self.ordered = self.bad > 0
            if self.ordered:
                self._sort_good()
            return [(STICKY, 0, self.count)] if self.count else []
        self.ordered = True
        memory: bytearray = bytearray(4 * (self._slots + 1))
        starts: cython.p_int = _ints_of(memory)
        with cython.nogil:
            self._count_slots(starts)
        groups: list = [
            (slot, starts[slot], starts[slot + 1])
            for slot in range(self._slots)
            if starts[slot + 1] > starts[slot]
        ]
        with cython.nogil:
            self._fill_order(starts)
        return groups

    def _sort_good(self) -> None:
        at: cython.Py_ssize_t
        count: cython.Py_ssize_t = 0
        for at in range(self.last - self.first):
            if self._places[at] == _STICKY:
                self._order[count] = at
                count += 1

    def _count_slots(self, starts: cython.p_int) -> None:
        """Set where the rows of each slot begin, in an array of zeros."""
        at: cython.Py_ssize_t
        slot: cython.int
        for at in range(self.last - self.first):
            if self._places[at] >= 0:
                starts[self._places[at] + 1] += 1
        for slot in range(self._slots):
            starts[slot + 1] += starts[slot]

    def _fill_order(self, starts: cython.p_int) -> None:
        at: cython.Py_ssize_t
        place: cython.int
        for at in range(self.last - self.first):
            place = self._places[at]
            if place >= 0:
                self._order[starts[place]] = at
                starts[place] += 1

    def span(self, first: cython.Py_ssize_t, count: cython.Py_ssize_t) -> tuple[int, int, bytes | None]:
        """Which rows these are: from which row on, how many, and, where they do not follow each other, their steps."""
        if not self.ordered:
            return self.first + first, count, None
        return self.first, count, bytes(self._order_memory[4 * first : 4 * (first + count)])

    def row_at(self, at: cython.Py_ssize_t) -> int:
        """The row at a place of the order."""
        return self.first + (self._order[at] if self.ordered else at)

    def size_bound(self, at: cython.Py_ssize_t) -> int:
        """The most that a batch with the one record at a place of the order can take."""
        return self.rows.size_bound(self.row_at(at))

    def append_to(
        self,
        writer: BatchWriter,
        first: cython.Py_ssize_t,
        last: cython.Py_ssize_t,
        budget: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Append rows of the order until the batch refuses one, or has taken `budget` bytes; how many.

        `refusal` tells what the batch said to the next one, 0 where it was not asked; `payload` counts the bytes of
        keys and values.

        Raises:
            ValueError: the batch is sealed; or the first row is not what it was when it was placed.
        """
        if writer.sealed:
            raise ValueError("the batch is sealed: nothing can be appended to it")
        taken: cython.Py_ssize_t
        if last - first < _MANY_ROWS or writer.room() < _MUCH_ROOM:
            taken = self._append(self.rows, writer, first, last, budget)
        else:
            with cython.nogil:
                taken = self._append(self.rows, writer, first, last, budget)
        if self.refusal == _CHANGED_ROW:
            self.refusal = 0  # the batch was not asked
            if taken == 0:
                raise ValueError(
                    f"the table was changed while it was sent: row {self.row_at(first)} of this chunk was in order "
                    "before, and is not any more. Leave the memory of a table alone until the call returns"
                )
        return taken

    def _append(
        self,
        rows: Rows,
        writer: BatchWriter,
        first: cython.Py_ssize_t,
        last: cython.Py_ssize_t,
        budget: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        at: cython.Py_ssize_t = writer.at
        end: cython.Py_ssize_t = at + writer.room()
        count: cython.Py_ssize_t = writer.count
        raw: cython.Py_ssize_t = writer.raw_size
        # Where there is nothing yet, the first row sets it.
        base: cython.longlong = writer.base_timestamp
        latest: cython.longlong = writer.max_timestamp
        largest: cython.Py_ssize_t = writer.max_record_size
        payload: cython.Py_ssize_t = 0
        timestamp: cython.longlong = self.now_ms
        room: cython.Py_ssize_t
        size: cython.Py_ssize_t
        step: cython.Py_ssize_t = first
        row: cython.Py_ssize_t
        self.refusal = 0
        while step < last and raw - writer.raw_size < budget:
            row = self.first + (self._order[step] if self.ordered else step)
            if cython.compiled and self.ordered and step + _AHEAD < last:
                _prefetch(rows, self.first + self._order[step + _AHEAD])
            if rows.timestamp is not None:
                timestamp = rows.timestamp_at(row, self.now_ms)
            room = end - at
            if count == 0:
                base = latest = timestamp
            elif room > writer.limit - _estimated(writer, raw):
                room = writer.limit - _estimated(writer, raw)
            size = rows.append(writer.memory, at, room, row, timestamp - base, count)
            if size > room:
                if size == _CHANGED:
                    self.refusal = _CHANGED_ROW
                    break
                self.refusal = NO_ROOM
                if count and _estimated(writer, raw) + size <= writer.limit:
                    self.refusal = NEEDS_SEGMENT
                break
            at += size
            payload += rows.payload
            if timestamp > latest:
                latest = timestamp
            if size > largest:
                largest = size
            raw += size
            count += 1
            step += 1
        # Written first and counted last: see the writer's second rule.
        self.payload = payload
        writer.add_rows(step - first, at - writer.at, base, latest, largest)
        return step - first


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _prefetch(rows: Rows, row: cython.Py_ssize_t) -> cython.void:
    """Let the processor fetch a row that will be written soon."""
    if rows.value is not None:
        prefetch_in(rows.value, row)
    if rows.key is not None:
        prefetch_in(rows.key, row)


@cython.cfunc
@cython.exceptval(-1)
def _number_of(name: bytes | None, known: dict, names: list) -> cython.int:  # type: ignore[type-arg]
    """The number of a topic among those known, which it becomes one of."""
    number: cython.int = known.setdefault(name, len(known))
    if number == len(names):
        names.append(name)
    return number


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _estimated(writer: BatchWriter, raw: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """`BatchWriter.estimated_size` for rows that are not counted yet."""
    if writer.ratio == 1.0:
        return raw
    expected: cython.double = (raw - HEADER_SIZE) * writer.ratio * 1.05
    if cython.compiled:
        return HEADER_SIZE + cython.cast(cython.Py_ssize_t, expected)
    return HEADER_SIZE + int(expected)
