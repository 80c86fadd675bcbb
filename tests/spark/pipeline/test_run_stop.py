# SPDX-License-Identifier: Apache-2.0
"""Signals are noted while a pipeline runs, and handled as before afterwards."""

from __future__ import annotations

import signal
import threading

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
