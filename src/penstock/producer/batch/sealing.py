# SPDX-License-Identifier: Apache-2.0
"""From a filled batch to the bytes on the wire: compression, header, checksum; and back, to split a batch.

Runs on the I/O thread, outside every lock; the codec libraries release the interpreter lock while they work.
"""

from __future__ import annotations

from collections.abc import Container
from itertools import groupby

from penstock.errors import IllegalStateError
from penstock.producer.batch._batch_cy import Batch
from penstock.producer.batch._passes_cy import Sealing
from penstock.producer.batch.buffer_pool import BufferPool
from penstock.records._batch_cy import BatchWriter
from penstock.records.compression import Codec
from penstock.records.format import HEADER_SIZE, estimate_record_size
from penstock.records.ratio import CompressionRatioEstimator
from penstock.records.reader import read_batches


class Sealer(Sealing):
    """Compresses and seals batches, and splits those that a broker found too large.

    Args:
        codec: the codec of this producer.
        pool: where the memory of batches comes from.
        batch_size: the target size of a batch.
    """

    def __init__(self, codec: Codec, pool: BufferPool, batch_size: int) -> None:
        super().__init__(codec.id)
        self._codec = codec
        self._pool = pool
        self._batch_size = batch_size
        self._ratios = CompressionRatioEstimator()  # written by the I/O thread, read by any

    @property
    def compresses(self) -> bool:
        """Whether batches are compressed at all."""
        return self._codec.id != 0

    def expected_ratio(self, topic: str) -> float:
        """What compression is expected to leave of a topic's records; 1.0 without a codec."""
        return self._ratios.estimate(topic, self._codec.id) if self._codec.id else 1.0

    def keep_topics(self, kept: Container[str]) -> None:
        """Forget how well other topics compress."""
        self._ratios.keep_topics(kept)

    def _compress(self, batch: Batch) -> memoryview:
        raw = batch.writer.raw_records()
        payload = self._codec.compress(raw)
        self._ratios.observe(batch.queue.topic, self._codec.id, len(payload) / len(raw))
        size = HEADER_SIZE + len(payload)
        del raw  # it may be a view of the very memory that is written below
        if batch.buffers and size <= len(batch.buffers[0]):
            target = memoryview(batch.buffers[0])[:size]
            surplus = batch.buffers[1:]
            batch.buffers = batch.buffers[:1]
        elif batch.buffers:
            memory, batch.counted = self._pool.trade(batch.buffers, size)
            target, surplus = memoryview(memory), []
            batch.buffers = []
        else:
            target, surplus = memoryview(bytearray(size)), []  # a piece of a split lives outside the pool
        target[HEADER_SIZE:] = payload
        if surplus:
            self._pool.give_back(surplus)
        return target

    def split(self, batch: Batch) -> list[Batch]:
        """Cut a batch that was too large into smaller ones; it stays as it is until it is told of them.

        A first split aims at batch.size; a piece that is still too large is halved, but never below its largest record,
        so that splitting comes to an end.
        """
        if batch.wire is None:
            raise ValueError(f"{batch!r} was never sent")
        if batch.done:
            raise IllegalStateError(f"{batch!r} has its outcome")
        limit = self._batch_size
        if batch.is_piece:
            limit = max(batch.writer.max_record_size + HEADER_SIZE, batch.writer.raw_size // 2)
        self._ratios.reset(
            batch.queue.topic, self._codec.id, max(1.0, len(batch.wire) / batch.writer.raw_size)
        )
        pieces: list[Batch] = []
        (sealed,) = read_batches(batch.wire)
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
        if batch.wire is None:
            raise ValueError(f"{batch!r} was never sent")
        if batch.done:
            raise IllegalStateError(f"{batch!r} has its outcome")
        (sealed,) = read_batches(batch.wire)
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
        piece.attempts = batch.attempts
        piece.last_error = batch.last_error
        piece.leader_epoch = batch.leader_epoch
        return piece


def _length(data: bytes | None) -> int | None:
    return None if data is None else len(data)
