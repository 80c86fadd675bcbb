# SPDX-License-Identifier: Apache-2.0
"""Waiting in tests with real threads, on a machine that may be busy with other things."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from penstock import Producer
from penstock.errors import KafkaTimeoutError
from penstock.testing import FakeKafka

SOON = 60.0  # seconds that a test that passes never needs

T = TypeVar("T")


def wait_until(condition: Callable[[], object], what: str = "it never came") -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.001)


def within(seconds: float, call: Callable[[], T]) -> T:
    """What a call gives that promises to take no longer than so many seconds.

    One that took longer is made again, once: a busy machine may have stopped this process in the middle of the first,
    but what always takes too long takes too long twice. The time of a clock on the wall is measured, because a call
    that waits without success uses no processor.
    """
    for _ in range(2):
        began = time.monotonic()
        given = call()
        took = time.monotonic() - began
        if took < seconds:
            return given
    raise AssertionError(
        f"it may take {seconds:g} seconds, and took longer twice: {took:.1f} the second time"
    )


@contextmanager
def closed_port() -> Iterator[int]:
    """A port of 127.0.0.1 at which nobody listens, and which nobody else is given."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield int(bound.getsockname()[1])


def is_waiting(thread: threading.Thread) -> bool:
    """Whether a thread waits in a call of a producer."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and not frame.f_code.co_filename.endswith("_locks.py"):
        frame = frame.f_back
    return frame is not None


@contextmanager
def silent(kafka: FakeKafka) -> Iterator[Callable[[], None]]:
    """The cluster answers nothing until the block ends, or the function is called that this gives."""
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with kafka.locked():
            held.set()
            over.wait(10 * SOON)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(SOON)
    try:
        yield over.set
    finally:
        over.set()
        holder.join()


def why_it_waited(producer: Producer, call: Callable[[], object]) -> KafkaTimeoutError:
    """What a call raises that waits without success, once the producer has had the time to learn the cause.

    A short max.block.ms may be over before the first answer of a broker was read: then the call is repeated, and may
    wait longer.
    """
    deadline = time.monotonic() + SOON
    while True:
        with pytest.raises(KafkaTimeoutError) as caught:
            call()
        if caught.value.__cause__ is not None or time.monotonic() > deadline:
            return caught.value
        producer._core.max_block *= 2
