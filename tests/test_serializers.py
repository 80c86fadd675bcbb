# SPDX-License-Identifier: Apache-2.0
"""The bytes of the built-in serializers, and what happens when a serializer misbehaves."""

from __future__ import annotations

import json
import pickle
import struct
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import serializers
from penstock.errors import IllegalStateError, SerializationError
from penstock.serializers import MutableHeaders, as_serializer, serialize_part
from penstock.types import Header

A_UUID = uuid.UUID("12345678-1234-5678-1234-567812345678")


def run(serializer, data, part="value", headers=None):
    return serialize_part(serializer, part, "orders", headers or MutableHeaders(), data)


@pytest.mark.parametrize(
    ("serializer", "data", "expected"),
    [
        (serializers.BytesSerializer(), b"ab", b"ab"),
        (serializers.BytesSerializer(), bytearray(b"ab"), b"ab"),
        (serializers.BytesSerializer(), memoryview(b"abcd")[::2], b"ac"),
        (serializers.StringSerializer(), "h\u00e9", b"h\xc3\xa9"),
        (serializers.StringSerializer("utf-16-be"), "h", b"\x00h"),
        (serializers.Int16Serializer(), -2, b"\xff\xfe"),
        (serializers.Int32Serializer(), 258, b"\x00\x00\x01\x02"),
        (serializers.Int64Serializer(), -1, b"\xff" * 8),
        (serializers.Float32Serializer(), 1.5, b"\x3f\xc0\x00\x00"),
        (serializers.Float64Serializer(), 1, b"\x3f\xf0" + bytes(6)),
        (serializers.UUIDSerializer(), A_UUID, b"12345678-1234-5678-1234-567812345678"),
        (serializers.JsonSerializer(), {"b": [1, "h\u00e9"], "a": None}, b'{"b":[1,"h\xc3\xa9"],"a":null}'),
        (serializers.JsonSerializer(sort_keys=True), {"b": 1, "a": 2}, b'{"a":2,"b":1}'),
        (serializers.JsonSerializer(default=str), [A_UUID], b'["12345678-1234-5678-1234-567812345678"]'),
        (serializers.JsonSerializer(dumps=json.dumps), {"a": [1]}, b'{"a": [1]}'),
        (serializers.JsonSerializer(dumps=lambda data: b"%d" % data), 7, b"7"),
        (as_serializer(str.encode, "value_serializer"), "x", b"x"),
    ],
)
def test_bytes_written(serializer, data, expected):
    written = run(serializer, data)
    assert written == expected
    assert type(written) is bytes


@pytest.mark.parametrize(
    "serializer",
    [
        serializers.BytesSerializer(),
        serializers.StringSerializer(),
        serializers.Int16Serializer(),
        serializers.Int32Serializer(),
        serializers.Int64Serializer(),
        serializers.Float32Serializer(),
        serializers.Float64Serializer(),
        serializers.UUIDSerializer(),
        serializers.VoidSerializer(),
        serializers.JsonSerializer(),
        serializers.JsonSerializer(dumps=lambda data: data.no_such_attribute),
        serializers.ListSerializer(serializers.Int32Serializer()),
        as_serializer(lambda data: data.no_such_attribute, "value_serializer"),
    ],
    ids=repr,
)
def test_none_stays_null(serializer):
    assert run(serializer, None) is None


@pytest.mark.parametrize(
    ("serializer", "data"),
    [
        (serializers.BytesSerializer(), 5),
        (serializers.StringSerializer(), b"x"),
        (serializers.StringSerializer("ascii"), "h\u00e9"),
        (serializers.Int16Serializer(), 40_000),
        (serializers.Int32Serializer(), 2**31),
        (serializers.Int64Serializer(), -(2**63) - 1),
        (serializers.Int32Serializer(), True),
        (serializers.Int32Serializer(), 1.0),
        (serializers.Float32Serializer(), 1e39),
        (serializers.Float64Serializer(), "1"),
        (serializers.UUIDSerializer(), str(A_UUID)),
        (serializers.VoidSerializer(), b""),
        (serializers.JsonSerializer(), float("nan")),
        (serializers.JsonSerializer(), {1, 2}),
        (serializers.ListSerializer(serializers.StringSerializer()), "abc"),
        (serializers.ListSerializer(serializers.StringSerializer()), ["a", 1]),
        (serializers.ListSerializer(lambda item: None), ["a"]),
    ],
)
def test_unfit_data_is_refused_with_topic_part_type_and_cause(serializer, data):
    with pytest.raises(SerializationError) as caught:
        run(serializer, data, part="key")
    message = str(caught.value)
    assert "'orders'" in message
    assert "key" in message
    assert type(data).__name__ in message
    assert caught.value.__cause__ is not None


