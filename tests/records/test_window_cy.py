# SPDX-License-Identifier: Apache-2.0
"""Windows of rows in every form: the bytes of BatchWriter.append, and where rows go."""

from __future__ import annotations

from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from fix_impl import forms, load
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._primitives_cy import partition_for_key

NAMES = ("_batch_cy", "_columns_cy", "_headers_cy", "_rows_cy", "_window_cy")
ALL_FORMS = forms("penstock.records._window_cy")
PLENTY = 1 << 40
STICKY = -1


def modules(form: str) -> Any:
    return SimpleNamespace(**{name: load(f"penstock.records.{name}", form) for name in NAMES})


@pytest.fixture(params=ALL_FORMS)
def form(request: pytest.FixtureRequest) -> Any:
    return modules(request.param)


def test_the_layout_that_is_read_without_a_call_is_the_one_that_has_that_number() -> None:
    columns = load("penstock.records._columns_cy", "uncompiled")
    signatures = Path(columns.__file__).with_name("_columns_cy.pxd").read_text(encoding="utf-8")
    assert f"#define PENSTOCK_OFFSETS_32 {columns.OFFSETS_32} " in signatures


Row = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int | None]

row_lists = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=80),
        st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=70)), max_size=3).map(tuple),
        st.none() | st.integers(0, 2**40),
    ),
    min_size=1,
    max_size=150,
)


def make_rows(form: Any, some: list[Row], partitions: list[int | None] | None = None) -> Any:
    """Rows of values, keys, headers and timestamps."""
    column = lambda items: form._columns_cy.BytesColumn(form._columns_cy.POINTERS, tuple(items))  # noqa: E731
    sections = [form._batch_cy.encode_headers(headers) if headers else None for *_, headers, _ in some]
    columns = {
        "value": column(row[0] for row in some),
        "key": column(row[1] for row in some),
        "headers": form._headers_cy.HeadersColumn(
            form._columns_cy.POINTERS, None, None, None, column(sections)
        ),
        "timestamp": numbers(form, [row[3] for row in some]),
    }
    if partitions is not None:
        columns["partition"] = numbers(form, partitions)
    return form._rows_cy.Rows(len(some), columns)


def numbers(form: Any, some: list[int | None]) -> Any:
    memory = array("q", [form._columns_cy.NULL if number is None else number for number in some])
    layout = SimpleNamespace(offset=0, length=len(some), validity=0, buffers=(memory.buffer_info()[0],))
    return form._columns_cy.IntColumn(layout, 8, 1, memory)


def open_window(form: Any, rows: Any, first: int = 0, last: int | None = None) -> Any:
    window = form._window_cy.Window(200)
    window.open(rows, first, rows.length if last is None else last)
    window.now_ms = 77
    return window


def test_forms_are_what_they_are_called():
    for name in NAMES:
        module = f"penstock.records.{name}"
        found = [load(module, form).is_compiled() for form in forms(module)]
        assert found == [form == "compiled" for form in forms(module)]


# ------------------------------------------------------------------------------------------------ appending


@pytest.mark.parametrize("form_name", ALL_FORMS)
@settings(max_examples=40, deadline=None)
@given(some=row_lists, limit=st.integers(100, 3000), ratio=st.sampled_from([1.0, 0.5, 0.05]))
def test_appended_rows_are_the_bytes_of_append(form_name, some, limit, ratio):
    form = modules(form_name)
    window = open_window(form, make_rows(form, some))
    one_by_one = form._batch_cy.BatchWriter(bytearray(1500), limit, ratio)
    at_once = form._batch_cy.BatchWriter(bytearray(1500), limit, ratio)
    taken, answer = 0, 0
    for value, key, headers, timestamp in some:
        answer = one_by_one.append(77 if timestamp is None else timestamp, key, value, headers)
        if answer < 0:
            break
        taken += 1
    assert window.append_to(at_once, 0, len(some), PLENTY) == taken
    assert window.refusal == min(answer, 0)
    for field in ("count", "raw_size", "base_timestamp", "max_timestamp", "max_record_size"):
        assert getattr(at_once, field) == getattr(one_by_one, field)
    assert bytes(at_once.raw_records()) == bytes(one_by_one.raw_records())
    assert window.payload == sum(len(row[0] or b"") + len(row[1] or b"") for row in some[:taken])


