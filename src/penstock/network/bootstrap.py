# SPDX-License-Identifier: Apache-2.0
"""The first look-up of the bootstrap servers, away from the I/O thread, within a budget of time.

With bootstrap.resolve.timeout.ms above 0 a producer can be made before its DNS knows the brokers. The names are then
looked up on a helper thread, because a name service may block for long; the I/O thread only asks how far it has come.

Rules:
1. One look-up at a time; one that failed is repeated when the retry backoff has passed.
2. The budget starts when the I/O thread asks for the first time. An answer counts when it is there by the end of it.
3. Success and failure are final.
4. Nobody waits for the helper thread: one that hangs in the name service dies with the process, and what it finds after
   `close` is dropped.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.errors import BootstrapError
from penstock.network.resolver import Endpoint

logger = logging.getLogger("penstock.network")

# The servers to start from, after looking them up; blocks, and raises BootstrapError when there is none.
LookUp = Callable[[], Sequence[Endpoint]]
# Runs a function where it may block, and returns at once.
RunAside = Callable[[Callable[[], None]], None]


def run_on_daemon_thread(work: Callable[[], None]) -> None:
    """Run the function on a thread that does not keep the process alive."""
    threading.Thread(target=work, name="penstock-bootstrap", daemon=True).start()


class BootstrapSettings(NamedTuple):
    """How long to try, and how long to rest between two look-ups."""

    resolve_timeout_ms: float
    retry_backoff_ms: float


class DeferredBootstrap:
    """Looks up the bootstrap servers until it succeeds or the time is up.

    Args:
        settings: the budget and the backoff.
        look_up: asks the name service; called on the helper thread.
        run_aside: starts the helper thread.
        wake: wakes the I/O thread; called on the helper thread when a look-up has ended.
    """

    def __init__(
        self, settings: BootstrapSettings, look_up: LookUp, run_aside: RunAside, wake: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._look_up = look_up
        self._run_aside = run_aside
        self._wake = wake
        # Written by the helper thread, taken by the I/O thread: how the look-up ended, None while it has not.
        self._outcome: Sequence[Endpoint] | BootstrapError | None = None
        # Written by the I/O thread, read by the helper thread.
        self._closed = False
        # Owned by the I/O thread.
        self._deadline: float | None = None
        self._looking = False
        self._next_look_up_at = -math.inf
        self._last_error: BootstrapError | None = None
        self._final: Sequence[Endpoint] | BootstrapError | None = None

    @property
    def last_error(self) -> BootstrapError | None:
        """Why the latest look-up failed; None when none has."""
        return self._last_error

    def advance(self, now: float) -> Sequence[Endpoint] | BootstrapError | None:
        """Take the next step.

        Returns:
            The servers to start from, or the error when the time is up, told once; None before and after.
        """
        if self._final is not None or self._closed:
            return None
        if self._deadline is None:
            self._deadline = now + self._settings.resolve_timeout_ms / 1000
        self._final = self._take_outcome(now)
        if self._final is None:
            if now >= self._deadline:
                self._final = self._time_is_up()
            elif not self._looking and now >= self._next_look_up_at:
                self._looking = True
                self._run_aside(self._work)
        return self._final

    def seconds_to_advance(self, now: float) -> float:
        """Seconds until `advance` has something to do; the end of a look-up wakes the I/O thread."""
        if self._final is not None or self._deadline is None:
            return math.inf
        until = self._deadline if self._looking else min(self._deadline, self._next_look_up_at)
        return max(0.0, until - now)

    def close(self) -> None:
        """Stop; a look-up under way is left alone."""
        self._closed = True

    def _take_outcome(self, now: float) -> Sequence[Endpoint] | None:
        outcome, self._outcome = self._outcome, None
        if outcome is None:
            return None
        self._looking = False
        if not isinstance(outcome, BootstrapError):
            return outcome
        if self._last_error is None:
            logger.warning("%s They are looked up again until the time is up.", outcome)
        self._last_error = outcome
        self._next_look_up_at = now + self._settings.retry_backoff_ms / 1000
        return None

    def _time_is_up(self) -> BootstrapError:
        cause = self._last_error
        why = str(cause) if cause is not None else "The name service gave no answer."
        error = BootstrapError(
            f"the bootstrap servers could not be resolved within bootstrap.resolve.timeout.ms "
            f"({self._settings.resolve_timeout_ms:.0f} ms), and this producer has given up: {why}"
        )
        error.__cause__ = cause
        return error

    def _work(self) -> None:
        """The body of the helper thread."""
        outcome: Sequence[Endpoint] | BootstrapError
        try:
            outcome = self._look_up()
        except BootstrapError as error:
            outcome = error
        except Exception as error:
            # Nobody could catch it here, and the look-up must end for the I/O thread.
            logger.exception("Looking up the bootstrap servers failed in an unexpected way")
            outcome = BootstrapError(f"the bootstrap servers could not be looked up: {error!r}")
            outcome.__cause__ = error
        if not self._closed:
            self._outcome = outcome
            self._wake()

    def __repr__(self) -> str:
        state = (
            "failed" if isinstance(self._final, BootstrapError)
            else "done" if self._final is not None
            else "looking" if self._looking
            else "resting"
        )  # fmt: skip
        return f"<DeferredBootstrap: {state}>"
