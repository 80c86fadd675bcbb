# SPDX-License-Identifier: Apache-2.0
"""Following one record on its way, with times.

Who looks names a topic, and a key if one shall be followed. The next such record is followed from its call of send() to
its outcome. Until it comes, the topic's records take the general path of send(); those of other topics do not. The way
of the record ends with its outcome, and then all is as before. Records of send_many and send_arrow are not seen, unless
interceptors or a partitioner take them one by one.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

from penstock._ticket import Ticket, TicketKind
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
    "memory": "somebody waited for memory",
    "close": "the producer is closed",
    "transaction-end": "the transaction ends",
    "along": "a request left for its broker anyway",
}


class Way:
    """The way of one record; times are monotonic seconds. Written by the sender's thread, then by the I/O thread."""

    def __init__(self, topic: str, begun: float) -> None:
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
                f"The batch left with {seen['records']:,} records, {percent(seen['fill'])} full, because {why}.",
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
        self._lock = threading.Lock()  # guards the next two
        self._wanted: tuple[str, str | None, float] | None = (
            None  # topic, key, and until when it is waited for
        )
        self._way: Way | None = None

    def start(self, topic: str, key: str | None) -> None:
        """Follow the next record of a topic; with a key, the next one that has it."""
        with self._lock:
            self._way = None
            self._wanted = (topic, key, self._parts.clock.now() + PATIENCE)
        self._parts.send_path.follower = self._follow
        self._parts.accumulator.follow(topic)
        self._parts.fast_path.look_up_again()

    def stop(self) -> None:
        """Follow none. What was followed last stays to be seen."""
        with self._lock:
            self._wanted = None
        self._parts.send_path.follower = None
        self._parts.accumulator.follow(None)

    def state(self, now: float) -> dict[str, Any] | None:
        """What is waited for, and how far the record is; None when nobody has asked."""
        wanted, way = self._wanted, self._way
        if wanted is not None:
            if now > wanted[2]:
                self.stop()
                return {"topic": wanted[0], "key": wanted[1], "waiting": False, "done": True, "steps": []}
            # Plain Python may have remembered the topic just before it was taken off the fast path.
            self._parts.fast_path.look_up_again()
            return {"topic": wanted[0], "key": wanted[1], "waiting": True, "done": False, "steps": []}
        if way is None:
            return None
        steps = way.steps(now, self._parts.config.linger_ms)
        return {
            "topic": way.topic,
            "key": None,
            "waiting": False,
            "done": way.ended is not None,
            "steps": steps,
        }

    def _follow(
        self, record: ProducerRecord, steps: Generator[Any, Any, Delivery]
    ) -> Generator[Any, Any, Delivery]:
        """The steps of a record as they are, unless it is the one: then its way is noted beside them."""
        now = self._parts.clock.now()
        with self._lock:
            wanted = self._wanted
            late = wanted is None or now > wanted[2]
            found = not late and wanted is not None and _fits(record, wanted[0], wanted[1])
            if found:
                self._way = Way(record.topic, now)
                self._wanted = None
            way = self._way
        if late or found:
            self._parts.send_path.follower = None
            self._parts.accumulator.follow(None)
        return self._noted(steps, way) if found and way is not None else steps

    def _noted(self, steps: Generator[Any, Any, Delivery], way: Way) -> Generator[Any, Any, Delivery]:
        clock = self._parts.clock
        try:
            delivery = yield from _timed(steps, way, clock.now)
        except GeneratorExit:
            way.refused, way.ended = "the call was given up", clock.now()
            raise
        except BaseException as error:
            way.refused, way.ended = str(error) or type(error).__name__, clock.now()
            raise
        way.accepted = clock.now()
        result, way.index = place_in_batch(delivery)
        way.batch = next(
            (batch for batch in self._parts.accumulator.incomplete_batches() if batch.result is result), None
        )
        way.opened = None if way.batch is None else way.batch.created
        way.result = result
        result.when_settled(lambda: self._settled(way))
        return delivery

    def _settled(self, way: Way) -> None:
        """The batch has its outcome. I/O thread."""
        way.ended = self._parts.clock.now()
        if way.batch is not None:
            way.left = seen_of(way.batch)
            way.batch = None  # its memory is the pool's
        if way.result is not None:
            result, index = way.result.resolve(way.index)
            error = result.error_of(index)
            offset = -1 if result.base_offset < 0 else result.base_offset + index
            way.settled = (result.partition, offset, None if error is None else str(error))


def seen_of(batch: Batch) -> dict[str, Any]:
    """What matters of a batch on the way of its record."""
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


def _timed(steps: Generator[Any, Any, Delivery], way: Way, now: Any) -> Generator[Any, Any, Delivery]:
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
                _note(way, item, since, now())
                item = steps.throw(error)
            else:
                _note(way, item, since, now())
                item = steps.send(answer)
    except StopIteration as end:
        delivery: Delivery = end.value
        return delivery


def _note(way: Way, item: Any, since: float, until: float) -> None:
    if isinstance(item, Ticket):
        what = {TicketKind.MEMORY: "memory", TicketKind.METADATA: "the topic's metadata"}.get(item.kind)
        way.waits.append((since, until, what or "its turn"))


def _fits(record: ProducerRecord, topic: str, key: str | None) -> bool:
    if record.topic != topic:
        return False
    if key is None:
        return True
    own = record.key
    return own == key.encode() if isinstance(own, bytes) else str(own) == key


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
