# SPDX-License-Identifier: Apache-2.0
"""From a filled batch to the bytes on the wire, and back to split a batch. Compiled if possible.

Sealing is compression, header and checksum. It runs on the I/O thread, outside every lock; the codec libraries release
the interpreter lock while they work.
"""

from __future__ import annotations

from collections.abc import Container
from itertools import groupby
from typing import Any

from penstock.errors import IllegalStateError
from penstock.producer.batch._buffer_pool_cy import BufferPool
from penstock.records.compression import Codec, CompressionRatioEstimator
from penstock.records.format import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    HEADER_SIZE,
    TRANSACTIONAL_BIT,
    estimate_record_size,
)
from penstock.records.reader import read_batches

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock.producer.batch._batch_cy import Batch, BatchIdentity
    from cython.cimports.penstock.records._batch_cy import BatchWriter
else:
    from penstock.producer.batch._batch_cy import Batch, BatchIdentity
    from penstock.records._batch_cy import BatchWriter

# A C variable when compiled.
_TRANSACTIONAL_BIT = cython.declare(cython.int, TRANSACTIONAL_BIT)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.final
@cython.cclass
class Sealer:
    """Compresses and seals batches, and splits those that a broker found too large.

    Args:
        codec: the codec of this producer.
        pool: where the memory of batches comes from.
        batch_size: the target size of a batch.
    """

    codec = cython.declare(object, visibility="public")
    ratios = cython.declare(object, visibility="readonly")
    _codec_id: cython.int
    _pool = cython.declare(object)
    _batch_size: cython.Py_ssize_t

    def __init__(self, codec: Codec, pool: BufferPool, batch_size: cython.Py_ssize_t) -> None:
        self.codec = codec
        self._codec_id = codec.id
        self._pool = pool
        self._batch_size = batch_size
        self.ratios = CompressionRatioEstimator()  # written by the I/O thread, read by any

    @property
    def compresses(self) -> bool:
        return self._codec_id != 0

    def expected_ratio(self, topic: str) -> float:
        """What compression is expected to leave of a topic's records; 1.0 without a codec."""
        return self.ratios.estimate(topic, self._codec_id) if self._codec_id else 1.0

    def keep_topics(self, kept: Container[str]) -> None:
        """Forget how well other topics compress."""
        self.ratios.keep_topics(kept)

    def seal(self, batch: Batch, identity: BatchIdentity, plain: cython.bint = False) -> None:
        """Make the bytes of a batch final. A retried batch keeps them; only a changed identity is stamped anew.

        Args:
            batch: what is to be sent.
            identity: what its header is to say.
            plain: without the codec, because the records are compressed later, in an older format.
        """
        body: Any = batch.wire
        codec_id: cython.int = self._codec_id
        if body is not None:
            first: Any = body[0] if isinstance(body, list) else body
            written: cython.int = first[ATTRIBUTES_AT + 1] & CODEC_MASK
            if codec_id and not written and not plain:
                # For a leader that needed an older format; the one that it goes to now does not.
                body = self._compress(batch)
            elif batch.stamped == identity:
                return
            else:
                codec_id = written
        elif codec_id and plain:
            codec_id = 0
        elif codec_id:
            body = self._compress(batch)
        batch.stamped = None  # if this fails half way, its bytes say nothing that can be relied on
        attributes: cython.int = codec_id | (_TRANSACTIONAL_BIT if identity.transactional else 0)
        batch.wire = batch.writer.seal(
            attributes, identity.producer_id, identity.producer_epoch, identity.base_sequence, body
        )
        batch.stamped = identity

    @cython.cfunc
    def _compress(self, batch: Batch) -> object:
        raw = batch.writer.raw_records()
        payload = self.codec.compress(raw)
        self.ratios.observe(batch.queue.topic, self._codec_id, len(payload) / len(raw))
        del raw  # it may be a view of the very memory that is written below
        return self._put(batch, payload)

    @cython.cfunc
    def _put(self, batch: Batch, payload: Any) -> list:  # type: ignore[type-arg]
        """Write the records section into the memory of the batch, behind room for the header; the pieces.

        What is not needed goes back. Where compression made the data larger than it was, the rest stays where the codec
        has put it, and is not charged: there may be no memory for it, and the batch must go out.
        """
        rest: Any = memoryview(payload)
        needed: cython.Py_ssize_t = HEADER_SIZE + len(rest)
        room: cython.Py_ssize_t = HEADER_SIZE  # for the header, in the first piece
        free: list = sorted(batch.writer.segments, key=len)
        kept: list = []
        pieces: list = []
        at: cython.Py_ssize_t
        while needed and free:
            at = len(free) - 1
            while at > 0 and len(free[at - 1]) >= needed:
                at -= 1
            kept.append(free.pop(at))  # the smallest that is large enough, else the largest
            piece = memoryview(kept[-1])[:needed]
            piece[room:] = rest[: len(piece) - room]
            rest = rest[len(piece) - room :]
            needed -= len(piece)
            room = 0
            pieces.append(piece)
        if needed:
            pieces.append(rest)
        batch.writer.segments[:] = kept
        if batch.buffers and free:  # a piece of a split lives outside of the pool
            self._pool.give_back(free)
        return pieces

    def split(self, batch: Batch) -> list[Batch]:
        """Cut a batch that was too large into smaller ones; it stays as it is until it is told of them.

        A first split aims at batch.size; a piece that is still too large is halved, but never below its largest record,
        so that splitting comes to an end.
        """
        wire = batch.sealed_bytes()
        if batch.done:
            raise IllegalStateError(f"{batch!r} has its outcome")
        limit = self._batch_size
        if batch.is_piece:
            limit = max(batch.writer.max_record_size + HEADER_SIZE, batch.writer.raw_size // 2)
        self.ratios.reset(batch.queue.topic, self._codec_id, max(1.0, len(wire) / batch.writer.raw_size))
        pieces: list[Batch] = []
        (sealed,) = read_batches(wire)
        for record in sealed.records():
            size = 0
            if pieces:
                size = pieces[-1].writer.append(record.timestamp, record.key, record.value, record.headers)
            if size <= 0:
                needed = estimate_record_size(_length(record.key), _length(record.value), record.headers)
                writer = BatchWriter(bytearray(max(limit, needed)), limit)
                writer.append(record.timestamp, record.key, record.value, record.headers)
                pieces.append(self._piece(batch, writer))
        return pieces

    def without(self, batch: Batch, refused: Container[int]) -> list[tuple[int, Batch]]:
        """A batch without some of its records: those between them as batches, each with the index of its first one."""
        wire = batch.sealed_bytes()
        if batch.done:
            raise IllegalStateError(f"{batch!r} has its outcome")
        (sealed,) = read_batches(wire)
        kept = ((index, record) for index, record in enumerate(sealed.records()) if index not in refused)
        pieces: list[tuple[int, Batch]] = []
        # Neighbours have the same distance between index and place.
        for _, numbered in groupby(enumerate(kept), lambda pair: pair[1][0] - pair[0]):
            some = [pair for _, pair in numbered]
            sizes = [
                estimate_record_size(_length(record.key), _length(record.value), record.headers)
                for _, record in some
            ]
            writer = BatchWriter(bytearray(sum(sizes)), sum(sizes))
            for _, record in some:
                writer.append(record.timestamp, record.key, record.value, record.headers)
            pieces.append((some[0][0], self._piece(batch, writer)))
        return pieces

    @staticmethod
    def _piece(batch: Batch, writer: BatchWriter) -> Batch:
        piece = Batch(batch.queue, writer, batch.created, [])
        piece.is_piece = True
        piece.opening = batch.opening
        piece.attempts = batch.attempts
        piece.last_error = batch.last_error
        piece.leader_epoch = batch.leader_epoch
        piece.drained_at = batch.drained_at
        piece.retried_for = batch.retried_for
        piece.left_by = batch.left_by
        return piece


def _length(data: bytes | None) -> int | None:
    return None if data is None else len(data)
