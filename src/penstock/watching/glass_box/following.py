# SPDX-License-Identifier: Apache-2.0
"""Following one record from send() to its outcome, with times.

The viewer names a topic, and perhaps a key. The next such record is followed from its call of send() to its outcome.
Until that record comes, the topic's records take the general path of send(); those of other topics do not. Records of
send_many and send_arrow are not seen, unless interceptors or a partitioner take them one by one.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

from penstock._counted import counted
from penstock._locks import new_lock
from penstock._ticket import Ticket, TicketKind
from penstock.errors import KafkaError, SerializationError
from penstock.producer.batch._delivery_cy import Delivery, place_in_batch
from penstock.producer.io.metric_names import LEAVING_REASONS
from penstock.watching.glass_box.reading import percent

if TYPE_CHECKING:
    from penstock.producer.assembly import ProducerParts
    from penstock.producer.batch._batch_cy import Batch
    from penstock.producer.batch._delivery_cy import BatchResult
    from penstock.types import ProducerRecord

PATIENCE: Final = 120.0  # seconds that a record is waited for

_REASONS: Final = {
    "full": "it was full",
    "linger": "linger.ms was over",
    "flush": "flush() was called",
    "memory": "a thread waited for memory",
    "close": "the producer is closed",
    "transaction-end": "the transaction ends",
    "along": "another batch caused a request to the same broker",
}


class FollowedRecord:
    """One record and its times, in monotonic seconds. Written by the sender's thread, then by the I/O thread."""

    def __init__(self, number: int, topic: str, begun: float) -> None:
        self.number = number
        self.topic = topic
        self.begun = begun
        self.waits: list[tuple[float, float, str]] = []  # from, to, for what
        self.accepted: float | None = None
        self.batch: Batch | None = None
        self.opened: float | None = None  # when the batch was
        self.result: BatchResult | None = None
        self.index = 0
        self.refused: str | None = None
        self.ended: float | None = None
        self.settled: tuple[int, int, str | None] | None = None  # partition, offset, error
        self.left: dict[str, Any] = {}  # of the batch, when it had its outcome

    def steps(self, now: float, linger_ms: float) -> list[dict[str, Any]]:
        """What happened, in order: milliseconds since send() was called, a word and a sentence."""
        told: list[tuple[float, str, str]] = [(self.begun, "sent", "send() was called.")]
        for since, until, what in self.waits:
            told.append((since, "waits", f"It waited {_ms(until - since)} for {what}."))
        if self.refused is not None:
            told.append((self.ended or now, "refused", f"send() raised: {self.refused}"))
        if self.accepted is not None and self.result is not None:
            told.append((self.accepted, "accepted", self._accepted_text()))
            told.extend(self._on_its_way(now, linger_ms))
        if self.settled is not None:
            partition, offset, error = self.settled
            place = f"{self.topic}-{partition}"
            if error is not None:
                told.append((self.ended or now, "failed", f"It failed: {error}"))
            elif offset >= 0:
                told.append((self.ended or now, "acknowledged", f"{place} has it at offset {offset:,}."))
            else:
                told.append((self.ended or now, "acknowledged", f"{place} has it; its offset is not known."))
        return [
            {"at_ms": round(1000 * (at - self.begun), 3), "what": what, "text": text}
            for at, what, text in told
        ]

    def _accepted_text(self) -> str:
        assert self.result is not None
        text = f"It is record {self.index + 1:,} of a batch for {self.topic}-{self.result.partition}"
        if self.opened is not None and self.accepted is not None and self.index:
            text += f", which had been open for {_ms(max(0.0, self.accepted - self.opened))}"
        return f"{text}."

    def _on_its_way(self, now: float, linger_ms: float) -> list[tuple[float, str, str]]:
        """From the batch to its request, and to further ones."""
        seen = self.left or ({} if self.batch is None else seen_of(self.batch))
        if not seen or seen["left_by"] < 0:
            return []
        why = _REASONS[LEAVING_REASONS[seen["left_by"]]]
        if seen["left_by"] == LEAVING_REASONS.index("linger"):
            why = f"linger.ms={linger_ms:g} was over"
        first = seen["drained_at"] - seen["retried_for"]
        told = [
            (
                max(first, self.accepted or first),
                "request",
                (
                    f"The batch left with {counted(seen['records'], 'record')}, {percent(seen['fill'])} full, because "
                    f"{why}."
                ),
            )
        ]
        if seen["attempts"]:
            times = "once" if seen["attempts"] == 1 else f"{seen['attempts']} times"
            told.append(
                (
                    seen["drained_at"],
                    "again",
                    f"It was sent again, {times} until now. The last cause: {seen['last_error']}",
                )
            )
        if self.settled is None and seen["in_flight"]:
            told.append((now, "waits", f"No answer for {_ms(max(0.0, now - seen['drained_at']))}."))
        return told


