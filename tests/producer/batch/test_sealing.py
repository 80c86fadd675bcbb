# SPDX-License-Identifier: Apache-2.0
"""How compressed batches grow; from a filled batch to bytes, and from a batch that was too large to smaller ones."""

from __future__ import annotations

import random
from typing import Any

import pytest
from producer.fakes_core import TIME, TOPIC, Core, encoded, records, run, value_for, values

from penstock._ticket import Ticket
from penstock.errors import KafkaError
from penstock.producer.batch._batch_cy import ANONYMOUS, Batch, BatchIdentity, BatchState
from penstock.records.compression import CODECS
from penstock.records.format import HEADER_SIZE
from penstock.records.reader import read_batches
from penstock.types import Header

CODEC_NAMES = [row.name for row in CODECS]
COMPRESSING = CODEC_NAMES[1:]


def random_bytes(size: int, seed: int = 5) -> bytes:
    """What no codec can make smaller."""
    return random.Random(seed).randbytes(size)


def in_chunks(compression: str = "none", **options: Any) -> Core:
    """A core in which many queues have batches, so that each takes its memory bit by bit."""
    core = Core(compression=compression, batch_size=16 * 1024, memory=64 * 1024, linger_ms=1000, **options)
    core.sealer.ratios.reset(TOPIC, core.sealer.codec.id, 1.0)
    return core


def deliver(core: Core) -> None:
    core.accumulator.flush()
    core.deliver_all()


# ---------------------------------------------------------------------------------------------- sealing


@pytest.mark.parametrize("compression", CODEC_NAMES)
def test_a_sealed_batch_is_a_batch_of_its_codec(compression):
    core = Core(compression=compression)
    for number in range(5):
        core.append(b"value-%d" % number, headers=(Header("n", b"%d" % number),))
    [batch] = core.drain()
    [sealed] = read_batches(bytes(batch.sealed_bytes()))
    assert sealed.codec == compression
    assert [record.value for record in sealed.records()] == [b"value-%d" % number for number in range(5)]
    assert sealed.base_timestamp == TIME


def test_an_uncompressed_batch_is_sent_from_where_it_was_written():
    core = Core()
    core.append(b"v")
    [batch] = core.drain()
    assert batch.wire.obj is batch.buffers[0]
    assert len(batch.wire) == batch.writer.raw_size


def test_a_batch_in_several_chunks_is_sent_from_where_it_was_written():
    core = in_chunks()
    sent = [b"%3d" % number + bytes(100) for number in range(100)]
    for value in sent:
        core.append(value)
    core.accumulator.flush()
    [batch] = core.drain()
    assert [piece.obj for piece in batch.wire] == batch.buffers
    assert batch.size == batch.writer.raw_size == len(batch.sealed_bytes())
    assert values(batch) == sent


@pytest.mark.parametrize("smallest", [64, 1024])
def test_a_batch_is_sealed_once_for_each_identity(smallest):
    core = Core(smallest_chunk=smallest, memory=8 * 1024)
    for _ in range(3):
        core.append(bytes(100))
    core.accumulator.flush()
    [batch] = core.drain()
    assert isinstance(batch.wire, list) == (smallest == 64)
    wire = batch.wire
    core.sealer.seal(batch, BatchIdentity())
    assert batch.wire is wire
    core.sealer.seal(batch, BatchIdentity(9, 8, 7))
    [stamped] = read_batches(bytes(batch.sealed_bytes()))  # which checks the checksum, too
    assert (stamped.producer_id, stamped.producer_epoch, stamped.base_sequence) == (9, 8, 7)
    assert [record.value for record in stamped.records()] == [bytes(100)] * 3


def test_a_transactional_identity_is_written():
    core = Core()
    core.append(b"v")
    batch, _ = core.queue().head()
    core.queue().take(batch)
    core.sealer.seal(batch, BatchIdentity(7, 1, 40, transactional=True))
    [sealed] = read_batches(bytes(batch.sealed_bytes()))
    assert (sealed.producer_id, sealed.producer_epoch, sealed.base_sequence) == (7, 1, 40)
    assert sealed.is_transactional


