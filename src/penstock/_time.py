# SPDX-License-Identifier: Apache-2.0
"""Clock, deadlines and backoff.

Inside the core, time is a float in monotonic seconds that is passed as `now`; only the outermost layer asks a Clock.
"""

from __future__ import annotations

import math
import random
import time
from typing import NamedTuple, Protocol

FOREVER = math.inf


class Clock(Protocol):
    """Where the outermost layer gets its time from; the simulator has its own."""

    def now(self) -> float:
        """Return the time of the monotonic clock, in seconds."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, for record timestamps."""
        ...


class SystemClock:
    """The time of this machine."""

    now = staticmethod(time.monotonic)  # itself: a function around it would cost more than it does

    def wall_ms(self) -> int:
        """Return the time of day, in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000


class Deadline(NamedTuple):
    """A moment on the monotonic clock after which nobody waits any longer."""

    at: float

    @classmethod
    def after(cls, now: float, seconds: float | None) -> Deadline:
        """`seconds` from now; None is never."""
        return cls(FOREVER if seconds is None else now + seconds)

    def remaining(self, now: float) -> float:
        """Seconds left, never negative; infinity for never."""
        return max(0.0, self.at - now)

    def passed(self, now: float) -> bool:
        """Whether the time is up."""
        return now >= self.at


class ExponentialBackoff(NamedTuple):
    """Waits that double from `initial_ms` up to `max_ms`, with jitter, so that many clients do not come back at once.

    The wait before retry number n (from 0) is min(max, initial * 2^n * r) with r drawn from 0.8 to 1.2. With
    max <= initial it is constant.
    """

    initial_ms: float
    max_ms: float
    multiplier: float = 2.0
    jitter: float = 0.2

    def seconds(self, attempts: int, rng: random.Random) -> float:
        """The wait after `attempts` earlier ones."""
        if self.initial_ms <= 0:
            return 0.0
        if self.max_ms <= self.initial_ms:
            return self.max_ms / 1000
        # The exponent is capped where the wait has reached its maximum: 2.0**2000 would overflow.
        highest = math.log(self.max_ms / self.initial_ms, self.multiplier)
        factor: float = self.multiplier ** min(attempts, highest + 1)
        jitter = rng.uniform(1 - self.jitter, 1 + self.jitter)
        return min(self.max_ms, self.initial_ms * factor * jitter) / 1000
