# SPDX-License-Identifier: Apache-2.0
"""The records of the log: how they are written and read. JSON with a format number in keys and values.

    key                                       value
    sink                                      names the sink in words; written before its first transactional id is used
    owner                                     generation, JVM, planner, and the JVMs before it
    decision                                  the head of the latest decision, last of its transaction
    chunk, execution, number                  handles of a decision, compressed
    done, execution                           the decision of that execution is visible as a whole

Keys are made so that compaction keeps what is needed and nothing else: a new head replaces the old one, whose decision
is done by then. Chunks and *done* carry their execution, so that nobody who comes late can replace a newer one's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from penstock._json_fields import Fields, as_list, as_number
from penstock.control.partition_log import KeyValue
from penstock.errors import ProtocolError, SinkError, SinkLogLostError
from penstock.records.compression import GZIP, codec, decompress
from penstock.sink.identity import DriverIdentity, Jvm, jvm_from_json, parse_task_id
from penstock.sink.messages import Content, Execution, TaskHandle, added_up, content_from_json

FORMAT: Final = 1
MAX_CHUNK_BYTES: Final = 512 * 1024
MAX_QUERIES: Final = 128  # some 100 bytes each in the head of every decision
MAX_PREVIOUS_OWNERS: Final = 16
_FIRST_MAX_QUERIES: Final = 16  # of heads that do not say how many they have forgotten

# How the keys of this format begin; then come the digits of the sink's key, and a quotation mark.
_KEY_BEGIN: Final = b'{"format":1,"sink":"'
_KEY_END_AT: Final = len(_KEY_BEGIN) + 16
_SINK_KEY: Final = re.compile("[0-9a-f]{16}")

_HANDLES_PER_CHUNK: Final = 2000  # about 60 kB compressed; many more only where partitions are many
_MAX_CHUNK_JSON: Final = 64 * 1024 * 1024


class Key(NamedTuple):
    """The key of a record, taken apart; execution and chunk where the kind has them."""

    kind: str
    sink_key: str
    execution: Execution | None = None
    chunk: int = -1

    def encode(self) -> bytes:
        values: dict[str, Any] = {"format": FORMAT, "sink": self.sink_key, "kind": self.kind}
        if self.execution is not None:
            values["execution"] = list(self.execution)
        if self.chunk >= 0:
            values["chunk"] = self.chunk
        return _dump(values)


class Claim(NamedTuple):
    """The sink in words. Its presence tells a new sink from one whose log was lost."""

    sink_id: str
    run_id: str | None
    one_off: bool = False  # nobody will ask for the run again


class Owner(NamedTuple):
    """Who may write: one JVM, with as many planner processes as it likes.

    Attributes:
        planner_pid: the planner process that took the sink over, and `token` its token.
        previous: JVMs that had the sink before and must not come back, latest first.
        producer_id: of the coordinator's id when the record was written. Executions of the generation are numbered by
            the epochs under it; -1 in records of releases whose planner processes counted for themselves.
        place: where the JVM's process id means something; see `identity`.
    """

    generation: int
    jvm: Jvm
    planner_pid: int
    token: str
    previous: tuple[Jvm, ...] = ()
    producer_id: int = -1
    place: str = ""

    def covers(self, driver: DriverIdentity, producer_id: int) -> bool:
        """Whether the driver may go on in this generation, with the coordinator's id as it has it now."""
        return self.jvm == driver.jvm and self.producer_id == producer_id

    def successor(self, driver: DriverIdentity, producer_id: int) -> Owner:
        """The owner record by which a driver takes over."""
        previous = [jvm for jvm in self.previous if jvm != driver.jvm]
        if self.jvm != driver.jvm:
            previous = [self.jvm, *(jvm for jvm in previous if jvm != self.jvm)]
        return _owned_by(driver, self.generation + 1, tuple(previous[:MAX_PREVIOUS_OWNERS]), producer_id)


