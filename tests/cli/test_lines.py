# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io

import pytest

from penstock.cli.lines import BadLine, JsonLines, LineRecord, TextLines, as_bytes, read_lines, unescape


def test_lines_lose_their_ends_and_nothing_else() -> None:
    stream = io.BytesIO(b"one\ntwo\r\n\n  three \r\xff\nlast")
    assert list(read_lines(stream)) == [b"one", b"two", b"", b"  three \r\xff", b"last"]


def test_line_above_the_limit_is_passed_over_whole() -> None:
    stream = io.BytesIO(b"12345\n123456\n" + b"x" * 40 + b"\nafter\n" + b"y" * 9)
    assert list(read_lines(stream, limit=5)) == [b"12345", None, None, b"after", None]


@pytest.mark.parametrize(
    ("format_", "line", "expected"),
    [
        (TextLines(), b"a\tb", LineRecord(b"a\tb")),
        (TextLines(), b"", LineRecord(b"")),
        (TextLines(key_separator=b"\t"), b"k\tv\tw", LineRecord(b"v\tw", b"k")),
        (TextLines(key_separator=b"::"), b"k::", LineRecord(b"", b"k")),
        (TextLines(key_separator=b":", null_marker=b"NULL"), b"NULL:NULL", LineRecord(None, None)),
        (TextLines(key_separator=b":", null_marker=b""), b":v", LineRecord(b"v", None)),
        (TextLines(null_marker=b"NULL"), b"NULLS", LineRecord(b"NULLS")),
        (
            TextLines(key_separator=b"\t", headers_separator=b"\t"),
            b"a:1,b:x:y\tk\tv",
            LineRecord(b"v", b"k", (("a", b"1"), ("b", b"x:y"))),
        ),
        (TextLines(headers_separator=b"|"), b"|v", LineRecord(b"v")),
        (
            TextLines(headers_separator=b"|", null_marker=b"-"),
            b"a:-|v",
            LineRecord(b"v", None, (("a", None),)),
        ),
    ],
)
def test_text_line(format_: TextLines, line: bytes, expected: LineRecord) -> None:
    assert format_.parse(line) == expected


@pytest.mark.parametrize(
    ("format_", "line", "reason"),
    [
        (TextLines(key_separator=b"\t"), b"no tab", r"no key separator '\\t' in 'no tab'"),
        (TextLines(headers_separator=b"|"), b"v", "no headers separator"),
        (TextLines(headers_separator=b"|"), b"name|v", "'name' is not name:value"),
        (TextLines(headers_separator=b"|"), b"\xff:1|v", "not UTF-8"),
    ],
)
def test_malformed_text_line(format_: TextLines, line: bytes, reason: str) -> None:
    with pytest.raises(BadLine, match=reason):
        format_.parse(line)


def test_long_line_is_shortened_in_the_reason() -> None:
    with pytest.raises(BadLine) as caught:
        TextLines(key_separator=b"\t").parse(b"x" * 10_000)
    assert len(str(caught.value)) < 200


def test_json_line_is_the_value_byte_for_byte() -> None:
    line = b'{ "id" : 7,  "name": "\\u00e9" }'
    assert JsonLines(key_field="id").parse(line) == LineRecord(line, b"7")


def test_json_fields() -> None:
    format_ = JsonLines("k", "v", "h", "p", "t")
    line = b'{"k": "key", "v": {"b": [1, "\xc3\xa9"]}, "h": {"x": "1", "y": null, "z": 2}, "p": 3, "t": 1700}'
    headers = (("x", b"1"), ("y", None), ("z", b"2"))
    assert format_.parse(line) == LineRecord('{"b":[1,"\u00e9"]}'.encode(), b"key", headers, 3, 1700)


def test_json_nulls_and_absent_extras() -> None:
    format_ = JsonLines("k", "v", "h", "p", "t")
    assert format_.parse(b'{"k": null, "v": null, "p": null}') == LineRecord(None, None)


@pytest.mark.parametrize("line", [b"", b"  \t"])
def test_blank_json_line_is_no_record(line: bytes) -> None:
    assert JsonLines().parse(line) is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[1]", "object is needed, not array"),
        (b"7", "object is needed, not number"),
        (b'{"other": 1}', "no field 'k'; there are: 'other'"),
        (b'{"k": 1, "p": -1}', "whole number"),
        (b'{"k": 1, "p": true}', "boolean"),
        (b'{"k": 1, "p": 1.5}', "whole number"),
        (b'{"k": 1, "h": [1]}', "headers must be a JSON object, not array"),
        (b'{"k": "\\ud800"}', "surrogate"),
    ],
)
def test_malformed_json_line(line: bytes, reason: str) -> None:
    with pytest.raises(BadLine, match=reason):
        JsonLines(key_field="k", headers_field="h", partition_field="p").parse(line)


def test_values_that_are_no_text_become_compact_json() -> None:
    assert as_bytes({"a": [1, 2.5, None, True]}) == b'{"a":[1,2.5,null,true]}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\t", b"\t"),
        (r"\0", b"\0"),
        (r"\x1f|", b"\x1f|"),
        (r"\\t", rb"\t"),
        ("=", b"="),
        (r"\q", rb"\q"),
        ("\u00e9", b"\xc3\xa9"),
    ],
)
def test_separators_may_be_written_out(text: str, expected: bytes) -> None:
    assert unescape(text) == expected
