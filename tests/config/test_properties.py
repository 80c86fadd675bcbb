# SPDX-License-Identifier: Apache-2.0
"""Properties files are read as Java reads them."""

from __future__ import annotations

import pytest

from penstock.config.properties import parse_properties
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