class Decision(NamedTuple):
    """A batch that was decided, or is about to be.

    Attributes:
        topic: as in the settings of the sink.
        last_decided: the last batch of the latest queries, this one included; latest last.
        chunks: how many records hold the handles.
        contents: what was decided as those last batches, where it is known; of a head without it, only the number of
            its own rows is. A repaired batch has the content of the whole, and not of what was written again.
        forgotten: how many queries have been left out of last_decided, because others came after them.
        topics: the settings' topic with which those last batches were decided, where it is known; a head without the
            field only has that of its own.
        written_ms: when its head was written, by its driver's clock; -1 where it was not read from the log.
    """

    execution: Execution
    query_id: str
    batch_id: int
    topic: str | None
    rows: int
    chunks: int
    last_decided: Mapping[str, int]
    handles: tuple[TaskHandle, ...] = ()
    contents: Mapping[str, Content] = MappingProxyType({})
    forgotten: int = 0
    topics: Mapping[str, str | None] = MappingProxyType({})
    written_ms: int = -1


# ---- writing


def first_owner(driver: DriverIdentity, producer_id: int) -> Owner:
    """The owner record of a new sink."""
    return _owned_by(driver, 1, (), producer_id)


def _owned_by(driver: DriverIdentity, generation: int, previous: tuple[Jvm, ...], producer_id: int) -> Owner:
    return Owner(
        generation, driver.jvm, driver.planner_pid, driver.token, previous, producer_id, driver.place
    )


def claim_record(sink_key: str, claim: Claim) -> KeyValue:
    """A sink's name in words."""
    return KeyValue(
        Key("sink", sink_key).encode(),
        _value(sink_id=claim.sink_id, run_id=claim.run_id, one_off=claim.one_off),
    )


def owner_record(sink_key: str, owner: Owner) -> KeyValue:
    """Who owns a sink."""
    value = _value(
        generation=owner.generation,
        jvm=list(owner.jvm),
        planner_pid=owner.planner_pid,
        token=owner.token,
        previous=[list(jvm) for jvm in owner.previous],
        producer_id=owner.producer_id,
        place=owner.place,
    )
    return KeyValue(Key("owner", sink_key).encode(), value)


def decide(
    execution: Execution,
    batch: tuple[str, int],
    topic: str | None,
    handles: Sequence[TaskHandle],
    before: Decision | None = None,
    content: Content | None = None,
) -> Decision:
    """A decision for a batch.

    Args:
        execution: that wrote it.
        batch: its query id and batch id.
        topic: as in the settings of the sink.
        handles: of its tasks.
        before: the decision before this one, from which the other queries are taken over.
        content: of the whole batch, unless it is what the handles add up to.
    """
    query_id, batch_id = batch
    last = (
        {}
        if before is None
        else {key: value for key, value in before.last_decided.items() if key != query_id}
    )
    last[query_id] = batch_id
    latest = dict(list(last.items())[-MAX_QUERIES:])
    known = {} if before is None else before.contents
    contents = {query: known[query] for query in latest if query in known}
    contents[query_id] = added_up(handle.content for handle in handles) if content is None else content
    known_topics = {} if before is None else before.topics
    topics = {query: known_topics[query] for query in latest if query in known_topics} | {query_id: topic}
    forgotten = len(last) - len(latest) + (0 if before is None else before.forgotten)
    rows = sum(handle.rows for handle in handles)
    return Decision(
        execution, query_id, batch_id, topic, rows, -1, latest, tuple(handles), contents, forgotten, topics
    )


def decision_records(
    sink_key: str, decision: Decision, replaces: Execution | None
) -> tuple[Decision, list[KeyValue]]:
    """A decision that knows its chunks, and its records, head last.

    Args:
        sink_key: of the sink.
        decision: as `decide` made it.
        replaces: the execution of the decision before it, whose *done* is not needed any more.
    """
    chunks = list(_pack(list(decision.handles)))
    records = [
        KeyValue(Key("chunk", sink_key, decision.execution, index).encode(), chunk)
        for index, chunk in enumerate(chunks)
    ]
    if replaces is not None and replaces != decision.execution:
        records.append(KeyValue(Key("done", sink_key, replaces).encode(), None))
    head = _value(
        execution=list(decision.execution),
        query=decision.query_id,
        batch=decision.batch_id,
        topic=decision.topic,
        rows=decision.rows,
        chunks=len(chunks),
        last_decided=dict(decision.last_decided),
        contents={query: list(content) for query, content in decision.contents.items()},
        forgotten=decision.forgotten,
        topics=dict(decision.topics),
    )
    records.append(KeyValue(Key("decision", sink_key).encode(), head))
    return decision._replace(chunks=len(chunks)), records


