# SPDX-License-Identifier: Apache-2.0
"""Which records of the log count, and what they add up to."""

from __future__ import annotations

import gzip
import json
import struct
from dataclasses import replace

import pytest
from sink.log.support import decided, handle

from penstock._identity import TransactionalIdentity
from penstock.control.partition_log import KeyValue, TransactionalWrite, encode_batch
from penstock.errors import SinkLogLostError
from penstock.records._batch_cy import BatchWriter
from penstock.records.compression import GZIP, codec
from penstock.records.format import CONTROL_BIT, HEADER_SIZE, TRANSACTIONAL_BIT
from penstock.records.reader import read_batches
from penstock.sink import DriverIdentity, Execution, sink_key
from penstock.sink.identity import Jvm
from penstock.sink.log import records
from penstock.sink.log.records import Claim, Decision
from penstock.sink.log.view import MAX_STRAYS, LogContents, SinkView

KEY, OTHER = "0123456789abcdef", "fedcba9876543210"
OWNER = records.first_owner(DriverIdentity(Jvm("h", 1, "s"), 2, "t"), 7)
CLAIM = records.claim_record(KEY, Claim("orders", None))
RUN = sink_key("batch", "random")
ONE_OFF = records.claim_record(RUN, Claim("batch", "random", one_off=True))
OWNED = records.owner_record(KEY, OWNER)


class Log:
    """Batches for LogContents, written by several producers."""

    def __init__(self) -> None:
        self.contents = LogContents()

    def write(self, *written: KeyValue, pid: int = -1, epoch: int = 0) -> Log:
        within = None if pid < 0 else TransactionalWrite(TransactionalIdentity("x", pid, epoch, 5), 0)
        self._take(encode_batch(written, 1, within))
        return self

    def end(self, pid: int, *, commit: bool) -> Log:
        writer = BatchWriter(bytearray(200), 200)
        writer.append(1, struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 1), None)
        self._take(writer.seal(TRANSACTIONAL_BIT | CONTROL_BIT, pid, 0, 0))
        return self

    def _take(self, raw: memoryview) -> None:
        for batch in read_batches(raw):
            self.contents.on_batch(batch)

    @property
    def view(self) -> SinkView:
        return self.contents.view(KEY)


def decision(number: int, handles: int = 2, replaces: int | None = None) -> tuple[Decision, list[KeyValue]]:
    planned = records.decide(
        Execution(1, number), ("q", number), None, [handle(n) for n in range(handles)], decided({"p": 1})
    )
    before = None if replaces is None else Execution(1, replaces)
    return records.decision_records(KEY, planned, before)


def run_decision() -> tuple[Decision, list[KeyValue]]:
    planned = records.decide(Execution(1, 1), ("batch", 0), None, [])
    made, written = records.decision_records(RUN, planned, None)
    return made, [records.owner_record(RUN, OWNER), *written]


def test_an_empty_log_knows_nothing() -> None:
    assert Log().view == SinkView(KEY)


def test_plain_records_count_at_once() -> None:
    assert Log().write(CLAIM).view.claim == Claim("orders", None)


def test_a_record_counts_when_its_transaction_is_committed() -> None:
    log = Log().write(OWNED, pid=7)
    assert log.view == SinkView(KEY, deciding=True)
    log.end(8, commit=True)
    assert log.view.owner is None  # somebody else's marker
    log.end(7, commit=True)
    assert log.view == SinkView(KEY, owner=OWNER)


def test_a_record_whose_transaction_is_aborted_never_counts() -> None:
    log = Log().write(OWNED, pid=7).end(7, commit=False).end(7, commit=True)
    assert log.view == SinkView(KEY)


def test_a_record_that_arrived_after_its_transaction_was_aborted_is_not_part_of_the_next() -> None:
    _, late = decision(1)
    log = Log().write(*late, pid=7, epoch=3).end(7, commit=False)
    log.write(*late, pid=7, epoch=3)  # an old broker takes it
    log.write(OWNED, pid=7, epoch=4).end(7, commit=True)
    assert log.view == SinkView(KEY, owner=OWNER)