def test_a_large_batch_is_filled_just_so(form):
    some = [(b"%d" % number * 20, b"%d" % number, (), number) for number in range(1000)]
    window = form._window_cy.Window(1000)
    window.open(make_rows(form, some), 0, 1000)
    writers = [form._batch_cy.BatchWriter(bytearray(60_000), 60_000) for _ in range(2)]
    taken = sum(writers[0].append(timestamp, key, value, None) > 0 for value, key, _, timestamp in some)
    assert window.append_to(writers[1], 0, 1000, PLENTY) == taken < 1000
    assert bytes(writers[0].raw_records()) == bytes(writers[1].raw_records())


def test_a_full_segment_is_told_apart_from_a_full_batch(form):
    window = open_window(form, make_rows(form, [(b"v" * 93, None, (), 1)] * 20))
    refusals = {}
    for limit in (700, 10_000):
        writer = form._batch_cy.BatchWriter(bytearray(1000), limit, 0.9)
        window.append_to(writer, 0, 20, PLENTY)
        refusals[limit] = window.refusal
        assert writer.append(1, None, b"v" * 93, None) == window.refusal
    assert refusals == {700: form._batch_cy.NO_ROOM, 10_000: form._batch_cy.NEEDS_SEGMENT}


def test_appending_stops_when_the_budget_is_used_up(form):
    window = open_window(form, make_rows(form, [(b"v" * 93, None, (), 1)] * 20))
    writer = form._batch_cy.BatchWriter(bytearray(10_000), 10_000)
    assert window.append_to(writer, 0, 20, 250) == 3  # about a hundred bytes each
    assert window.refusal == 0
    assert window.append_to(writer, 3, 20, PLENTY) == 17


def test_a_sealed_batch_is_refused(form):
    window = open_window(form, make_rows(form, [(b"v", None, (), 1)] * 2))
    writer = form._batch_cy.BatchWriter(bytearray(1000), 1000)
    window.append_to(writer, 0, 1, PLENTY)
    writer.seal(0)
    with pytest.raises(ValueError, match="sealed"):
        window.append_to(writer, 1, 2, PLENTY)


# ------------------------------------------------------------------------------------------------ placing


@pytest.mark.parametrize("form_name", ALL_FORMS)
@settings(max_examples=40, deadline=None)
@given(some=row_lists, data=st.data())
def test_rows_are_placed_by_number_key_or_not_at_all_and_sorted(form_name, some, data):
    form = modules(form_name)
    partitions = data.draw(st.lists(st.none() | st.integers(0, 5), min_size=len(some), max_size=len(some)))
    window = open_window(form, make_rows(form, some, partitions))
    window.place([4], 250, True)
    bad, places = {}, {}
    for number, (_, key, _, _) in enumerate(some):
        size = window.rows.size_bound(number)
        if size > 250:
            bad[number] = form._rows_cy.BAD_SIZE
        elif partitions[number] is not None and partitions[number] > 3:
            bad[number] = form._rows_cy.BAD_PARTITION
        elif partitions[number] is not None:
            places[number] = partitions[number]
        else:
            places[number] = STICKY if key is None else partition_for_key(key, 4)
    assert dict(window.bad_rows()) == bad
    assert (window.bad, window.count) == (len(bad), len(places))
    assert window.sticky == list(places.values()).count(STICKY)
    if window.sticky < window.count:
        window.settle_sticky([lambda: 2], 100)
        places = {number: 2 if place == STICKY else place for number, place in places.items()}
    groups = window.sort()
    assert [(slot, window.row_at(at)) for slot, first, last in groups for at in range(first, last)] == sorted(
        (place, number) for number, place in places.items()
    )


def test_keys_are_not_hashed_where_they_do_not_choose(form):
    window = open_window(form, make_rows(form, [(b"v", b"k", (), 1)] * 3))
    window.place([4], 1000, False)
    assert window.sort() == [(STICKY, 0, 3)]
    assert not window.ordered


