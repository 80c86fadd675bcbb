# SPDX-License-Identifier: Apache-2.0
"""Planted bugs say what is wrong with themselves: a part that has moved, a field that has another name."""

from __future__ import annotations

import re
from contextlib import suppress
from types import SimpleNamespace

import pytest

from penstock import _compiled
from penstock.types import Node
from simulation import planting
from simulation.bugs import BUGS
from simulation.planting import Bug, Misfit, around, find
from simulation.seeds import SEEDS


@pytest.fixture
def places(monkeypatch):
    """A table of places that has one part besides, and can be changed."""
    monkeypatch.setattr(planting, "PLACES", {**planting.PLACES, "Node": "penstock.types.Node"})
    return planting.PLACES


@pytest.mark.parametrize("place", planting.PLACES)
def test_every_part_is_where_the_table_says(place):
    assert find(place) is not None


@pytest.mark.parametrize("name", BUGS)
def test_what_a_bug_changes_is_there(name):
    for change in BUGS[name].plant():
        assert change.is_compiled or callable(change.original())


def test_every_bug_has_a_seed():
    assert list(SEEDS) == list(BUGS)


def test_a_part_that_moved_is_told_with_the_table_that_names_it(places):
    places["Node"] = "penstock.types.Gnode"
    with pytest.raises(Misfit, match=re.escape("Node, which is not at penstock.types.Gnode")) as told:
        find("Node")
    assert "PLACES" in str(told.value)
    places["Node"] = "penstock.gone.Node"
    with pytest.raises(Misfit, match=r"not at penstock\.gone\.Node"):
        find("Node")


def test_a_method_that_is_gone_is_told(places):
    def moved():
        return around("Node", "vanished", lambda original, node: None)

    with pytest.raises(Misfit, match=r"vanished of Node \(penstock\.types\.Node\)"), Bug(moved).planted():
        pass


def test_a_bug_changes_a_method_while_it_is_planted(places):
    def shout():
        return around("Node", "__str__", lambda original, node: original(node).upper())

    node = Node(1, "host", 9092)
    with Bug(shout).planted():
        assert str(node).startswith("HOST")
    assert str(node).startswith("host")


@pytest.mark.parametrize(
    "replacement",
    [lambda original, node: node.renamed, lambda original: None, lambda original, node: original(node, 1)],
    ids=["field", "parameters", "call"],
)
def test_a_bug_that_does_not_fit_any_more_does_not_pass_for_found(places, replacement):
    def misfit():
        return around("Node", "__str__", replacement)

    def run():
        # The producer, or the simulator, may take such an error for one of the user's.
        with Bug(misfit).planted(), suppress(AttributeError, TypeError):
            str(Node(1, "host", 9092))

    with pytest.raises(Misfit, match="the planted bug misfit does not fit any more"):
        run()


def test_what_the_producer_raises_over_a_bug_is_no_misfit(places):
    def no_node():
        return around("Node", "__str__", lambda original, node: original(SimpleNamespace()))

    with Bug(no_node).planted(), pytest.raises(AttributeError):
        str(Node(1, "host", 9092))


def test_bugs_in_compiled_classes_need_the_sources():
    compiled = _compiled.implementation() == "compiled"
    in_hot_class = BUGS["retries-overtake-each-other"]
    assert in_hot_class.needs_sources is compiled
    assert not Bug(lambda: around("ConnectionStates", "get", lambda *_: None)).needs_sources