def test_an_aborted_record_does_not_hide_the_one_before() -> None:
    newer = OWNER.successor(DriverIdentity(Jvm("h", 9, "s"), 3, "u"), 7)
    log = Log().write(OWNED, pid=7).end(7, commit=True)
    log.write(records.owner_record(KEY, newer), pid=7).end(7, commit=False)
    assert log.view.owner == OWNER


def test_others_open_transactions_hide_nothing() -> None:
    other = records.owner_record(OTHER, OWNER)
    log = Log().write(other, pid=1).write(OWNED, pid=2).end(2, commit=True)
    assert log.view == SinkView(KEY, owner=OWNER)


def test_a_decision_has_its_handles_until_it_is_done() -> None:
    made, written = decision(1)
    log = Log().write(*written, pid=7).end(7, commit=True)
    assert log.view.undone is not None
    assert log.view.undone.handles == tuple(handle(n) for n in range(2))
    assert log.view.undone.last_decided == {"p": 1, "q": 1}
    log.write(*records.done_records(KEY, made))
    assert log.view.done
    assert log.view.undone is None
    assert log.view.decision is not None
    assert log.view.decision.batch_id == 1


def test_done_may_come_late_and_twice_without_touching_a_newer_decision() -> None:
    first, written = decision(1)
    log = Log().write(*written, pid=7).end(7, commit=True).write(*records.done_records(KEY, first))
    second, written = decision(2, replaces=1)
    log.write(*written, pid=7).end(7, commit=True)
    log.write(*records.done_records(KEY, first))  # by somebody who was slow
    assert log.view.undone is not None
    assert log.view.undone.execution == second.execution
    assert len(log.view.undone.handles) == 2


def test_a_later_decision_says_that_earlier_ones_are_done() -> None:
    first, written = decision(1)
    log = Log().write(*written, pid=7).end(7, commit=True).write(*records.done_records(KEY, first))
    second, written = decision(2, replaces=1)
    log.write(*written, pid=7).end(7, commit=True).write(*records.done_records(KEY, second))
    assert log.view.done
    assert log.view.undone is None


def test_a_decision_without_all_of_its_handles_is_a_lost_log() -> None:
    _, written = decision(1)
    log = Log().write(written[-1], pid=7).end(7, commit=True)
    with pytest.raises(SinkLogLostError, match="part 1 of 1"):
        _ = log.view


def test_a_sink_can_be_forgotten() -> None:
    made, written = run_decision()
    log = Log().write(ONE_OFF).write(*written, pid=7).end(7, commit=True)
    log.write(*records.done_records(RUN, made))
    assert log.contents.sink_keys() == [RUN]
    log.write(*records.forget_records(RUN, made.execution))
    assert log.contents.sink_keys() == []
    assert log.contents.strays == []


def test_a_run_can_be_finished_and_forgotten_twice() -> None:
    """By `penstock recover`, and by its driver, which had slept."""
    made, written = run_decision()
    log = Log().write(ONE_OFF).write(*written, pid=7).end(7, commit=True)
    for _ in range(2):
        log.write(*records.done_records(RUN, made)).write(*records.forget_records(RUN, made.execution))
    assert log.contents.sink_keys() == []
    assert log.contents.strays == []


def test_what_compaction_leaves_of_a_forgotten_run_accuses_nobody() -> None:
    log = Log().write(*records.forget_records(RUN, Execution(1, 1)))
    assert log.contents.sink_keys() == []
    assert log.contents.strays == []


def test_all_sinks_are_told_apart() -> None:
    log = Log().write(CLAIM, records.claim_record(OTHER, Claim("other", "r")))
    assert log.contents.sink_keys() == [KEY, OTHER]
    assert log.contents.view(OTHER).claim == Claim("other", "r")
    assert log.view.claim == Claim("orders", None)


@pytest.mark.parametrize("key", [b"", b"x", b"[]", b"{}", b'"text"', b'{"format":1}', b"\xff", KEY.encode()])
def test_foreign_records_are_passed_over(key: bytes) -> None:
    log = Log().write(KeyValue(key, b"value"))
    assert log.contents.sink_keys() == []


def test_records_of_a_newer_format_are_refused_for_the_sink_they_name() -> None:
    newer = KeyValue(b'{"format":2,"kind":"owner","sink":"0123456789abcdef"}', b"?")
    log = Log().write(newer, records.claim_record(OTHER, Claim("other", None)))
    assert log.contents.view(OTHER).claim == Claim("other", None)
    with pytest.raises(SinkLogLostError, match="newer release"):
        _ = log.view


