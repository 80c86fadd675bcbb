# SPDX-License-Identifier: Apache-2.0
"""Signals are noted while a pipeline runs, and handled as before afterwards."""

from __future__ import annotations

import signal
import threading

from fix_lines import BeforeLine

from penstock.spark.pipeline.run import StopSignals


def test_a_signal_is_noted_and_raises_nothing() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopSignals((signal.SIGINT, signal.SIGTERM)) as stop:
        assert not stop.wanted
        assert not stop.wait(0)
        signal.raise_signal(signal.SIGTERM)
        assert stop.wait(60)
        assert stop.wanted
        assert stop.received is signal.SIGTERM
        signal.raise_signal(signal.SIGINT)
        assert stop.count == 2
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_get_no_signals_and_are_left_alone() -> None:
    seen: list[bool] = []

    def enter() -> None:
        with StopSignals() as stop:
            stop.request()
            seen.append(stop.wanted)

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join(60)
    assert seen == [True]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_stop_may_be_noted_at_any_line_of_the_wait() -> None:
    """The handler runs on the thread that waits, wherever that is."""
    number = 0
    is_reached = True
    while is_reached:
        stop = StopSignals()
        before = BeforeLine(number, ("wait", "let_wait"), stop.request)
        waited: list[bool] = []

        def let_wait(
            stop: StopSignals = stop, before: BeforeLine = before, waited: list[bool] = waited
        ) -> None:
            with before:
                waited.append(stop.wait(0.02))

        thread = threading.Thread(target=let_wait, daemon=True)
        thread.start()
        thread.join(60)
        assert waited, f"it waits for itself, at line {number}"
        is_reached = before.reached
        number += 1
    assert number > 3