class Follower:
    """Follows one record of a producer at a time.

    Args:
        parts: the producer.
    """

    def __init__(self, parts: ProducerParts) -> None:
        self._parts = parts
        # Guards the next three. Senders take it, and so may a finalizer that interrupts one of them and sends.
        self._lock: Any = new_lock()
        self._wanted: tuple[str, str | None, float] | None = (
            None  # topic, key, and until when it is waited for
        )
        self._followed: FollowedRecord | None = None
        self._number = 0  # counts calls of `start`: tells an older state from the one that was asked for

    def start(self, topic: str, key: str | None) -> int:
        """Follow the next record of a topic; with a key, the next one that has it. The number of the question."""
        with self._lock:
            self._followed = None
            self._number += 1
            number = self._number
            self._wanted = (topic, key, self._parts.clock.now() + PATIENCE)
            self._parts.send_path.follower = self._follow
            self._parts.accumulator.follow(topic)
        self._parts.fast_path.look_up_again()
        return number

    def stop(self) -> None:
        """Follow no record any more. The last followed record can still be viewed."""
        with self._lock:
            self._wanted = None
            self._let_go_locked()

    def _let_go_locked(self) -> None:
        """All records take their usual path again."""
        self._parts.send_path.follower = None
        self._parts.accumulator.follow(None)

    def state(self, now: float) -> dict[str, Any] | None:
        """What is waited for, and how far the record is; None when nobody has asked."""
        with self._lock:
            wanted, followed, number = self._wanted, self._followed, self._number
            late = wanted is not None and now > wanted[2]
            if late:
                self._wanted = None
                self._let_go_locked()
        if wanted is not None:
            if not late:
                # Plain Python may have remembered the topic just before it was taken off the fast path.
                self._parts.fast_path.look_up_again()
            asked = {"number": number, "topic": wanted[0], "key": wanted[1]}
            return asked | {"waiting": not late, "done": late, "steps": []}
        if followed is None:
            return None
        steps = followed.steps(now, self._parts.config.linger_ms)
        return {
            "number": followed.number,
            "topic": followed.topic,
            "key": None,
            "waiting": False,
            "done": followed.ended is not None,
            "steps": steps,
        }

    def _follow(
        self, record: ProducerRecord, steps: Generator[Any, Any, Delivery]
    ) -> Generator[Any, Any, Delivery]:
        """The steps of a record; if the record is the wanted one, they also note its times."""
        now, wanted = self._parts.clock.now(), self._wanted
        if wanted is None:
            return steps
        late = now > wanted[2]
        if not late and not _fits(record, wanted[0], wanted[1]):
            return steps
        with self._lock:
            if self._wanted is not wanted:
                return steps  # another sender was first, or something else is asked for since
            self._let_go_locked()
            if late:
                return steps
            self._wanted = None
            followed = self._followed = FollowedRecord(self._number, record.topic, now)
        return self._noted(steps, followed)

    def _noted(
        self, steps: Generator[Any, Any, Delivery], followed: FollowedRecord
    ) -> Generator[Any, Any, Delivery]:
        clock = self._parts.clock
        try:
            delivery = yield from _timed(steps, followed, clock.now)
        except GeneratorExit:
            followed.refused, followed.ended = "the call was cancelled", clock.now()
            raise
        except BaseException as error:
            followed.refused, followed.ended = _without_contents(error), clock.now()
            raise
        followed.accepted = clock.now()
        result, followed.index = place_in_batch(delivery)
        followed.batch = next(
            (batch for batch in self._parts.accumulator.incomplete_batches() if batch.result is result), None
        )
        followed.opened = None if followed.batch is None else followed.batch.created
        followed.result = result
        result.when_settled(lambda: self._settled(followed))
        return delivery

    def _settled(self, followed: FollowedRecord) -> None:
        """The batch has its outcome. I/O thread."""
        followed.ended = self._parts.clock.now()
        if followed.batch is not None:
            followed.left = seen_of(followed.batch)
            followed.batch = None  # its memory is the pool's
        if followed.result is not None:
            result, index = followed.result.resolve(followed.index)
            error = result.error_of(index)
            offset = -1 if result.base_offset < 0 else result.base_offset + index
            followed.settled = (result.partition, offset, None if error is None else str(error))


def seen_of(batch: Batch) -> dict[str, Any]:
    """The fields of a batch that its followed record needs."""
    writer = batch.writer
    return {
        "left_by": batch.left_by,
        "drained_at": batch.drained_at,
        "retried_for": batch.retried_for,
        "records": batch.record_count,
        "fill": min(1.0, writer.estimated_size() / max(1, writer.limit)),
        "attempts": batch.attempts,
        "last_error": str(batch.last_error or ""),
        "in_flight": batch.request_pending,
    }


def _timed(
    steps: Generator[Any, Any, Delivery], followed: FollowedRecord, now: Any
) -> Generator[Any, Any, Delivery]:
    """The steps, and beside them how long each wait takes."""
    try:
        item = next(steps)
        while True:
            since = now()
            try:
                answer = yield item
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as error:  # noqa: BLE001 - it is for the steps
                _note(followed, item, since, now())
                item = steps.throw(error)
            else:
                _note(followed, item, since, now())
                item = steps.send(answer)
    except StopIteration as end:
        delivery: Delivery = end.value
        return delivery


def _note(followed: FollowedRecord, item: Any, since: float, until: float) -> None:
    if isinstance(item, Ticket):
        what = {TicketKind.MEMORY: "memory", TicketKind.METADATA: "the topic's metadata"}.get(item.kind)
        followed.waits.append((since, until, what or "the producer"))


def _fits(record: ProducerRecord, topic: str, key: str | None) -> bool:
    if record.topic != topic:
        return False
    if key is None:
        return True
    own = record.key
    if isinstance(own, bytes):
        return own == key.encode()
    try:
        return str(own) == key
    except Exception:  # noqa: BLE001 - a key of the user's class: it is sent all the same
        return False


def _without_contents(error: BaseException) -> str:
    """Why send() raised. The text of an error that is not Penstock's may contain the record's data: it is not shown."""
    if isinstance(error, KafkaError) and not isinstance(error, SerializationError):
        return str(error) or type(error).__name__
    return f"{type(error).__name__}; its text is not shown, as it may have contents of the record"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