def test_it_makes_no_difference_how_far_compaction_has_come() -> None:
    """Of a key only the last value may be left, and of an older decision any part may be missing."""
    first, written = decision(1)
    second, again = decision(2, replaces=1)
    whole = [(written, 7), (records.done_records(KEY, first), -1), (again, 7)]
    log = Log()
    for batch, pid in whole:
        log.write(*batch, pid=pid)
        if pid >= 0:
            log.end(pid, commit=True)
    for missing in range(len(written)):
        compacted = Log().write(*(record for at, record in enumerate(written) if at != missing), pid=7)
        compacted.end(7, commit=True).write(*again, pid=7).end(7, commit=True)
        assert compacted.view == log.view
    assert log.view.undone is not None
    assert log.view.undone.execution == second.execution


# ---- what others may have written


NESTED = b"[" * 100_000


@pytest.mark.parametrize("kind", ["owner", "decision", "chunk"])
def test_what_was_not_written_in_a_transaction_decides_nothing(kind: str) -> None:
    made, written = decision(1)
    log = Log().write(CLAIM).write(OWNED, *written, pid=7).end(7, commit=True)
    before = log.view
    newer = OWNER.successor(DriverIdentity(Jvm("mallory", 9, "s"), 3, "u"), 7)
    forged = {
        "owner": records.owner_record(KEY, newer),
        "decision": decision(2)[1][-1],
        "chunk": KeyValue(records.Key("chunk", KEY, made.execution, 0).encode(), b"nothing"),
    }[kind]
    log.write(forged)
    assert log.view == before
    assert [(stray.sink_key, kind in stray.reason) for stray in log.contents.strays] == [(KEY, True)]
    log.write(KeyValue(forged.key, None))
    assert log.view == before
    assert log.contents.stray_count == 2


def test_a_plain_tombstone_undoes_no_decision() -> None:
    made, written = decision(1)
    log = Log().write(CLAIM).write(OWNED, *written, pid=7).end(7, commit=True)
    before = log.view
    log.write(*records.forget_records(KEY, made.execution))
    assert log.view == before
    log.write(*records.done_records(KEY, made))
    assert log.view.done
    log.write(*records.forget_records(KEY, made.execution))
    assert log.view.done


def test_a_one_off_run_is_not_forgotten_before_it_is_done() -> None:
    made, written = run_decision()
    log = Log().write(ONE_OFF).write(*written, pid=7).end(7, commit=True)
    before = log.contents.view(RUN)
    assert before.undone is not None
    log.write(*records.forget_records(RUN, made.execution))
    assert log.contents.view(RUN) == before


@pytest.mark.parametrize("run_id", [None, "random"])
def test_a_plain_record_makes_no_query_a_run_that_may_be_forgotten(run_id: str | None) -> None:
    made, written = decision(1)
    log = Log().write(CLAIM).write(OWNED, *written, pid=7).end(7, commit=True)
    log.write(*records.done_records(KEY, made))
    log.write(records.claim_record(KEY, Claim("orders", run_id, one_off=True)))
    log.write(*records.forget_records(KEY, made.execution))
    assert log.view.decision is not None
    assert log.view.decision.last_decided == {"p": 1, "q": 1}


@pytest.mark.parametrize("done", [True, False])
def test_a_decision_that_was_deleted_is_not_taken_for_none(done: bool) -> None:
    """A plain tombstone does not count, but compaction has removed the head, and in time the tombstone."""
    made, written = decision(1)
    log = Log().write(CLAIM).write(OWNED, *([] if done else written[:-1]), pid=7).end(7, commit=True)
    if done:
        log.write(*records.done_records(KEY, made))
    with pytest.raises(SinkLogLostError, match="the decision itself was deleted"):
        _ = log.view
    assert log.contents.sink_keys() == [KEY]