def test_options_of_json_go_to_the_function_that_writes_it():
    for options in ({"default": str}, {"sort_keys": True}):
        with pytest.raises(TypeError, match="dumps"):
            serializers.JsonSerializer(dumps=json.dumps, **options)


@pytest.mark.parametrize(
    "serializer",
    [
        serializers.StringSerializer("latin-1"),
        serializers.Int64Serializer(),
        serializers.JsonSerializer(sort_keys=True),
    ],
    ids=repr,
)
def test_serializers_can_be_pickled(serializer):
    again = pickle.loads(pickle.dumps(serializer))
    assert (type(again), repr(again)) == (type(serializer), repr(serializer))
    assert type(serializer).__module__ == "penstock.serializers"


def test_text_of_a_class_derived_from_str_is_encoded():
    class Name(str):
        __slots__ = ()

    for encoding in ("utf-8", "utf-16-be"):
        assert run(serializers.StringSerializer(encoding), Name("x")) == "x".encode(encoding)


def test_a_class_derived_from_a_serializer_of_ours_is_asked():
    class Loud(serializers.StringSerializer):
        def serialize(self, topic, headers, data):
            headers.add("loud", None)
            return super().serialize(topic, headers, data.upper())

    headers = MutableHeaders([("a", b"1")])
    assert run(Loud(), "x", headers=headers) == b"X"
    assert headers.freeze() == (Header("a", b"1"), Header("loud", None))


def test_text_for_the_default_serializer_names_the_one_to_use():
    with pytest.raises(SerializationError, match=r"serializers\.StringSerializer"):
        run(serializers.BytesSerializer(), "text")


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ({"a": 1}, "JsonSerializer"),
        ([1], "JsonSerializer"),
        (5, "Int64Serializer"),
        (1.5, "Float64Serializer"),
        (A_UUID, "UUIDSerializer"),
    ],
    ids=repr,
)
def test_what_the_default_serializer_does_not_take_is_answered_with_the_option(data, name):
    with pytest.raises(SerializationError) as caught:
        run(serializers.BytesSerializer(), data)
    assert str(caught.value).endswith(
        f"or make the producer with value_serializer=penstock.serializers.{name}()"
    )
    getattr(serializers, name)().serialize("t", serializers.MutableHeaders(), data)  # it does take it


def test_an_unknown_encoding_is_found_at_once():
    with pytest.raises(LookupError):
        serializers.StringSerializer("no-such-encoding")


def test_list_of_fixed_size_entries_has_the_null_indexes_first():
    data = [1, None, 3, None]
    expected = (
        b"\x00"
        + struct.pack(">i", 2)
        + struct.pack(">ii", 1, 3)
        + struct.pack(">i", 4)
        + struct.pack(">ii", 1, 3)
    )
    assert run(serializers.ListSerializer(serializers.Int32Serializer()), data) == expected


def test_list_of_variable_size_entries_has_a_length_before_each():
    expected = (
        b"\x01"
        + struct.pack(">i", 3)
        + struct.pack(">i", 2)
        + b"ab"
        + struct.pack(">i", -1)
        + struct.pack(">i", 0)
    )
    assert run(serializers.ListSerializer(serializers.StringSerializer()), ["ab", None, ""]) == expected


def test_list_of_uuids_is_fixed_size_and_lists_nest():
    inner = serializers.ListSerializer(serializers.UUIDSerializer())
    one = run(inner, [A_UUID])
    assert one == bytes(5) + struct.pack(">i", 1) + str(A_UUID).encode()
    nested = run(serializers.ListSerializer(inner), [[A_UUID]])
    assert nested == b"\x01" + struct.pack(">ii", 1, len(one)) + one


def test_empty_list_is_not_null():
    assert run(serializers.ListSerializer(serializers.Int64Serializer()), []) == bytes(9)


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)))
def test_a_reader_of_the_fixed_layout_gets_the_list_back(data):
    written = run(serializers.ListSerializer(serializers.Int64Serializer()), data)
    (null_count,) = struct.unpack_from(">i", written, 1)
    nulls = struct.unpack_from(f">{null_count}i", written, 5)
    (count,) = struct.unpack_from(">i", written, 5 + 4 * null_count)
    numbers = iter(struct.unpack_from(f">{count - null_count}q", written, 9 + 4 * null_count))
    assert [None if index in nulls else next(numbers) for index in range(count)] == data
    assert next(numbers, None) is None