def test_a_sealed_batch_takes_no_record():
    """Requirement 91."""
    core = Core()
    core.append(b"v")
    [batch] = core.drain()
    with pytest.raises(ValueError, match="sealed"):
        batch.writer.append(TIME, None, b"late", None)


@pytest.mark.parametrize("compression", COMPRESSING)
def test_a_compressed_batch_stays_in_its_first_buffer(compression):
    core = Core(compression=compression, memory=64 * 1024)
    for _ in range(3):
        core.append(bytes(250))
    [batch] = core.drain()
    assert batch.wire.obj is batch.buffers[0]
    assert batch.size < 400
    assert core.pool.available() == 63 * 1024
    core.acknowledge(batch)
    assert core.pool.available() == 64 * 1024


@pytest.mark.parametrize("compression", COMPRESSING)
def test_what_compression_makes_larger_still_goes_out(compression):
    """Even where there is no memory left: the excess is not charged."""
    core = Core(compression=compression, memory=1024)
    half = len(value_for((1024 - HEADER_SIZE) // 2))
    sent = [random_bytes(half, seed) for seed in (1, 2)]
    for value in sent:
        core.append(value)
    [batch] = core.drain()
    assert batch.size > 1024
    assert core.pool.available() == 0
    assert core.pool.try_take(1024) is None
    assert values(batch) == sent
    core.acknowledge(batch)
    assert core.pool.available() == 1024
    assert core.pool.try_take(1024) is not None
    assert core.pool.try_take(1) is None


def test_a_grown_batch_that_does_not_fit_one_chunk_stays_in_several():
    core = Core(compression="zstd", memory=64 * 1024, linger_ms=1000)
    core.sealer.ratios.reset(TOPIC, 4, 0.1)
    sent = [random_bytes(450, seed) for seed in range(10)]
    for value in sent:
        core.append(value)
    assert core.pool.available() == 59 * 1024
    core.accumulator.flush()
    [batch] = core.drain()
    assert 1024 < batch.size < 5 * 1024
    assert core.pool.available() == 64 * 1024 - sum(map(len, batch.buffers))
    assert [len(piece) for piece in batch.wire] == [1024] * (len(batch.buffers) - 1) + [batch.size % 1024]
    assert values(batch) == sent
    core.retry(batch)
    assert core.drain() == [batch]
    core.acknowledge(batch)
    assert core.pool.available() == 64 * 1024


def test_the_expected_ratio_is_learned_per_topic():
    core = Core(compression="gzip")
    assert core.sealer.expected_ratio(TOPIC) == 1.0
    for _ in range(20):
        core.append(bytes(900))
    core.deliver_all()
    assert core.sealer.expected_ratio(TOPIC) < 0.92
    assert core.sealer.expected_ratio("other") == 1.0


def test_without_a_codec_nothing_is_expected():
    core = Core()
    assert not core.sealer.compresses
    core.append(bytes(900))
    core.deliver_all()
    assert core.sealer.expected_ratio(TOPIC) == 1.0


# ---------------------------------------------------------------------------------------------- growth


def compressible_core(memory: int = 64 * 1024, **options: Any) -> Core:
    """A core that has learned that its topic compresses to a tenth."""
    core = Core(compression="zstd", memory=memory, linger_ms=1000, **options)
    core.sealer.ratios.reset(TOPIC, 4, 0.1)
    return core


def test_a_compressed_batch_grows_by_segments():
    core = compressible_core()
    for number in range(10):
        core.append(bytes(448) + b"%2d" % number)  # two in each segment
    assert core.queue().depth() == 1
    assert core.pool.available() == 64 * 1024 - 5 * 1024
    core.accumulator.flush()
    [batch] = core.drain()
    assert core.pool.available() == 64 * 1024 - 1024  # the surplus went back when it was compressed
    assert batch.size < 1024
    assert [value[-2:] for value in values(batch)] == [b"%2d" % number for number in range(10)]
    core.acknowledge(batch)
    assert core.pool.available() == 64 * 1024


def test_a_compressed_batch_leaves_where_there_is_no_segment():
    core = compressible_core(memory=2 * 1024)
    for _ in range(4):
        core.append(bytes(450))  # two in each segment
    assert core.pool.available() == 0
    steps = core.steps(encoded(bytes(450)))
    ticket = run(steps)
    assert isinstance(ticket, Ticket)
    [batch] = core.drain()  # what has been gathered goes out
    assert batch.record_count == 4
    assert ticket.done  # already the surplus was enough
    run(steps, ticket)
    core.acknowledge(batch)
    core.now += 1  # until it has lingered
    [batch] = core.drain()
    core.acknowledge(batch)
    assert core.pool.available() == 2 * 1024


def test_a_segment_for_a_batch_that_is_gone_meanwhile_goes_back(monkeypatch):
    core = compressible_core()
    for _ in range(2):
        core.append(bytes(450))  # fills the first segment
    try_take = core.pool.try_take

    def the_sender_is_quicker(size: int) -> bytearray | None:
        monkeypatch.undo()
        core.accumulator.flush()
        for batch in core.drain():
            core.acknowledge(batch)
        return try_take(size)

    monkeypatch.setattr(core.pool, "try_take", the_sender_is_quicker)
    core.append(bytes(450))
    assert core.pool.available() == 63 * 1024  # what the new batch has
    assert core.queue().depth() == 1


def test_growing_does_not_overtake_those_who_wait():
    core = compressible_core(memory=3 * 1024)
    for _ in range(2):
        core.append(bytes(450))  # fills the first segment
    waiting = core.pool.take(2500)
    assert not waiting.done
    steps = core.steps(encoded(bytes(450)))
    assert isinstance(run(steps), Ticket)
    assert [batch.record_count for batch in core.drain()] == [2]


@pytest.mark.parametrize("how", ["expired", "aborted", "failed"])
def test_a_grown_batch_returns_all_its_memory_however_it_ends(how):
    """Requirement 26."""
    core = compressible_core(delivery_timeout_ms=1000)
    for _ in range(10):
        core.append(bytes(480))
    assert core.pool.available() < 62 * 1024
    if how == "expired":
        core.now += 10
        [batch] = core.accumulator.take_expired(core.now)
        core.fail(batch, KafkaError("late"))
    elif how == "aborted":
        core.accumulator.close()
        core.accumulator.abort_all(KafkaError("closed"))
    else:
        core.accumulator.flush()
        [batch] = core.drain()
        core.fail(batch, KafkaError("no"))
    assert core.pool.available() == 64 * 1024


@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.parametrize(
    ("plenty", "chunks"),
    [(False, [1024] * 4 + [2048, 2048, 4096, 4096]), (True, [1024, 1024, 2048, 4096, 8192])],
)
def test_memory_follows_the_data(compression, plenty, chunks):
    core = in_chunks(compression)
    others = core.pool.try_take(1 if plenty else 32 * 1024)
    held = []
    for _ in range(140):
        core.append(bytes(100))
        batch, _ = core.queue().head()
        held.append(core.pool.total - core.pool.available() - len(others))
        assert held[-1] == batch.writer.held <= max(2048, (2.1 if plenty else 1.7) * batch.writer.raw_size)
    assert core.queue().depth() == 1
    assert held[0] == 1024
    assert [len(chunk) for chunk in batch.buffers] == chunks
    deliver(core)
    assert core.pool.available() == core.pool.total - len(others)


def test_a_record_larger_than_a_chunk_gets_one_of_its_size():
    core = in_chunks()
    for _ in range(3):
        core.append(bytes(5000))
    [batch] = core.queue().batches
    assert all(5000 < len(chunk) < 5200 for chunk in batch.buffers)
    assert len(batch.buffers) == 3


def test_a_queue_begins_with_what_its_last_batch_had_while_memory_is_free():
    core = in_chunks()
    first = []
    for taken in (0, 40 * 1024):
        for _ in range(50):
            core.append(bytes(100))
        deliver(core)
        buffer = core.pool.try_take(taken)
        core.append(bytes(100))
        [batch] = core.queue().batches
        first.append(len(batch.buffers[0]))
        core.pool.give_back([buffer])
        deliver(core)
    assert first == [4096, 1024]


def test_few_queues_take_whole_batches_as_soon_as_one_is_not_small():
    core = Core(batch_size=16 * 1024, linger_ms=1000)
    for _ in range(400):
        core.append(bytes(100))
    assert [[len(chunk) for chunk in batch.buffers] for batch in core.queue().batches] == [
        [1024, 16 * 1024],
        [16 * 1024],
        [16 * 1024],
    ]
    for expected in (16 * 1024, 1024):
        deliver(core)
        core.append(bytes(100))
        assert [len(chunk) for chunk in core.queue().batches[0].buffers] == [expected]


def test_the_open_batch_goes_on_with_the_chunk_that_it_waited_for():
    core = in_chunks()
    core.append(bytes(900))
    hog = core.pool.try_take(core.pool.available())
    steps = core.steps(encoded(bytes(900)))
    ticket = run(steps)
    assert not ticket.done
    core.pool.give_back([hog])
    run(steps, ticket)
    [batch] = core.queue().batches
    assert batch.record_count == 2


# ---------------------------------------------------------------------------------------------- splitting


def in_flight(
    core: Core, count: int, size: int = 100, told: list[Any] | None = None
) -> tuple[Batch, list[Any]]:
    """One batch of many records, with headers and callbacks, that was sent."""
    deliveries = [
        core.append(
            b"%3d" % number + bytes(size),
            key=b"k%d" % number,
            headers=(Header("n", b"%d" % number), Header("none", None)),
            timestamp=TIME + number % 3,
            on_delivery=None
            if told is None
            else lambda metadata, error, at=number: told.append((at, metadata.offset, error)),
        )
        for number in range(count)
    ]
    core.accumulator.flush()
    [batch] = core.drain()
    assert batch.record_count == count
    return batch, deliveries


def grown_core(compression: str = "gzip") -> Core:
    """A core whose first batch may become much larger than batch.size before compression."""
    core = Core(compression=compression, batch_size=1024, linger_ms=1000)
    core.sealer.ratios.reset(TOPIC, core.sealer.codec.id, 0.05)
    return core


@pytest.mark.parametrize("compression", CODEC_NAMES)
def test_pieces_hold_the_same_records_in_order(compression):
    """Requirement 28."""
    core = grown_core(compression) if compression != "none" else Core(batch_size=8192)
    batch, _ = in_flight(core, 40)
    before = [record[1:] for record in records(batch)]
    count = core.split(batch)
    pieces = core.drain_all()
    if compression == "none":
        assert count == 1  # it had not been larger than batch.size; from now on it is halved
        count = core.split(pieces[0])
        pieces = core.drain_all()
    assert count == len(pieces) > 1
    assert [record[1:] for piece in pieces for record in records(piece)] == before
    assert [next(read_batches(bytes(piece.sealed_bytes()))).codec for piece in pieces] == [
        compression
    ] * count
    for piece in pieces:
        core.acknowledge(piece)
    assert core.pool.available() == core.pool.total


def test_pieces_are_no_larger_than_a_batch():
    """Requirement 28."""
    core = grown_core()
    batch, _ = in_flight(core, 40)
    core.split(batch)
    pieces = core.drain_all()
    assert all(piece.writer.raw_size <= 1024 for piece in pieces)
    assert batch.state is BatchState.SPLIT


def test_a_record_larger_than_a_batch_gets_a_piece_of_its_own():
    """Requirements 21 and 28."""
    core = grown_core()
    core.append(bytes(3000))
    core.append(b"small")
    core.accumulator.flush()
    [batch] = core.drain()
    assert batch.record_count == 2
    core.split(batch)
    assert [len(value or b"") for value in values(*core.drain_all())] == [3000, 5]


def test_pieces_go_before_what_waits():
    """Requirement 28."""
    core = grown_core()
    batch, _ = in_flight(core, 40)
    core.append(b"later")
    core.split(batch)
    sent = values(*core.drain_all())
    assert [value[:3] for value in sent[:-1]] == [b"%3d" % number for number in range(40)]
    assert sent[-1] == b"later"


def test_deliveries_and_callbacks_follow_the_pieces():
    """Requirement 28."""
    core = grown_core()
    told: list[Any] = []
    batch, deliveries = in_flight(core, 40, told=told)
    followed: list[int] = []
    deliveries[20].add_done_callback(lambda done: followed.append(done._index))
    core.split(batch)
    deliveries[21].add_done_callback(lambda done: followed.append(done._index))
    offset = 500
    for piece in core.drain_all():
        core.acknowledge(piece, offset)
        offset += piece.record_count
    assert told == [(number, 500 + number, None) for number in range(40)]
    assert followed == [20, 21]
    assert [delivery.result(0) for delivery in deliveries] == [
        (TOPIC, 0, 500 + number, TIME + number % 3, len(b"k%d" % number), 103) for number in range(40)
    ]


def test_pieces_can_be_split_again_until_each_record_is_alone():
    """Requirement 28."""
    core = grown_core()
    told: list[Any] = []
    batch, deliveries = in_flight(core, 40, told=told)
    waiting = [batch]
    rounds = 0
    while any(piece.record_count > 1 for piece in waiting):
        rounds += 1
        assert rounds < 10
        for piece in waiting:
            core.split(piece) if piece.record_count > 1 else core.retry(piece)
        waiting = core.drain_all()
    assert len(waiting) == 40
    order = sorted(waiting, key=lambda piece: records(piece)[0].value)
    for offset, piece in enumerate(order):
        if offset == 7:
            core.fail(piece, KafkaError("a record too large"))
        else:
            core.acknowledge(piece, offset)
    assert [at for at, _, _ in told] == list(range(40))
    assert [delivery._outcome()[0].offset for delivery in deliveries] == [
        -1 if offset == 7 else offset for offset in range(40)
    ]
    assert str(deliveries[7].exception(0)) == "a record too large"
    assert core.pool.available() == core.pool.total


@pytest.mark.parametrize("sizes", [(100, 100), (10, 900), (900, 10), (500, 1, 1, 1), (1, 1, 1, 500)])
def test_splitting_comes_to_an_end(sizes):
    """Requirement 28."""
    core = Core(batch_size=2048)
    for size in sizes:
        core.append(bytes(size))
    [batch] = core.drain()
    core.split(batch)
    for _ in range(len(sizes)):
        for piece in core.drain_all():
            if piece.record_count > 1:
                assert core.split(piece) > 1
            else:
                core.acknowledge(piece)
    assert not core.accumulator.has_incomplete()


def test_pieces_keep_the_age_and_the_attempts_of_their_batch():
    """Requirement 28."""
    core = grown_core()
    batch, _ = in_flight(core, 40)
    batch.attempts = 3
    core.now += 60
    core.split(batch)
    for piece in core.drain_all():
        assert (piece.created, piece.attempts, piece.is_piece) == (batch.created, 3, True)


def test_pieces_are_ready_at_once():
    """Requirement 28."""
    core = Core(batch_size=8192, linger_ms=10_000)
    for _ in range(4):
        core.append(bytes(100))
    core.now += 10
    [batch] = core.drain()
    core.now -= 10
    core.split(batch)
    assert core.ready_ids() == [1]


def test_a_split_frees_the_memory_of_the_batch_when_its_request_has_ended():
    """Requirements 28 and 46."""
    core = grown_core()
    batch, _ = in_flight(core, 40)
    assert core.accumulator.split(batch, lambda *_: None) > 1
    assert core.pool.available() == core.pool.total - 1024
    batch.request_pending = False
    core.accumulator.release(batch)
    assert core.pool.available() == core.pool.total


def test_a_split_forgets_the_hope_for_compression():
    """Requirement 28."""
    core = grown_core()
    batch, _ = in_flight(core, 40)
    core.split(batch)
    assert core.sealer.expected_ratio(TOPIC) == 1.0


def test_a_batch_that_was_never_sent_is_not_split():
    core = Core()
    core.append(b"v")
    batch, _ = core.queue().head()
    with pytest.raises(ValueError, match="never sent"):
        core.sealer.split(batch)


def test_a_batch_that_has_its_outcome_is_not_split():
    """Requirement 45."""
    core = Core()
    delivery = core.append(b"v")
    [batch] = core.drain()
    batch.fail(KafkaError("expired"))
    with pytest.raises(KafkaError):
        core.accumulator.split(batch, lambda *_: None)
    assert str(delivery.exception(0)) == "expired"
    assert core.queue().depth() == 0


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.7, 0.95])
def test_few_batches_of_a_mixed_stream_have_to_be_split(share):
    """Requirement 28: fewer than one in ten, where the broker takes what batch.size allows."""
    rng = random.Random(int(share * 100))
    core = Core(compression="gzip", batch_size=1024, max_request_size=1024 * 1024)
    splits = batches = 0
    arrived: list[bytes] = []
    sent: list[bytes] = []

    def send_all() -> None:
        nonlocal splits, batches
        while drained := core.drain():
            for batch in drained:
                batches += 1
                if batch.size > 1024 + HEADER_SIZE and batch.record_count > 1:
                    splits += 1
                    core.split(batch)
                else:
                    arrived.extend(values(batch))
                    core.acknowledge(batch)

    for _ in range(1000):
        value = bytes(rng.randrange(100)) if rng.random() < share else rng.randbytes(100)
        sent.append(value)
        core.append(value)
        if core.queue().head()[1]:
            send_all()
    core.accumulator.flush()
    send_all()
    assert batches > 20
    assert splits / batches < 0.1
    assert arrived == sent
    assert core.pool.available() == core.pool.total


