# SPDX-License-Identifier: Apache-2.0
"""One mistake for each part of the producer, from the socket to the transaction: see `bugs`."""

from __future__ import annotations

import copy
import dataclasses
from types import SimpleNamespace
from typing import Any

from simulation.planting import Changes, around, find


def _changed(value: Any, **fields: Any) -> Any:
    """A copy of a value with other fields, whatever kind of value it is."""
    if hasattr(value, "_replace"):
        return value._replace(**fields)
    if dataclasses.is_dataclass(value):
        return dataclasses.replace(value, **fields)  # type: ignore[type-var]
    changed = copy.copy(value)
    for name, field in fields.items():
        setattr(changed, name, field)
    return changed


# ------------------------------------------------------------------------------------------------ network


def byte_written_twice() -> Changes:
    """After a partial write the last byte that was written is written again."""

    def after(original: Any, buffers: Any, sent: int) -> Any:
        return original(buffers, sent - 1)

    return around("connection's module", "_after", after)


def youngest_request_answered() -> Changes:
    """An answer is taken for that of the request that was sent last."""

    def take_answered(_: Any, in_flight: Any, correlation_id: int) -> Any:
        *others, youngest = in_flight.take_all()
        for exchange in others:
            in_flight.add(exchange)
        return youngest

    return around("InFlightRequests", "take_answered", take_answered)


def reconnect_backoff_ignored() -> Changes:
    """A broker that cannot be reached is tried again at once."""
    return around("ConnectionStates", "backoff_left", lambda *_: 0.0)


def request_lost_with_its_connection() -> Changes:
    """Of the requests that a broken connection owes an answer, the oldest is forgotten."""

    def fail_requests(original: Any, pool: Any, pending: Any, *args: Any) -> None:
        original(pool, pending[1:], *args)

    return around("ConnectionPool", "_fail_requests", fail_requests)


def end_of_requests_untold_at_close() -> Changes:
    """Requests that end because the client is closed are not told to their callers."""

    def deliver(original: Any, client: Any) -> Any:
        return [] if client._closed else original(client)

    return around("NetworkClient", "_deliver", deliver)


def failed_question_stays_under_way() -> Changes:
    """A question for metadata that was lost counts as asked, so that none is asked again."""

    def on_response(original: Any, fetcher: Any, response: Any) -> None:
        original(fetcher, response)
        if response.error is not None:
            fetcher._in_progress = True

    return around("MetadataFetcher", "_on_response", on_response)


# ------------------------------------------------------------------------------------------------ protocol, records


def newest_version_used() -> Changes:
    """A request is sent in the newest version that this client knows, whatever the broker does."""

    def pick(original: Any, versions: Any, api: Any, min_version: Any = None, max_version: Any = None) -> int:
        original(versions, api, min_version, max_version)
        return int(api.max_version if max_version is None else min(max_version, api.max_version))

    return around("NodeApiVersions", "pick", pick)


def begun_answer_forgotten() -> Changes:
    """When a part of an answer comes, it is forgotten before the rest is read."""

    def new_reader(original: Any, *args: Any) -> Any:
        reader = original(*args)
        reader.feed = lambda data: original(*args).feed(data)
        return reader

    return around("connection's module", "FrameReader", new_reader)


def batches_change_places() -> Changes:
    """The first two batches of a request are written where the other one belongs."""

    def init(
        original: Any, request: Any, acks: Any, timeout_ms: int, batches: Any, *args: Any, **options: Any
    ) -> None:
        batches = list(batches)
        if len(batches) > 1:
            first, second = batches[:2]
            batches[:2] = _changed(first, records=second.records), _changed(second, records=first.records)
        original(request, acks, timeout_ms, batches, *args, **options)

    return around("ProduceRequest", "__init__", init)


def error_of_the_neighbour() -> Changes:
    """Each partition of an answer gets the error code of the one before it."""

    def decode_response(original: Any, request: Any, *args: Any) -> Any:
        answer = original(request, *args)
        codes = [each.error_code for each in answer.partitions]
        answer.partitions[:] = [
            _changed(each, error_code=code)
            for each, code in zip(answer.partitions, codes[-1:] + codes[:-1], strict=True)
        ]
        return answer

    return around("ProduceRequest", "decode_response", decode_response)


def key_lost_beside_headers() -> Changes:
    """A record that has headers is written without its key."""

    def append(
        original: Any, writer: Any, timestamp: int, key: Any, value: Any, headers: Any, *args: Any
    ) -> int:
        size: int = original(writer, timestamp, None if headers else key, value, headers, *args)
        return size

    return around("BatchWriter", "append", append)


# ------------------------------------------------------------------------------------------------ batches