def _pack(handles: list[TaskHandle]) -> list[bytes]:
    """Handles as compressed chunks, none too large."""
    packed = []
    for start in range(0, len(handles), _HANDLES_PER_CHUNK):
        packed += _pack_some(handles[start : start + _HANDLES_PER_CHUNK])
    return packed


def _pack_some(handles: list[TaskHandle]) -> list[bytes]:
    raw = _value(handles=[handle.to_dict() for handle in handles])
    chunk = bytes(codec("gzip").compress(raw))
    if len(chunk) <= MAX_CHUNK_BYTES and len(raw) <= _MAX_CHUNK_JSON:
        return [chunk]
    if len(handles) == 1:
        raise SinkError(
            f"one task's handle takes {len(chunk)} bytes in the log: it has written to too many partitions "
            f"({len(handles[0].counts)}). Nothing was decided: use more tasks, each with fewer partitions"
        )
    middle = len(handles) // 2
    return _pack_some(handles[:middle]) + _pack_some(handles[middle:])


def chunk_tombstones(sink_key: str, decision: Decision) -> list[KeyValue]:
    """For a decision whose handles are not needed any more."""
    chunks = [Key("chunk", sink_key, decision.execution, number) for number in range(decision.chunks)]
    return [KeyValue(key.encode(), None) for key in chunks]


def done_records(sink_key: str, decision: Decision, lost: Sequence[TaskHandle] = ()) -> list[KeyValue]:
    """A decision is done, and its handles are not needed any more."""
    value = _value(batch=decision.batch_id, lost=[handle.to_dict() for handle in lost])
    done = KeyValue(Key("done", sink_key, decision.execution).encode(), value)
    return [done, *chunk_tombstones(sink_key, decision)]


def forget_records(sink_key: str, execution: Execution | None = None) -> list[KeyValue]:
    """Tombstones for all that a sink has, when its last decision is done and nobody will ask for it again."""
    keys = [Key("decision", sink_key), Key("owner", sink_key), Key("sink", sink_key)]
    if execution is not None:
        keys.insert(0, Key("done", sink_key, execution))
    return [KeyValue(key.encode(), None) for key in keys]


# ---- reading


def parse_key(raw: bytes | None) -> Key | None:
    """A record's key, taken apart; None for what is not of this format, or somebody else's.

    It counts only if it is, byte for byte, what `Key.encode` gives: compaction compares bytes, too.
    """
    try:
        fields = Fields.parse(raw or b"")
        execution = fields.value("execution") if fields.has("execution") else None
        key = Key(
            fields.text("kind"),
            fields.text("sink"),
            None if execution is None else _execution(execution),
            fields.number("chunk", 0) if fields.has("chunk") else -1,
        )
    except ValueError:
        return None
    return key if key.encode() == raw else None


def is_of_this_format(raw: bytes) -> bool:
    """Whether a key says that it is of the format of this release."""
    return raw.startswith(_KEY_BEGIN)


def sink_key_in(raw: bytes | None) -> str | None:
    """The sink that a record's key names; None for what somebody else has put there."""
    if raw is None:
        return None
    if raw.startswith(_KEY_BEGIN) and raw[_KEY_END_AT : _KEY_END_AT + 1] == b'"':
        name = raw[len(_KEY_BEGIN) : _KEY_END_AT].decode("ascii", errors="replace")
    else:
        try:  # of another format, perhaps
            fields = Fields.parse(raw)
            fields.value("format")
            name = fields.text("sink")
        except ValueError:
            return None
    # It is printed, and becomes part of transactional ids and of commands that a user may copy.
    return name if _SINK_KEY.fullmatch(name) else None


def check_format(raw_key: bytes) -> None:
    """Make sure that a record is one that this release understands.

    Raises:
        SinkLogLostError: it was written by a newer release, so that what it means is not known.
    """
    if not is_of_this_format(raw_key):
        _parse(raw_key)


def parse_claim(raw: bytes) -> Claim:
    """Read a sink's name."""
    with _believing_nothing():
        values = _parse(raw)
        return Claim(values.text("sink_id"), values.optional_text("run_id"), values.flag("one_off", False))


