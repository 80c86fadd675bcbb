# SPDX-License-Identifier: Apache-2.0
"""Properties files are read as Java reads them."""

from __future__ import annotations

import time

import pytest

from penstock.config.properties import parse_properties, read_properties
from penstock.errors import ConfigError


def pairs(text):
    return [(name, value) for name, value, _ in parse_properties(text, "test.properties")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("a=b", [("a", "b")]),
        ("a:b", [("a", "b")]),
        ("a b", [("a", "b")]),
        ("a\tb", [("a", "b")]),
        ("  a  =  b c", [("a", "b c")]),
        ("a = b ", [("a", "b ")]),
        ("a : = b", [("a", "= b")]),
        ("a==b", [("a", "=b")]),
        ("a  b=c", [("a", "b=c")]),
        ("a", [("a", "")]),
        ("a=", [("a", "")]),
        ("=b", [("", "b")]),
        ("# c\n! d\n  # e\n\n \t\na=b", [("a", "b")]),
        ("a=#b", [("a", "#b")]),
        ("a=b\r\nc=d\re=f\n", [("a", "b"), ("c", "d"), ("e", "f")]),
        ("a=b\x0bc\u2028d", [("a", "b\x0bc\u2028d")]),
        ("a=b,\\\n   c,\\\n\td", [("a", "b,c,d")]),
        ("a=b\\\r\n  c", [("a", "bc")]),
        ("a=b\\\n#c", [("a", "b#c")]),
        ("a=b\\\n\nc=d", [("a", "b"), ("c", "d")]),
        ("# comment \\\na=b", [("a", "b")]),
        ("a=b\\\\\nc=d", [("a", "b\\"), ("c", "d")]),
        ("a=b\\\\\\\nc=d", [("a", "b\\c=d")]),
        ("a=b\\", [("a", "b")]),
        ("a\\=b=c", [("a=b", "c")]),
        ("a\\:b\\ c d", [("a:b c", "d")]),
        ("a=\\t\\n\\r\\f\\q\\\\", [("a", "\t\n\r\fq\\")]),
        ("a=\\ b", [("a", " b")]),
        ("a=\\u00e9\\u0041x", [("a", "\u00e9Ax")]),
        ("a=\\ud83d\\ude00", [("a", "\U0001f600")]),
        ("a=\u00e9", [("a", "\u00e9")]),
        ("a=1\na=2", [("a", "1"), ("a", "2")]),
    ],
)
def test_what_java_reads(text, expected):
    assert pairs(text) == expected


def test_lines_are_numbered_where_a_property_begins():
    text = "# one\na=b\\\n c\n\nd=e"
    assert [prop.line for prop in parse_properties(text, "x")] == [2, 5]


@pytest.mark.parametrize("value", ["\\u12", "\\uxyzw", "\\u", "\\ud83d"])
def test_a_malformed_escape_names_file_and_line(value):
    with pytest.raises(ConfigError, match=r"line 2 of app\.properties"):
        list(parse_properties(f"# c\na={value}", "app.properties"))


def test_a_name_that_begins_like_json_is_a_name(tmp_path):
    file = tmp_path / "app.properties"
    file.write_text("{a}=b\n")
    assert [(prop.name, prop.value) for prop in parse_properties(read_properties(str(file)), "f")] == [
        ("{a}", "b")
    ]


def test_a_file_without_end_is_not_read_to_its_end():
    with pytest.raises(ValueError, match="more than 1048576 characters"):
        read_properties("/dev/zero")


def test_a_property_over_any_number_of_lines_takes_no_longer_than_it_is():
    began = time.thread_time()
    (found,) = parse_properties("a=" + "xyz\\\n  " * 300_000 + "end", "f")
    assert time.thread_time() - began < 5
    assert found.value == "xyz" * 300_000 + "end"
