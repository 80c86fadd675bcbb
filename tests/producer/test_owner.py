# SPDX-License-Identifier: Apache-2.0
"""Which thread and process a call runs in, and what it may wait for."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock._locks import new_lock
from penstock.errors import IllegalStateError, ReentrantCallError
from penstock.producer.owner import Owner, check_may_wait, mark_io_thread, on_io_thread, process


def in_thread(work: Callable[[], Any]) -> Any:
    """What a function returns on a thread of its own, or raises there."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except IllegalStateError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    return outcome[0]


def as_io_thread(work: Callable[[], Any], owner: Owner | None = None) -> Any:
    """The same, on the I/O thread of an owner."""

    def run() -> Any:
        mark_io_thread(owner)
        return work()

    return in_thread(run)


def test_blocking_calls_are_refused_on_an_io_thread_alone():
    check_may_wait("flush()")
    refused = as_io_thread(lambda: check_may_wait("flush()"))
    assert isinstance(refused, IllegalStateError)
    assert "flush() was called from a delivery callback" in str(refused)


def test_a_thread_may_wait_for_another_producer():
    mine, other = Owner(), Owner()
    assert as_io_thread(lambda: check_may_wait("flush()", other), mine) is None
    assert isinstance(as_io_thread(lambda: check_may_wait("flush()", mine), mine), IllegalStateError)


def test_an_io_thread_is_known_by_its_owner():
    mine, other = Owner(), Owner()
    assert as_io_thread(lambda: (on_io_thread(), on_io_thread(mine), on_io_thread(other)), mine) == (
        True,
        True,
        False,
    )
    assert as_io_thread(lambda: (on_io_thread(), on_io_thread(mine))) == (True, True)
    assert not on_io_thread()
    assert not in_thread(on_io_thread)


def test_blocking_calls_are_refused_under_a_lock():
    with new_lock(), pytest.raises(ReentrantCallError, match=r"flush\(\) was called by a finalizer"):
        check_may_wait("flush()")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_knows_that_it_is_another_process():
    assert process.id == os.getpid()
    child = os.fork()
    if child == 0:
        os._exit(0 if process.id == os.getpid() else 1)
    assert os.waitpid(child, 0)[1] == 0
