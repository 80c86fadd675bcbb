# SPDX-License-Identifier: Apache-2.0
"""Every key, table and item of a TOML text is found on the line where it stands."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.pipeline.file import KeyPath, find_lines

TEXT = '''\
# a comment with [brackets] and "quotes"
name = "x"   # another = comment
"quoted key" = 1
'literal # key' = 2
dotted.inner = 3

[source]
format = "csv"
options = { header = true, sep = ",", deep = { a = 1 } }
[source.more]
list = [1, 2,
  3, # three
  [4,
   5]]

[[steps]]
name = "one"
sql = """
SELECT "[[not a table]]" -- # no comment
FROM input = 3"""

[[steps]]   # second
sql = \'\'\'
it's = [1
\'\'\'
when = 2026-01-31 10:00:00
after = "a \\" quote # and = more"
[steps.inner]
x = 1
[[steps.parts]]
p = 1
[[steps.parts]]
p = 2
[sink.options]
kafka.bootstrap.servers = "a:1"
kafka."linger.ms" = 5
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("name",), 2),
        (("quoted key",), 3),
        (("literal # key",), 4),
        (("dotted",), 5),
        (("dotted", "inner"), 5),
        (("source",), 7),
        (("source", "format"), 8),
        (("source", "options"), 9),
        (("source", "options", "sep"), 9),
        (("source", "options", "deep", "a"), 9),
        (("source", "more", "list", 1), 11),
        (("source", "more", "list", 2), 12),
        (("source", "more", "list", 3), 13),
        (("source", "more", "list", 3, 1), 14),
        (("steps",), 16),
        (("steps", 0, "sql"), 18),
        (("steps", 1), 22),
        (("steps", 1, "sql"), 23),
        (("steps", 1, "when"), 26),
        (("steps", 1, "after"), 27),
        (("steps", 1, "inner", "x"), 29),
        (("steps", 1, "parts", 1, "p"), 33),
        (("sink", "options", "kafka", "bootstrap", "servers"), 35),
        (("sink", "options", "kafka", "linger.ms"), 36),
    ],
    ids=str,
)
def test_line_of(path: KeyPath, line: int) -> None:
    assert find_lines(TEXT)[path] == line


def all_paths(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from all_paths(item, (*path, key))


@pytest.mark.parametrize("ends", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_all_that_tomllib_sees_has_a_line(ends: str) -> None:
    text = TEXT.replace("\n", ends)
    wanted = set(all_paths(tomllib.loads(text)))
    lines = find_lines(text)
    assert wanted <= {*lines, ("sink",)}, "a table that is only implied by [sink.options] has no line"
    assert set(lines) <= wanted


def test_an_empty_text_has_none() -> None:
    assert find_lines("") == {}
    assert find_lines("\n# nothing\n") == {}


KEYS = st.from_regex(r"[a-z]{1,4}", fullmatch=True)
SCALARS = st.sampled_from(
    ['"s"', "'l'", '"""m\nm"""', "'''n\n'n'''", "1", "-2.5", "true", "2026-01-31", '"#"', '"]"', "'}'"]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.lists(inner, min_size=1, max_size=3).map(lambda items: "[\n# c ] \n" + ",\n".join(items) + ",\n]"),
        st.dictionaries(KEYS, SCALARS.filter(lambda text: "\n" not in text), max_size=3).map(
            lambda table: "{ " + ", ".join(f"{key} = {value}" for key, value in table.items()) + " }"
        ),
    ),
    max_leaves=6,
)


@given(st.dictionaries(KEYS, VALUES, max_size=6), st.dictionaries(KEYS, VALUES, max_size=3))
def test_finds_its_way_through_any_values(top: dict[str, str], table: dict[str, str]) -> None:
    pairs = [f"{key} = {value}" for key, value in top.items()]
    pairs += ["[[Tables]]", *(f"{key} = {value}  # c" for key, value in table.items()), "[[Tables]]"]
    text = "\n".join(pairs)
    lines = find_lines(text)
    assert set(lines) == set(all_paths(tomllib.loads(text)))
    rows = text.split("\n")
    for key in top:
        assert rows[lines[(key,)] - 1].startswith(f"{key} = ")
