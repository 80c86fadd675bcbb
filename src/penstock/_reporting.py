# SPDX-License-Identifier: Apache-2.0
"""The numbers of a producer for other systems (metric.reporters), and its live page (glass.box).

A reporter is told of each producer that is made with it, and asks its MetricsSource whenever it wants to know: at a
scrape, or by a timer of its own. A reporter that raises is logged; no producer fails because of it.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from penstock._events import Event, current, tell, tell_error
from penstock._last_calls import LastCall

if TYPE_CHECKING:
    from penstock._metrics import HistogramMetric, MetricsRegistry, MetricValue
    from penstock._time import Clock

log = logging.getLogger("penstock.producer")

# The environment variable with an address for the live page of a program that is not changed.
GLASS_BOX_VARIABLE = "PENSTOCK_GLASS_BOX"
_GLASS_BOX = (
    "penstock.watching.glass_box"  # by its name: it is above the producer, and loaded where it is asked for
)


class MetricsSource:
    """The metrics of one producer. Any thread may ask.

    Args:
        client_id: the producer's.
        clock: the time.
        registry: its metrics.
        catch_up: brings up to date what is not recorded but read.

    Attributes:
        client_id: the producer's.
    """

    def __init__(
        self, client_id: str, clock: Clock, registry: MetricsRegistry, catch_up: Callable[[float], None]
    ) -> None:
        self.client_id = client_id
        self._clock = clock
        self._registry = registry
        self._catch_up = catch_up
        self._process = os.getpid()
        self._ended: Callable[[], bool] = _never

    @property
    def usable(self) -> bool:
        """Whether the producer works in this process. It does not when it has ended, nor in the child of a fork."""
        return self._process == os.getpid() and not self._ended()

    def values(self) -> list[MetricValue]:
        """All metrics now; none when the producer is not usable."""
        if not self.usable:
            return []
        now = self._clock.now()
        self._catch_up(now)
        return self._registry.values(now)

    def histograms(self) -> list[HistogramMetric]:
        """All histograms, which count since the producer was made."""
        return self._registry.histograms() if self.usable else []

    def until(self, ended: Callable[[], bool]) -> None:
        """The producer has started, and works until this is true."""
        self._ended = ended

    def __repr__(self) -> str:
        return f"<MetricsSource of {self.client_id!r}>"


class MetricReporter(Protocol):
    """What collects the metrics of producers; one object may serve several."""

    def start(self, source: MetricsSource, /) -> object:
        """Take note of a producer that was made."""

    def stop(self, source: MetricsSource, /) -> object:
        """Forget a producer that is closed; one that was forgotten without close() is not told, see `usable`."""


class Reporting:
    """Tells the reporters of one producer.

    Args:
        reporters: of the configuration.
        source: what they are given.
    """

    def __init__(self, reporters: Sequence[MetricReporter], source: MetricsSource) -> None:
        self._reporters = reporters
        self._events = current()
        self.source = source

    def start(self, ended: Callable[[], bool]) -> None:
        """Start to tell the reporters, until `ended()`."""
        self.source.until(ended)
        for reporter in self._reporters:
            try:
                reporter.start(self.source)
            except Exception as error:  # noqa: BLE001 - it is logged
                self._tell("the metric reporter %s could not be started", reporter, error)

    def stops(self) -> list[LastCall]:
        """What is called when the producer is closed."""
        text = "the metric reporter %s could not be stopped"
        return [
            LastCall(partial(reporter.stop, self.source), partial(self._tell, text, reporter))
            for reporter in self._reporters
        ]

    def _tell(self, text: str, reporter: MetricReporter, error: Exception) -> None:
        tell_error(
            log, Event.REPORTER_FAILED, text, type(reporter).__qualname__,
            of=self._events, each=type(reporter), plugin=type(reporter).__qualname__, error=error,
        )  # fmt: skip


def show_in_glass_box(address: str | None, *what: Any) -> None:
    """Let a producer be seen on a live page, if the option or the environment asks for one.

    Args:
        address: the option.
        what: for the page, which imports what it needs to understand it.
    """
    if address is None and not os.environ.get(GLASS_BOX_VARIABLE):
        return
    try:
        importlib.import_module(_GLASS_BOX).show(address, *what)
    except Exception as error:  # noqa: BLE001 - it is logged, and nobody wants to lose a producer for it
        text = "the live page of a producer could not be started"
        tell(log, logging.WARNING, Event.PAGE_FAILED, text, exc_info=True, error=error)


def _never() -> bool:
    return False