def test_anonymous_batches_have_no_identity():
    assert BatchIdentity(-1, -1, -1, transactional=False) == ANONYMOUS


# ---------------------------------------------------------------------------------------------- without the codec


@pytest.mark.parametrize("compression", COMPRESSING)
def test_a_batch_can_be_sealed_without_the_codec(compression):
    core = Core(compression=compression)
    for number in range(5):
        core.append(b"value-%d" % number)
    batch, _ = core.queue().head()
    core.queue().take(batch)
    core.sealer.seal(batch, ANONYMOUS, True)
    [sealed] = read_batches(bytes(batch.sealed_bytes()))
    assert sealed.codec == "none"
    assert [record.value for record in sealed.records()] == [b"value-%d" % number for number in range(5)]
    core.sealer.seal(batch, BatchIdentity(9, 8, 7), True)  # another identity changes the header alone
    [stamped] = read_batches(bytes(batch.sealed_bytes()))
    assert (stamped.codec, stamped.base_sequence) == ("none", 7)
    assert [record.value for record in stamped.records()] == [b"value-%d" % number for number in range(5)]
    core.sealer.seal(batch, BatchIdentity(9, 8, 7))  # for a leader that takes it compressed
    [compressed] = read_batches(bytes(batch.sealed_bytes()))
    assert (compressed.codec, compressed.base_sequence) == (compression, 7)
    assert [record.value for record in compressed.records()] == [b"value-%d" % number for number in range(5)]
    core.sealer.seal(batch, ANONYMOUS, True)  # and once more for one that does not: it stays as it is
    [stamped] = read_batches(bytes(batch.sealed_bytes()))
    assert (stamped.codec, stamped.base_sequence) == (compression, -1)


def test_a_batch_that_has_grown_is_sealed_without_the_codec():
    core = Core(compression="gzip")
    core.sealer.ratios.reset(TOPIC, 1, 0.1)
    free = core.pool.available()
    sent = [b"%03d" % number * 40 for number in range(30)]
    for value in sent:
        core.append(value)
    batch, _ = core.queue().head()
    assert len(batch.writer.segments) > 1
    core.queue().take(batch)
    batch.move_to(BatchState.IN_FLIGHT)
    core.sealer.seal(batch, ANONYMOUS, True)
    [sealed] = read_batches(bytes(batch.sealed_bytes()))
    assert [record.value for record in sealed.records()] == sent[: batch.record_count]
    core.sealer.seal(batch, ANONYMOUS)
    [compressed] = read_batches(bytes(batch.sealed_bytes()))
    assert compressed.codec == "gzip"
    assert [record.value for record in compressed.records()] == sent[: batch.record_count]
    batch.succeed(0, -1)
    core.accumulator.finish(batch)
    for other in core.drain():
        other.succeed(0, -1)
        core.accumulator.finish(other)
    assert core.pool.available() == free