def test_a_decision_whose_marker_is_on_its_way_is_not_taken_for_a_lost_one() -> None:
    """The coordinator answers before it writes the marker, so that `done` may be in the log before it."""
    made, written = decision(1)
    log = Log().write(CLAIM).write(OWNED, pid=7).end(7, commit=True).write(*written, pid=8)
    log.write(*records.done_records(KEY, made))
    assert (log.view.decision, log.view.deciding) == (None, True)
    log.end(8, commit=True)
    assert log.view.decision is not None
    assert log.view.decision.execution == made.execution
    assert log.view.done


def run_of_which_the_marker_is_late() -> tuple[Log, Decision]:
    own = replace(handle(0), transaction=replace(handle(0).transaction, transactional_id=f"ps.{RUN}.1.abc.0"))
    planned = records.decide(Execution(1, 1), ("batch", 0), None, [own])
    made, written = records.decision_records(RUN, planned, None)
    log = Log().write(ONE_OFF).write(records.owner_record(RUN, OWNER), pid=7).end(7, commit=True)
    return log.write(*written, pid=7), made


@pytest.mark.parametrize("late", ["done", "forgotten"])
def test_tombstones_win_over_a_decision_whose_marker_comes_after_them(late: str) -> None:
    log, made = run_of_which_the_marker_is_late()
    log.write(*records.done_records(RUN, made))
    if late == "done":
        log.end(7, commit=True)
        assert log.contents.view(RUN).done
    log.write(*records.forget_records(RUN, made.execution))
    assert log.contents.sink_keys() == []
    log.end(7, commit=True)
    assert log.contents.sink_keys() == []
    assert log.contents.strays == []


def test_tombstones_that_come_before_a_decision_is_done_delete_nothing_of_it() -> None:
    """Its marker is on its way, so that it does not count yet: whoever writes to the topic could take its handles."""
    log, made = run_of_which_the_marker_is_late()
    log.write(*records.chunk_tombstones(RUN, made))
    log.write(*records.forget_records(RUN, made.execution))
    log.end(7, commit=True)
    undone = log.contents.view(RUN).undone
    assert undone is not None
    assert undone.handles == made.handles


@pytest.mark.parametrize("kind", ["owner", "decision"])
def test_a_record_that_may_have_replaced_another_is_not_taken_for_nothing(kind: str) -> None:
    """After compaction only the forged record is left: the sink must not begin anew."""
    forged = OWNED if kind == "owner" else decision(1)[1][-1]
    log = Log().write(CLAIM)
    if kind == "decision":
        log.write(OWNED, pid=7).end(7, commit=True)
    log.write(forged)
    with pytest.raises(SinkLogLostError, match=f"is to be the {kind} record"):
        _ = log.view
    log.write(KeyValue(forged.key, None))  # an operator has found out that there was none
    assert log.view.decision is None


HEAD = (
    b'{"format":1,"execution":[1,1],"query":"q","batch":1,"topic":"t","rows":1,"chunks":1,"last_decided":{},'
)
WRONG = {
    "claims": (
        "sink",
        [b"", b"x", b"[]", b'{"format":1}', b'{"format":1,"sink_id":7,"run_id":null}', NESTED],
    ),
    "owners": (
        "owner",
        [
            b'{"format":1,"generation":"x"}',
            b'{"format":1,"generation":1,"jvm":[1],"planner_pid":1,"token":"","previous":[]}',
            b'{"format":1,"generation":1e400,"jvm":["h",1,"s"],"planner_pid":1,"token":"t","previous":[]}',
            b'{"format":1,"generation":true,"jvm":["h",1,"s"],"planner_pid":1,"token":"t","previous":[]}',
            b'{"format":1,"generation":1,"jvm":["h",1,"s"],"planner_pid":1,"token":"t","previous":{}}',
            b'{"format":1,"generation":' + b"9" * 5000 + b"}",
        ],
    ),
    "decisions": (
        "decision",
        [
            b'{"format":1}',
            b'{"format":1,"execution":[1],"query":"q","batch":1,"topic":null,"rows":1,"chunks":1,"last_decided":{}}',
            b'{"format":1,"execution":[1,1],"query":1,"batch":1,"topic":null,"rows":1,"chunks":1,"last_decided":{}}',
            b'{"format":1,"execution":[1,1],"query":"q","batch":1,"topic":[],"rows":1,"chunks":1,"last_decided":{}}',
            b'{"format":1,"execution":[1,1],"query":"q","batch":1,"topic":"t","rows":1,"chunks":1,"last_decided":[]}',
            b'{"format":1,"execution":[1,1],"query":"q","batch":1,"topic":"t","rows":-1,"chunks":1,"last_decided":{}}',
            b'{"format":1,"execution":[1,1],"query":"q","batch":1,"topic":"t","rows":1,"chunks":NaN,"last_decided":{}}',
            HEAD + b'"topics":{"q":7}}',
            HEAD + b'"topics":["q"]}',
        ],
    ),
}