def time_out_begins_anew() -> Changes:
    """The delivery time-out of a batch that is sent again counts from its last attempt."""

    def move_to(original: Any, batch: Any, state: Any) -> None:
        original(batch, state)
        if state is find("BatchState").QUEUED:
            batch.created = batch.drained_at

    return around("Batch", "move_to", move_to)


def place_in_the_whole_for_that_in_a_piece() -> Changes:
    """After a split a record is looked for in its piece by the index that it had in the whole batch."""

    def resolve(original: Any, result: Any, index: int) -> Any:
        piece, place = original(result, index)
        return piece, index if result.pieces else place

    return around("BatchResult", "resolve", resolve)


def retries_overtake_each_other() -> Changes:
    """A batch that is sent again goes to the head of its queue, whatever waits there."""

    def put_back_in_order(original: Any, queue: Any, batch: Any, _: Any) -> None:
        original(queue, batch, lambda *_: False)

    return around("PartitionQueue", "put_back_in_order", put_back_in_order)


def busy_topics_forgotten() -> Changes:
    """A topic is forgotten although batches of it are on their way."""
    return around("RecordAccumulator", "_queues_to_come_back_to", lambda *_: set())


def chunk_freed_twice() -> Changes:
    """Of the chunks that go back together, the last goes back once more."""

    def give_back(original: Any, pool: Any, buffers: Any) -> None:
        chunks = list(buffers)
        original(pool, chunks + chunks[-1:] if len(chunks) > 1 else chunks)

    return around("BufferPool", "give_back", give_back)


def chunk_kept() -> Changes:
    """A batch that failed, expired or was split keeps its last chunk."""

    def release_all(original: Any, accumulator: Any, batches: Any) -> None:
        states = find("BatchState")
        for batch in batches:
            if batch.state in (states.FAILED, states.SPLIT) and len(batch.buffers) > 1:
                del batch.buffers[-1]
        original(accumulator, batches)

    return around("RecordAccumulator", "release_all", release_all)


def chunk_counted_twice() -> Changes:
    """The memory of a chunk that is made is charged once more."""

    def make(original: Any, pool: Any, size: int) -> Any:
        pool._unused -= size
        return original(pool, size)

    return around("BufferPool", "_make", make)


def waiter_passed_over() -> Changes:
    """The memory that comes back goes to the second who waits, if that one asked for a smaller chunk."""

    def gather(original: Any, pool: Any) -> Any:
        waiting = list(pool._waiting.values())
        if len(waiting) > 1 and waiting[1].size < waiting[0].size:
            pool._waiting.move_to_end(waiting[0].ticket)
        return original(pool)

    return around("BufferPool", "_gather_for_first_locked", gather)


def chunk_reused_while_it_is_sent() -> Changes:
    """The last chunk of a batch in several goes back when the batch is sealed, before its request is answered."""

    def seal(original: Any, sealer: Any, batch: Any, *args: Any) -> None:
        original(sealer, batch, *args)
        if isinstance(batch.wire, list) and len(batch.buffers) > 1:
            sealer._pool.give_back([batch.buffers.pop()])

    return around("Sealer", "seal", seal)


def gathered_memory_lost() -> Changes:
    """What had been gathered for somebody who gives up waiting for memory does not go back."""

    def withdraw(original: Any, pool: Any, ticket: Any) -> None:
        for waiting in pool._waiting.values():
            if waiting.ticket is ticket:
                waiting.gathered = 0
        original(pool, ticket)

    return around("BufferPool", "withdraw", withdraw)


def pieces_lose_headers() -> Changes:
    """The records of a batch that was split have no headers any more."""

    def read(original: Any, data: Any) -> Any:
        for batch in original(data):
            records = [_changed(record, headers=()) for record in batch.records()]
            yield SimpleNamespace(records=lambda records=records: records)

    return around("sealer's module", "read_batches", read)


# ------------------------------------------------------------------------------------------------ sending


def request_size_ignored() -> Changes:
    """A request takes four times as many bytes as max.request.size allows."""

    def init(original: Any, drainer: Any, accumulator: Any, gate: Any, max_request_size: int) -> None:
        original(drainer, accumulator, gate, 4 * max_request_size)

    return around("Drainer", "__init__", init)


def ready_queue_forgotten() -> Changes:
    """A queue that still has a batch after it was served is not served again."""

    def take(original: Any, drainer: Any, broker: Any, *args: Any) -> list[Any]:
        taken: list[Any] = original(drainer, broker, *args)
        served = {batch.queue for batch in taken}
        broker.heads = [led for led in broker.heads if led.queue not in served]
        return taken

    return around("Drainer", "_take_batches", take)


def timer_lost() -> Changes:
    """The I/O thread does not wake up when a batch has lingered or backed off."""
    return around("Drainer", "_note_due", lambda *_: None)


