# SPDX-License-Identifier: Apache-2.0
"""Leaders that are too old for record batches: which these are, and the batches in the format that they can store.

Records are always collected in the newest format, magic 2. A broker before Kafka 0.11 stores message sets of magic 1,
one before 0.10 those of magic 0. A batch for such a leader is sealed as usual, but without the codec, and converted
between drain and request.

Rules:
1. `Batch.wire` stays as it is. A split, and a retry after the leader was upgraded, begin with it.
2. The message set is kept with its batch until its outcome. A retry uses the same bytes, unless the leader needs
   another format. But where sets of more than MOST_HELD bytes are kept, batches that wait to be sent again lose theirs,
   and are converted once more.
3. What an old format cannot say is refused, never dropped: headers, sequence numbers that the user asked for, zstd.
   Only timestamps, which magic 0 does not have, and the context of a trace are dropped, with one warning for each.
4. A topic may be stored in an old format at a leader that is new enough. Then the leader converts, and drops headers
   without an error. Where it is known, records with headers are refused here.
5. While message sets of MOST_HELD bytes are in flight, old leaders get no further request; and in one turn no more of
   them get one than have room below it. So no more than MOST_HELD bytes and one request are held.

I/O thread only.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Collection, Container, Sequence
from typing import Final, NamedTuple

from penstock._events import Event, tell, tell_error
from penstock._metrics import MetricsRegistry
from penstock._time import Clock
from penstock.error_codes import ErrorCode
from penstock.errors import KafkaError, UnsupportedVersionError
from penstock.producer.batch._batch_cy import Batch
from penstock.producer.batch._queue_cy import PartitionQueue
from penstock.producer.batch._sealing_cy import Sealer
from penstock.producer.guarantee.gate import Gate, name_with_release
from penstock.producer.io import metric_names as names
from penstock.protocol._produce_cy import FIRST_VERSION_WITH_ZSTD, PartitionResponse
from penstock.protocol.messages import PRODUCE
from penstock.protocol.requests import BATCHES_REMEMBERED, NodeApiVersions
from penstock.records.compression import ZSTD
from penstock.records.compression import codec as codec_named
from penstock.records.format import MAGIC
from penstock.records.legacy._sets_cy import convert
from penstock.records.legacy.errors import LegacyFormatError, LegacyFormatReason
from penstock.records.legacy.format import NEWEST_LEGACY_MAGIC
from penstock.records.reader import read_batches
from penstock.types import Header, Node

log = logging.getLogger("penstock.producer")

MOST_HELD: Final = 16 * 1024 * 1024
# A message set has at most so many times the bytes of its batch: an entry without key and value has 34 bytes, such a
# record has 7.
_MOST_GROWTH: Final = 5
_NAMED_HEADERS: Final = 3
_TOO_OLD: Final = "{who} is older: send it without headers, or use newer brokers"
_OLD_TOPIC: Final = (
    "its topic is stored in an older format (message.format.version), in which the broker would drop them: send it "
    "without headers, or raise the topic's format"
)
# What an error adds where a batch was sent before, and no answer came.
EARLIER_ATTEMPT: Final = ". An earlier attempt to send it may have written it"
_NO_CODEC: Final = codec_named("none")


class Refusal(NamedTuple):
    """A batch that cannot be sent to its leader as it is.

    Attributes:
        reason: why nothing of it can be sent; or what a broker that knows the reason would say, where a part of it may
            be sent.
    """

    batch: Batch
    reason: KafkaError | PartitionResponse


class Conversions:
    """Converts batches for old leaders.

    Args:
        sealer: has the codec, and learns how well topics compress.
        gate: says whether a batch may go without its numbers.
        registry: gets the metrics.
        clock: measures how long a conversion takes.
        max_request_size: bytes of the batches of one request.
        is_context: whether tracing writes headers of that name; None without tracing.

    Attributes:
        modern: leaders that take batches as they are: node ids, and the versions of the connection that told. Empty
            while one is forgetful: then all are asked again and again.
        forgetful: leaders that remember few batches of a producer: node ids, and how many.
    """

    def __init__(
        self,
        sealer: Sealer,
        gate: Gate,
        registry: MetricsRegistry,
        clock: Clock,
        max_request_size: int,
        is_context: Callable[[str], bool] | None = None,
    ) -> None:
        self._is_context = is_context
        self._lost_context = False  # told
        self._sealer = sealer
        self._gate = gate
        self._clock = clock
        self._largest_request = _MOST_GROWTH * max_request_size
        self._admitted_last = -1  # node id
        self._uses_zstd = sealer.codec.id == ZSTD
        self._records = registry.rate_total(*names.RECORD_CONVERSION)
        self._time_ns = registry.counter(*names.CONVERSION_TIME)
        self._converted: set[Batch] = set()  # those that may have a message set
        self.modern: dict[int, NodeApiVersions] = {}
        self.forgetful: dict[int, int] = {}
        self._met: set[tuple[int, int]] = set()  # node id and magic of leaders that were told of
        self._lost_timestamps = False  # told

    def is_old(self, node_id: int, versions: NodeApiVersions, in_use: Container[int]) -> bool:
        """Whether a leader cannot take batches as they are. Need not be asked of one that is `modern`.

        Args:
            node_id: the leader.
            versions: what it can do.
            in_use: ids of all brokers of the cluster.
        """
        if versions.batches_remembered < BATCHES_REMEMBERED or self.forgetful:
            self._note_memory(node_id, versions, in_use)
            self.modern.clear()
        if versions.produce_magic < MAGIC or not self._takes_codec(versions):
            return True
        if not self.forgetful:
            self.modern[node_id] = versions
        return False

    def _takes_codec(self, versions: NodeApiVersions) -> bool:
        """Whether a broker that knows batches can take those of this producer: not zstd before Produce 7."""
        if not self._uses_zstd:
            return True
        offered = versions.range(PRODUCE.key)
        return offered is not None and offered[1] >= FIRST_VERSION_WITH_ZSTD

    def _note_memory(self, node_id: int, versions: NodeApiVersions, in_use: Container[int]) -> None:
        """A leader remembers few batches of a producer, or does not do so any more.

        One is enough to be careful with all: after a change of leaders it may be the one that is sent a batch again.

        Args:
            node_id: the leader.
            versions: what it can do.
            in_use: ids of all brokers of the cluster.
        """
        self.forgetful = {known: few for known, few in self.forgetful.items() if known in in_use}
        self.forgetful.pop(node_id, None)
        if versions.batches_remembered < BATCHES_REMEMBERED:
            self.forgetful[node_id] = versions.batches_remembered
        self._gate.expect_memory(min(self.forgetful.values(), default=BATCHES_REMEMBERED))

    def keep_nodes(self, kept: Container[int]) -> None:
        """Forget what other leaders can do, and that they were told of."""
        self._met = {entry for entry in self._met if entry[0] in kept}
        for node_id in [node_id for node_id in self.modern if node_id not in kept]:
            del self.modern[node_id]

    def admit(self, nodes: Sequence[Node], old: Collection[int]) -> tuple[list[Node], bool]:
        """Which leaders get a request in this turn (rule 5), and whether the others can have one in the next.

        Args:
            nodes: that can take one.
            old: ids of those that need conversions.
        """
        room = MOST_HELD - self._bytes_in_flight()
        few = max(1, room // self._largest_request) if room > 0 else 0
        if len(old) <= few:
            return list(nodes), False
        ids = sorted(old)
        first = bisect_right(ids, self._admitted_last)  # in turn
        admitted = (ids[first:] + ids[:first])[:few]
        if admitted:
            self._admitted_last = admitted[-1]
        return [node for node in nodes if node.id not in old or node.id in admitted], bool(admitted)

    def _bytes_in_flight(self) -> int:
        """Bytes of the message sets in requests; of the others, no more than rule 2 allows are kept."""
        sizes = {batch: len(batch.legacy[1]) for batch in self._converted if batch.legacy is not None}
        self._converted = set(sizes)
        held = sum(sizes.values())
        for batch, size in sizes.items():
            if held <= MOST_HELD:
                break
            if not batch.request_pending:
                batch.legacy = None
                held -= size
        return sum(size for batch, size in sizes.items() if batch.request_pending)

    def convert(
        self, node: Node, versions: NodeApiVersions, batches: Sequence[Batch], now: float
    ) -> tuple[list[Batch], list[Refusal]]:
        """Give batches the form that an old leader can store: those that have it now, and the others.

        Args:
            node: the leader.
            versions: what it can do.
            batches: sealed, and about to be sent to it.
            now: the time.
        """
        who = name_with_release(node, versions)
        self._tell(node, versions, who)
        ready: list[Batch] = []
        refused: list[Refusal] = []
        started = self._clock.now()
        for batch in batches:
            try:
                refusal = self._obstacle(batch, versions, who) or self._convert(batch, versions, who, now)
            except Exception as cause:  # noqa: BLE001 - it is logged, and the others get their turn
                refusal = _broken(batch, who, cause)
            if refusal is None:
                ready.append(batch)
            else:
                refused.append(refusal)
        self._time_ns.add(int((self._clock.now() - started) * 1e9))
        return ready, refused

    def check_headers(
        self, batches: Sequence[Batch], headerless: Collection[PartitionQueue]
    ) -> tuple[list[Batch], list[Refusal]]:
        """Tell batches of partitions that cannot store headers from the others: those that can be sent, and the rest.

        Args:
            batches: sealed, and about to be sent to a leader that takes batches.
            headerless: these partitions.
        """
        ready: list[Batch] = []
        refused: list[Refusal] = []
        for batch in batches:
            refusal = None
            if batch.queue in headerless and batch.identity.base_sequence < 0:
                try:
                    convert(batch.sealed_bytes(), NEWEST_LEGACY_MAGIC, _NO_CODEC)
                except LegacyFormatError as error:
                    if error.reason is LegacyFormatReason.HEADERS:
                        refusal = self._refuse_headers(batch, error.indexes, _OLD_TOPIC)
                except Exception as cause:  # noqa: BLE001 - it is logged, and the others get their turn
                    refusal = _broken(batch, "its topic's format", cause)
            if refusal is None:
                ready.append(batch)
            else:
                refused.append(refusal)
        return ready, refused

    def _tell(self, node: Node, versions: NodeApiVersions, who: str) -> None:
        magic = versions.produce_magic
        if magic < MAGIC and (node.id, magic) not in self._met:
            self._met.add((node.id, magic))
            tell(
                log, logging.INFO, Event.BATCH_CONVERTED,
                "%s stores message format %d: batches for it are converted", who, magic,
                node=node,
            )  # fmt: skip
        if magic == 0 and not self._lost_timestamps:
            self._lost_timestamps = True
            tell(
                log, logging.WARNING, Event.TIMESTAMPS_LOST,
                "%s cannot store timestamps, which need Kafka 0.10: records are written there without them", who,
                node=node,
            )  # fmt: skip

    def _obstacle(self, batch: Batch, versions: NodeApiVersions, who: str) -> Refusal | None:
        """Why a batch cannot be sent to an old leader whatever its records are."""
        if self._uses_zstd:
            return _unsupported(
                batch,
                f"compression.type=zstd needs Kafka 2.1, and {who} is older: use gzip, snappy or lz4, or newer brokers",
            )
        if batch.identity.base_sequence < 0:
            return None
        if not self._gate.may_go_unnumbered(batch, who):
            what = (
                "transactional.id" if self._gate.transactional_id is not None else "enable.idempotence=true"
            )
            return _unsupported(
                batch,
                f"{what} needs Kafka 0.11, and {who} is older: leave that option out, or use newer brokers",
            )
        self._sealer.seal(batch, batch.identity, True)  # which has no numbers any more
        return None

    def _convert(self, batch: Batch, versions: NodeApiVersions, who: str, now: float) -> Refusal | None:
        magic = versions.produce_magic
        if batch.legacy is not None and batch.legacy[0] == magic:
            return None  # it is sent again
        batch.legacy = None
        codec = self._sealer.codec
        wire = batch.sealed_bytes()
        try:
            records = convert(wire, magic, codec)
        except LegacyFormatError as error:
            refusal = self._refuse(batch, error, who)
            if refusal is not None:
                return refusal
            try:
                records = convert(wire, magic, codec, drop_headers=True)
            except LegacyFormatError as without:
                return self._refuse(batch, without, who)
        batch.legacy = (magic, records)
        self._converted.add(batch)
        self._records.record(batch.record_count, now)
        if codec.id:
            ratio = len(records) / max(1, batch.writer.raw_size)
            self._sealer.ratios.observe(batch.queue.topic, codec.id, ratio)
        return None

    # ---- refusals

    def _refuse(self, batch: Batch, error: LegacyFormatError, who: str) -> Refusal | None:
        """What becomes of a batch that has no old form; None: it has one without its headers."""
        if error.reason is LegacyFormatReason.HEADERS:
            return self._refuse_headers(batch, error.indexes, _TOO_OLD.format(who=who))
        text = f"the records cannot be sent to {who}: {error}"
        if error.reason is LegacyFormatReason.SIZE:
            return _answered(batch, ErrorCode.MESSAGE_TOO_LARGE, text)
        return _unsupported(batch, text)

    def _refuse_headers(self, batch: Batch, indexes: Sequence[int], why: str) -> Refusal | None:
        """Each record with headers fails by itself: a broker of today names records in the same way.

        None: they carry the context of a trace and nothing else, and go without it.
        """
        wanted = set(indexes)
        (sealed,) = read_batches(batch.sealed_bytes())
        errors = []
        for index, record in enumerate(sealed.iter_records()):
            found = [] if index not in wanted else self._names_of_user(record.headers)
            if found:
                shown = ", ".join(found[:_NAMED_HEADERS]) + (", ..." if len(found) > _NAMED_HEADERS else "")
                text = f"the record for {batch.topic_partition} has headers ({shown}), which need Kafka 0.11, and {why}"
                errors.append((index, text + (EARLIER_ATTEMPT if batch.in_doubt else "")))
        if errors:
            text = f"it has headers, which need Kafka 0.11, and {why}"
            return _answered(batch, ErrorCode.INVALID_RECORD, text, errors)
        if not self._lost_context:
            self._lost_context = True
            tell(
                log, logging.WARNING, Event.CONTEXT_LOST,
                "records for %s lose the headers of tracing, which need Kafka 0.11: its leader is older, or stores "
                "it in an older format", batch.topic_partition,
                place=batch.topic_partition,
            )  # fmt: skip
        return None

    def _names_of_user(self, headers: Sequence[Header]) -> list[str]:
        """The names of headers, for people, but for those that tracing writes."""
        is_context = self._is_context
        return [repr(header.key) for header in headers if is_context is None or not is_context(header.key)]


def _unsupported(batch: Batch, text: str) -> Refusal:
    text = f"{batch.topic_partition}: {text}{EARLIER_ATTEMPT if batch.in_doubt else ''}"
    return Refusal(batch, UnsupportedVersionError(text))


def _answered(batch: Batch, code: int, text: str, errors: Sequence[tuple[int, str]] = ()) -> Refusal:
    return Refusal(
        batch, PartitionResponse(*batch.topic_partition, code, record_errors=errors, error_message=text)
    )


def _broken(batch: Batch, who: str, cause: Exception) -> Refusal:
    tell_error(
        log, Event.BATCH_ERROR, "a batch of %s could not be converted for %s", batch.topic_partition, who,
        place=batch.topic_partition, error=cause,
    )  # fmt: skip
    error = KafkaError(f"the batch of {batch.topic_partition} could not be converted for {who}: {cause!r}")
    error.__cause__ = cause
    return Refusal(batch, error)