def parse_owner(raw: bytes) -> Owner:
    """Read an owner record."""
    with _believing_nothing():
        values = _parse(raw)
        return Owner(
            values.number("generation", 1),
            jvm_from_json(values.value("jvm")),
            values.number("planner_pid"),
            values.text("token"),
            tuple(map(jvm_from_json, values.array("previous"))),
            values.number("producer_id") if values.has("producer_id") else -1,
            values.text("place") if values.has("place") else "",
        )


def parse_decision(raw: bytes, *, is_of_repair: bool = False) -> Decision:
    """Read the head of a decision, without its handles.

    Args:
        raw: its value.
        is_of_repair: the decision repairs another one. The first release wrote down only what was written again then.
    """
    with _believing_nothing():
        values = _parse(raw)
        query_id, rows = values.text("query"), values.number("rows", 0)
        topic = values.optional_text("topic")
        return Decision(
            _execution(values.value("execution")),
            query_id,
            values.number("batch"),
            topic,
            rows,
            values.number("chunks", 0),
            values.numbers_by_text("last_decided"),
            contents=_parse_contents(values, {} if is_of_repair else {query_id: Content(rows)}),
            forgotten=_parse_forgotten(values),
            topics=_parse_topics(values, {query_id: topic}),
        )


def _parse_forgotten(values: Fields) -> int:
    """How many queries were forgotten; a head without the field does not count them, and may have if it is full."""
    if values.has("forgotten"):
        return values.number("forgotten", 0)
    return int(len(values.numbers_by_text("last_decided")) >= _FIRST_MAX_QUERIES)


def _parse_contents(values: Fields, otherwise: dict[str, Content]) -> dict[str, Content]:
    """What was decided for each query; a head without the field only has the rows of its own batch."""
    if not values.has("contents"):
        return otherwise
    contents = Fields(values.value("contents"))
    return {query: content_from_json(contents.value(query)) for query in contents.names()}


def _parse_topics(values: Fields, otherwise: dict[str, str | None]) -> dict[str, str | None]:
    if not values.has("topics"):
        return otherwise
    topics = Fields(values.value("topics"))
    return {query: topics.optional_text(query) for query in topics.names()}


def parse_chunk(raw: bytes) -> list[TaskHandle]:
    """Read the handles of a chunk; `check_belongs` says whether they are the sink's."""
    with _believing_nothing():
        plain = decompress(GZIP, memoryview(raw), _MAX_CHUNK_JSON)
        return [TaskHandle.from_dict(values) for values in _parse(plain).array("handles")]


def check_belongs(handle: TaskHandle, sink_key: str) -> None:
    """Make sure that a handle is one of the sink's own tasks.

    The client that finishes a decision may have the right to end all transactions of the cluster. A decision must not
    make it end those of others.

    Raises:
        SinkLogLostError: it is the transaction of somebody else.
    """
    name = handle.transaction.transactional_id
    parts = parse_task_id(name)
    if parts is None or parts.sink_key != sink_key:
        raise SinkLogLostError(
            f"a decision names the transaction of {name!r}, which is not one of this sink's own ({sink_key}): it was "
            "not written by Penstock. Nothing was written or committed: find out who may write to the decision topic"
        )


def _execution(values: Any) -> Execution:
    generation, number = as_list(values, "execution", 2)
    return Execution(as_number(generation, "execution", 0), as_number(number, "execution", 0))


@contextmanager
def _believing_nothing() -> Iterator[None]:
    """Whatever is wrong with a record concerns the sink that it names, and ends in an error that says so."""
    try:
        yield
    except (ValueError, RecursionError, ProtocolError) as error:
        raise _damaged(error) from error


def _parse(raw: bytes) -> Fields:
    """The fields of a record.

    Raises:
        SinkLogLostError: it is of a newer format, or no record of ours.
    """
    with _believing_nothing():
        fields = Fields.parse(raw)
        number = fields.number("format")
    if number != FORMAT:
        raise _newer(number)
    return fields


def _value(**values: Any) -> bytes:
    return _dump({"format": FORMAT, **values})


def _dump(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode()


def _newer(number: int) -> SinkLogLostError:
    return SinkLogLostError(
        f"the sink's log has a record of format {number!r}, and this release knows format {FORMAT}: it was written "
        "by a newer release. Nothing was written: use that release, or a newer one"
    )


def _damaged(error: Exception) -> SinkLogLostError:
    return SinkLogLostError(f"a record of the sink's log cannot be read: {error}. Nothing was written")