@pytest.mark.parametrize(
    ("kind", "value"),
    [(kind, value) for kind, values in WRONG.values() for value in values],
    ids=lambda _: "",
)
def test_a_value_that_cannot_be_read_concerns_its_sink_alone(kind: str, value: bytes) -> None:
    log = Log().write(KeyValue(records.Key(kind, KEY).encode(), value), pid=7).end(7, commit=True)
    log.write(records.claim_record(OTHER, Claim("other", None)))
    assert log.contents.view(OTHER).claim == Claim("other", None)
    with pytest.raises(SinkLogLostError, match=r"cannot be read.*offset 0"):
        _ = log.view


HANDLE = handle(0).to_dict()


@pytest.mark.parametrize(
    "wrong",
    [
        7,
        {},
        HANDLE | {"transaction": None},
        HANDLE | {"transaction": HANDLE["transaction"] | {"producer_epoch": "0"}},
        HANDLE | {"rows": "1"},
        HANDLE | {"rows": 1.5},
        HANDLE | {"counts": [["t", 0]]},
        HANDLE | {"counts": 1},
        HANDLE | {"task": None},
    ],
    ids=lambda _: "",
)
def test_handles_that_cannot_be_read_concern_their_sink_alone(wrong: object) -> None:
    made, written = decision(1)
    chunk = gzip.compress(json.dumps({"format": 1, "handles": [wrong]}).encode())
    key = records.Key("chunk", KEY, made.execution, 0).encode()
    log = Log().write(KeyValue(key, chunk), written[-1], pid=7).end(7, commit=True)
    with pytest.raises(SinkLogLostError, match="cannot be read"):
        _ = log.view


@pytest.mark.parametrize(
    "name", ["payments-service-1", f"ps.{OTHER}.1.abc.0", f"ps.{KEY}.c", f"ps.{KEY}.1.abc.0\n"]
)
def test_a_handle_belongs_to_the_sink_that_it_is_in(name: str) -> None:
    stolen = replace(handle(0), transaction=replace(handle(0).transaction, transactional_id=name))
    _, written = records.decision_records(
        KEY, records.decide(Execution(1, 1), ("q", 1), None, [stolen]), None
    )
    log = Log().write(*written, pid=7).end(7, commit=True)
    with pytest.raises(SinkLogLostError, match="not one of this sink's own"):
        _ = log.view


@pytest.mark.parametrize("transactional", [True, False])
def test_a_batch_that_cannot_be_unpacked_is_noted_and_passed_over(transactional: bool) -> None:
    """Brokers look no further than the keys of a compressed batch, and 40 kB may stand for 40 MB."""
    writer = BatchWriter(bytearray(41_000_000), 41_000_000)
    writer.append(1, b"k", bytes(40_000_000), None)
    packed = bytearray(HEADER_SIZE) + codec("gzip").compress(writer.raw_records())
    attributes = GZIP | TRANSACTIONAL_BIT if transactional else GZIP
    bomb = bytes(writer.seal(attributes, 9, 0, 0, packed))
    assert len(bomb) < 100_000
    log = Log().write(CLAIM)
    log._take(memoryview(bomb))
    assert [(stray.sink_key, "cannot be read" in stray.reason) for stray in log.contents.strays] == [
        (None, True)
    ]
    assert log.view.claim == Claim("orders", None)


def test_only_so_many_strays_are_remembered() -> None:
    log = Log()
    for _ in range(MAX_STRAYS // 50 + 2):
        log.write(*(KeyValue(b"x", b"y") for _ in range(50)))
    assert (len(log.contents.strays), log.contents.stray_count) == (MAX_STRAYS, MAX_STRAYS + 100)
