# SPDX-License-Identifier: Apache-2.0
"""Objects that are watched: they are not kept alive, and may come and go while one thread iterates over them."""

from __future__ import annotations

from penstock._weak import WeakBag


class Watched:
    pass


def test_what_is_watched_is_not_kept_alive():
    bag: WeakBag[Watched] = WeakBag()
    kept, dropped = Watched(), Watched()
    for each in (kept, kept, dropped):
        bag.add(each)
    assert len(bag) == 2
    del dropped, each
    assert list(bag) == [kept]
    assert len(bag) == 1


def test_what_comes_and_goes_during_a_walk_does_not_break_it():
    bag: WeakBag[Watched] = WeakBag()
    first, second = Watched(), Watched()
    bag.add(first)
    bag.add(second)
    met, others = [], []
    for each in bag:
        met.append(each)
        others.append(Watched())
        bag.add(others[-1])
        bag.discard(each)
    assert set(met) == {first, second}
    assert set(bag) == set(others)
    bag.clear()
    bag.discard(first)
    assert list(bag) == []
