# SPDX-License-Identifier: Apache-2.0
"""The names that topics can have, as the cluster sees it."""

from __future__ import annotations

import pytest

from penstock._arguments import is_topic_name
from penstock.testing.refused import Refused
from penstock.testing.topics import check_topic_name

GOOD = ("a", "Z9._-", "...", "..a", "x" * 249)
BAD = ("", ".", "..", "x" * 250, "bad topic!", "a/b", "\u00e4", "a\n", ".\n")


@pytest.mark.parametrize("name", GOOD + BAD)
def test_a_name_is_refused_where_the_cluster_refuses_it(name: str) -> None:
    assert is_topic_name(name) == (name in GOOD)
    if name in GOOD:
        check_topic_name(name)
    else:
        with pytest.raises(Refused):
            check_topic_name(name)