def test_rows_without_key_move_on_after_their_share(form):
    window = open_window(form, make_rows(form, [(b"v" * 100, None, (), 1)] * 9 + [(b"v", b"k", (), 1)]))
    window.place([3], 1000, True)
    chosen = iter([2, 0, 1])
    window.settle_sticky([lambda: next(chosen)], 300)
    found = {window.row_at(at): slot for slot, first, last in window.sort() for at in range(first, last)}
    assert [found[number] for number in range(9)] == [2, 2, 2, 0, 0, 0, 1, 1, 1]


def test_topics_have_slots_of_their_own(form):
    names = [b"x", b"y", None, b"y", b"x"]
    rows = make_rows(form, [(b"v", None, (), 1)] * 5, [0, 1, 0, 0, 1])
    columns = {
        "topic": form._columns_cy.BytesColumn(form._columns_cy.POINTERS, tuple(names)),
        "partition": rows.partition,
    }
    window = open_window(form, form._rows_cy.Rows(5, columns))
    known = {b"z": 0}
    window.read_topics(known)
    assert known == {b"z": 0, b"x": 1, b"y": 2}
    window.place([3, 2, 2], 1000, True)
    assert window.bad_rows() == [(2, form._window_cy.NO_TOPIC)]
    assert [(slot, window.row_at(first)) for slot, first, _ in window.sort()] == [
        (3, 0),
        (4, 4),
        (5, 3),
        (6, 1),
    ]
    window.place([3, 2, 0], 1000, True)  # the second of them is a topic that cannot be
    assert [row for row, _ in window.bad_rows()] == [1, 2, 3]


@pytest.mark.parametrize("count", [1, 5, 1000])
def test_rows_of_many_topics_find_theirs(form, count):
    names = [b"topic %d" % (number * 7 % count) for number in range(3000)] + [None, b"", b"topic 0"]
    columns = {"topic": form._columns_cy.BytesColumn(form._columns_cy.POINTERS, tuple(names))}
    window = form._window_cy.Window(4000)
    known: dict[bytes, int] = {}
    for first, last in ((0, 500), (500, len(names))):
        window.open(form._rows_cy.Rows(len(names), columns), first, last)
        window.read_topics(known)
        assert list(known.values()) == list(range(len(known)))
        window.place([1] * len(known), 1000, True)
        window.settle_sticky([lambda: 0] * len(known), 1 << 40)
        found = {window.row_at(at): slot for slot, start, end in window.sort() for at in range(start, end)}
        assert found == {row: known[names[row]] for row in range(first, last) if names[row] is not None}


@pytest.mark.parametrize("form_name", [name for name in ALL_FORMS if name != "compiled"])
def test_a_topic_is_made_an_object_once_not_for_each_row(form_name):
    form = modules(form_name)
    column = form._columns_cy.BytesColumn(form._columns_cy.POINTERS, (b"x", b"y", b"z") * 60)
    window = open_window(form, form._rows_cy.Rows(180, {"topic": column}))
    with mock.patch.object(form._columns_cy.BytesColumn, "get", autospec=True, return_value=b"") as get:
        get.side_effect = lambda self, row: (b"x", b"y", b"z")[row % 3]
        window.read_topics({})
    assert get.call_count == 3


def test_spans_tell_which_rows_were_taken(form):
    rows = make_rows(form, [(b"v", None, (), 1)] * 6, [1, 0, 1, 0, 1, 0])
    window = open_window(form, rows, 1, 6)
    window.place([2], 1000, True)
    assert window.sort() == [(0, 0, 3), (1, 3, 5)]
    start, count, steps = window.span(1, 3)
    assert (start, count) == (1, 3)
    assert list(memoryview(steps).cast("i")) == [2, 4, 1]
    window.open(make_rows(form, [(b"v", None, (), 1)] * 6), 2, 6)
    window.place([2], 1000, True)
    window.sort()
    assert window.span(1, 3) == (3, 3, None)


@pytest.mark.parametrize(("first", "last"), [(-1, 2), (2, 1), (0, 4), (0, 300)])
def test_a_window_looks_at_rows_that_are_there(form, first, last):
    window = form._window_cy.Window(200)
    with pytest.raises(ValueError, match="do not fit the window"):
        window.open(make_rows(form, [(b"v", None, (), 1)] * 3), first, last)