def test_closing_a_list_serializer_closes_the_inner_one():
    class Inner(serializers.Serializer):
        closed = 0

        def close(self):
            self.closed += 1

    inner = Inner()
    serializers.ListSerializer(inner).close()
    assert inner.closed == 1


def test_a_serializer_may_add_headers_but_not_after_the_record_is_complete():
    class Tagging(serializers.Serializer):
        def serialize(self, topic, headers, data):
            self.kept = headers
            headers.add("schema", b"7")
            headers.append(("topic", topic.encode()))
            return data

    serializer = Tagging()
    headers = MutableHeaders([("trace", b"1")])
    run(serializer, b"x", headers=headers)
    frozen = headers.freeze()
    assert frozen == (Header("trace", b"1"), Header("schema", b"7"), Header("topic", b"orders"))
    for change in (
        lambda kept: kept.add("late", b""),
        lambda kept: kept.clear(),
        lambda kept: kept.__setitem__(0, ("a", b"")),
        lambda kept: kept.__delitem__(0),
        lambda kept: kept.extend([("a", b"")]),
    ):
        with pytest.raises(IllegalStateError):
            change(serializer.kept)
    assert tuple(headers) == frozen


def test_headers_can_be_replaced_and_removed_while_open():
    headers = MutableHeaders({"a": b"1", "b": b"2", "c": None})
    headers[0] = ("a", b"9")
    headers[1:2] = [("x", b""), ("y", b"")]
    del headers[-1]
    assert headers[:2] == [Header("a", b"9"), Header("x", b"")]
    assert headers.freeze() == (Header("a", b"9"), Header("x", b""), Header("y", b""))


def test_a_malformed_header_fails_the_serializer_that_adds_it():
    class Bad(serializers.Serializer):
        def serialize(self, topic, headers, data):
            headers.append(("schema", "text"))
            return data

    with pytest.raises(SerializationError, match="schema"):
        run(Bad(), b"x")


def test_any_exception_is_wrapped_and_kept_as_the_cause():
    problem = KeyError()

    def fail(data):
        raise problem

    with pytest.raises(SerializationError, match=r"value \(type list\).*'orders'.*KeyError") as caught:
        run(as_serializer(fail, "value_serializer"), [1])
    assert caught.value.__cause__ is problem


def test_an_interrupt_is_not_taken_for_a_serialization_error():
    def interrupted(data):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(as_serializer(interrupted, "value_serializer"), 1)


def test_a_result_that_is_not_bytes_is_refused():
    with pytest.raises(SerializationError, match=r"value \(type int\).*'orders'.*not str"):
        run(as_serializer(repr, "value_serializer"), 5)


@pytest.mark.parametrize("answer", [bytearray(b"ab"), memoryview(b"ab")])
def test_other_buffers_become_bytes(answer):
    assert run(as_serializer(lambda data: answer, "value_serializer"), 5) == b"ab"


def test_an_object_with_serialize_needs_no_base_class():
    class Own:
        def serialize(self, topic, headers, data):
            return f"{topic}:{data}".encode()

    assert run(as_serializer(Own(), "value_serializer"), 5) == b"orders:5"


@pytest.mark.parametrize(
    ("unfit", "complaint"),
    [
        (5, "int is neither"),
        ("text", "str is neither"),
        (lambda: b"", "one argument"),
        (lambda topic, data: b"", "one argument"),
        (serializers.StringSerializer, "make an instance"),
    ],
)
def test_what_is_no_serializer_is_refused_by_name(unfit, complaint):
    with pytest.raises(TypeError, match=f"key_serializer.*{complaint}"):
        as_serializer(unfit, "key_serializer")


def test_a_serializer_of_another_client_is_answered_with_the_method_that_is_missing():
    class AvroSerializer:  # as confluent-kafka's
        def __call__(self, obj, context=None, *, strict):
            return b""

        def __repr__(self):
            return "<avro>"

    with pytest.raises(TypeError) as caught:
        as_serializer(AvroSerializer(), "value.serializer")
    assert str(caught.value) == (
        "value.serializer must be a function of one argument, or an object with serialize(topic, headers, data): "
        "<avro> cannot be called with one"
    )


def test_everything_public_is_there():
    assert all(hasattr(serializers, name) for name in serializers.__all__)