class _WithoutUpdates:
    """Metadata that nobody can ask to be updated."""

    def __init__(self, metadata: Any) -> None:
        self._metadata = metadata

    def __getattr__(self, name: str) -> Any:
        return getattr(self._metadata, name)

    def request_update(self, now: float) -> None:
        """Nothing is asked for."""


def retry_without_refresh() -> Changes:
    """A batch that met a broker which does not lead its partition is sent again, and nobody asks who does."""

    def init(original: Any, outcomes: Any, accumulator: Any, gate: Any, metadata: Any, *args: Any) -> None:
        original(outcomes, accumulator, gate, _WithoutUpdates(metadata), *args)

    return around("Outcomes", "__init__", init)


def muted_after_a_failure() -> Changes:
    """With one request in flight, a partition whose request failed stays muted."""

    def on_response(original: Any, sender: Any, batches: list[Any], response: Any) -> None:
        original(sender, batches, response)
        if response.error is not None and sender._one_at_a_time:
            for batch in batches:
                batch.queue.muted = True

    return around("Sender", "_on_response", on_response)


def key_overrules_the_partition() -> Changes:
    """On the general path a record with a key goes where its key says, although it was sent to a partition."""

    def choose(
        original: Any, placement: Any, given: Any, topic: str, key: Any, key_bytes: Any, *args: Any
    ) -> int:
        chosen: int = original(placement, given if key_bytes is None else None, topic, key, key_bytes, *args)
        return chosen

    return around("Placement", "choose", choose)


def fast_path_outside_transactions() -> Changes:
    """The fast path does not look whether a transaction is open."""

    def try_send(original: Any, fast_path: Any, *args: Any) -> Any:
        fast_path.enabled = True
        return original(fast_path, *args)

    def admit(original: Any, accumulator: Any, records: bool) -> None:
        original(accumulator, True)

    return around("FastPath", "try_send", try_send) + around("RecordAccumulator", "admit", admit)


# ------------------------------------------------------------------------------------------------ guarantees, metadata


def numbers_of_the_expired_used_again() -> Changes:
    """What follows on a batch that has expired gets its numbers, although it may have been written."""

    def mark_unresolved(_: Any, book: Any, batch: Any) -> None:
        book.close_gap(batch)

    return around("SequenceBook", "mark_unresolved", mark_unresolved)


def coordinator_kept() -> Changes:
    """A broker that does not coordinate the transaction any more is asked again and again."""
    return around("RequestQueue", "lose", lambda *_: None)


def second_call_begins_anew() -> Changes:
    """A transaction call that is made again, after its time was up, does not wait for the operation under way."""
    return around("Operation", "same", lambda *_: None)


def older_leader_believed() -> Changes:
    """The answer of a broker that is behind replaces what is newer."""

    def read(original: Any, old: Any, *args: Any, partial: bool, most: int) -> Any:
        known = old if partial else old.without_brokers(old.nodes.values())
        return original(known, *args, partial=partial, most=most)

    return around("metadata's module", "read_answer", read)


def answer_forgotten_after_a_piece() -> Changes:
    """Metadata that is not read in one turn is not read on."""

    def take_piece(original: Any, fetcher: Any, *args: Any) -> None:
        original(fetcher, *args)
        fetcher._answer = None

    return around("MetadataFetcher", "_take_piece", take_piece)


def answer_like_the_last_changes_nothing() -> Changes:
    """An answer that says what the last one said is not read, although what is known has changed since."""

    def compare(original: Any, metadata: Any, *args: Any) -> Any:
        last = metadata._last_answer
        if last is not None:
            metadata._last_answer = last._replace(read=last.read._replace(snapshot=metadata.snapshot))
        return original(metadata, *args)

    return around("ProducerMetadata", "_compare_with_last", compare)


ALL = (
    byte_written_twice,
    youngest_request_answered,
    reconnect_backoff_ignored,
    request_lost_with_its_connection,
    end_of_requests_untold_at_close,
    failed_question_stays_under_way,
    newest_version_used,
    begun_answer_forgotten,
    batches_change_places,
    error_of_the_neighbour,
    key_lost_beside_headers,
    time_out_begins_anew,
    place_in_the_whole_for_that_in_a_piece,
    retries_overtake_each_other,
    busy_topics_forgotten,
    chunk_freed_twice,
    chunk_kept,
    chunk_counted_twice,
    waiter_passed_over,
    chunk_reused_while_it_is_sent,
    gathered_memory_lost,
    pieces_lose_headers,
    request_size_ignored,
    ready_queue_forgotten,
    timer_lost,
    retry_without_refresh,
    muted_after_a_failure,
    key_overrules_the_partition,
    fast_path_outside_transactions,
    numbers_of_the_expired_used_again,
    coordinator_kept,
    second_call_begins_anew,
    older_leader_believed,
    answer_forgotten_after_a_piece,
    answer_like_the_last_changes_nothing,
)
