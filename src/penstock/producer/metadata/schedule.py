# SPDX-License-Identifier: Apache-2.0
"""When the next metadata update is due.

Rules:
1. An update is due when one was asked for, or when the last full one is older than metadata.max.age.ms; but never
   before the waits of rules 2 and 3 are over.
2. After each answer there is one retry.backoff.ms of rest; after failures in a row the wait doubles.
3. After answers in a row that brought nothing new (the topic still does not exist, the leader is still missing) the
   wait doubles as well, or a client with a wrong topic name would keep its brokers busy.
4. A topic asked for for the first time waits for nobody: its sender does.
"""

from __future__ import annotations

import math
import random

from penstock._quiet_cy import QuietTime
from penstock._time import ExponentialBackoff

_LONG_AGO = -math.inf


class RefreshSchedule:
    """Decides when to ask. Has no lock: its owner guards it.

    Args:
        max_age_ms: an answer is good for that long.
        backoff: the waits of rules 2 and 3.
        rng: for their jitter.

    Attributes:
        quiet: nothing is due before its end; may be read without the guard.
    """

    def __init__(self, max_age_ms: float, backoff: ExponentialBackoff, rng: random.Random) -> None:
        self._max_age = max_age_ms / 1000
        self._backoff = backoff
        self._rng = rng
        self._last_full_update = _LONG_AGO
        self._requested = False
        self._requested_before_asking = False  # what to go back to when the question in progress fails
        self._failures = 0
        self._equivalent_answers = 0
        self._rest_until = _LONG_AGO  # rule 2
        self._progress_until = _LONG_AGO  # rule 3
        self.quiet = QuietTime()

    @property
    def last_full_update(self) -> float:
        """When the last complete answer came; minus infinity before the first."""
        return self._last_full_update

    def request(self, *, reset_backoff: bool = False) -> None:
        """Ask for a full update."""
        self.quiet.end()
        self._requested = True
        if reset_backoff:
            self._forget_equivalent_answers()

    def hurry(self) -> None:
        """Drop all waits: rule 4."""
        self.quiet.end()
        self._rest_until = _LONG_AGO
        self._forget_equivalent_answers()

    def full_update_wanted(self, now: float) -> bool:
        """Whether the next update must be a full one."""
        return self._requested or self._expired(now)

    def seconds_to_update(self, now: float, *, new_topics: bool) -> float:
        """Seconds until it is time to ask; 0.0 is now."""
        expires_at = self._last_full_update + self._max_age
        if now >= expires_at:
            # An answer that became old is asked for again as usual, not because there was no progress.
            self._forget_equivalent_answers()
        due_at = now if self._requested or new_topics else expires_at
        due_at = max(due_at, self._rest_until, self._progress_until)
        # A wait that goes on beyond the age of the last answer may still become shorter.
        if due_at <= expires_at or now >= expires_at:
            self.quiet.until = due_at
        return max(0.0, due_at - now)

    def on_asked(self) -> None:
        """A question goes out: what is requested from here on is not covered by its answer."""
        self.quiet.end()
        self._requested_before_asking = self._requested
        self._requested = False

    def on_answer(self, now: float, *, partial: bool, progress: bool) -> None:
        self.quiet.end()
        self._failures = 0
        self._rest_until = now + self._backoff.seconds(0, self._rng)
        if progress:
            self._forget_equivalent_answers()
        else:
            self._progress_until = now + self._backoff.seconds(self._equivalent_answers, self._rng)
            self._equivalent_answers += 1
        if not partial:
            self._last_full_update = now

    def on_failure(self, now: float) -> None:
        """No answer, or one that is no use."""
        self.quiet.end()
        self._requested = self._requested or self._requested_before_asking
        self._rest_until = now + self._backoff.seconds(self._failures, self._rng)
        self._failures += 1

    def _expired(self, now: float) -> bool:
        return now >= self._last_full_update + self._max_age

    def _forget_equivalent_answers(self) -> None:
        self._equivalent_answers = 0
        self._progress_until = _LONG_AGO
