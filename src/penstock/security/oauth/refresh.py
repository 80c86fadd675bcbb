# SPDX-License-Identifier: Apache-2.0
"""Keeps a token that is good: fetches the first one when it is needed, and the next ones before the old one expires.

Rules:
1. Tokens are fetched on a thread of its own, which starts with the first authentication: never on the I/O thread. Where
   no thread can be started, as when the program ends, the caller that needs a token fetches it.
2. A caller gets the token at hand while it is good. Otherwise all callers wait for one fetch, each as long as it may.
3. When the next one is fetched follows Java (sasl.login.refresh.*). One that fails is tried again after ten seconds,
   for ever, and sooner where an authentication needs it: but not in haste, since connections are tried many times a
   second. Meanwhile those that need it get the same failure. The old token stays in use while it is good.
4. A token of which nobody knows when it expires is fetched anew for each authentication.
5. A provider that does not come back is given up after a while, and asked again on another thread: a few times, and
   rarely from then on, as long as it does not come back.
6. A token that a broker has refused is fetched anew before the next authentication, unless it is quite new: it may have
   been revoked, and the provider must not be asked in haste.
7. A failure is logged once, not every ten seconds; that it is over is logged as well.
8. A thread that holds the lock waits neither for a token nor for its turn, and does not log. `close` and `refused` take
   no lock: the I/O thread calls them, and so may a finalizer, on a thread that holds it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from penstock._escaping import told
from penstock._events import Event, current, tell
from penstock._locks import Latch, new_lock, serving
from penstock.errors import AuthenticationError
from penstock.security.aside import STUCK_SECONDS, Replacements
from penstock.security.oauth.settings import OAuthSettings
from penstock.security.oauth.source import TokenSource
from penstock.security.oauth.token import BadTokenError, NoTokenError, Token

logger = logging.getLogger("penstock.security")

RETRY_SECONDS: Final = 10.0
# So long a failure is kept for those that need a token: the first time, and at most. It doubles with each failure.
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 5.0
# A provider of tokens that hardly live is not asked more often.
SHORTEST_WAIT: Final = 0.5
# A token that is refused is fetched anew when it is older.
QUITE_NEW_SECONDS: Final = 5.0

_MECHANISM: Final = "OAUTHBEARER"
_IDLE: Final = "the thread that fetches tokens for a client"


def seconds_to_refresh(
    token: Token, settings: OAuthSettings, wall: float, random_fraction: float
) -> float | None:
    """How long to wait before the next token is fetched; None where nobody knows when this one expires.

    Args:
        token: the one that was just fetched.
        settings: sasl.login.refresh.*.
        wall: now, in seconds since the epoch.
        random_fraction: between 0 and 1; so the clients of a cluster fetch at different times.
    """
    expires_at = token.expires_at
    if expires_at is None:
        return None
    if expires_at <= wall:
        return RETRY_SECONDS
    share = settings.refresh_window_factor + settings.refresh_window_jitter * random_fraction
    period, buffer = settings.refresh_min_period_seconds, settings.refresh_buffer_seconds
    if wall + period + buffer > expires_at:
        # Too short-lived for both: take a share of what is left.
        return max((expires_at - wall) * share, SHORTEST_WAIT)
    started_at = min(wall, token.issued_at or wall)
    preferred = started_at + (expires_at - started_at) * share
    return max(min(preferred, expires_at - buffer) - wall, period, SHORTEST_WAIT)


class TokenRefresher:
    """The token of one client. Methods are called on any thread but the I/O thread, `refused` and `close` on any.

    Args:
        source: where tokens come from.
        settings: when they are refreshed.
        patience: seconds that `token` waits at most.
        wall: the clock that expiries are compared with.
        random_fraction: gives a number between 0 and 1 at each call.
        plan: when the next token is fetched.
        stuck_seconds: rule 5.
        quite_new_seconds: rule 6.
    """

    def __init__(
        self,
        source: TokenSource,
        settings: OAuthSettings,
        patience: float,
        *,
        wall: Callable[[], float] = time.time,
        random_fraction: Callable[[], float] = random.random,
        plan: Callable[[Token, OAuthSettings, float, float], float | None] = seconds_to_refresh,
        stuck_seconds: float = STUCK_SECONDS,
        quite_new_seconds: float = QUITE_NEW_SECONDS,
    ) -> None:
        self._source = source
        self._settings = settings
        self._patience = patience
        self._wall = wall
        self._random_fraction = random_fraction
        self._plan = plan
        self._stuck_seconds = stuck_seconds
        self._quite_new_seconds = quite_new_seconds
        self._events = current()
        self._lock: Any = new_lock()
        # One for each thread that waits for a change, see `_listening`.
        self._latches: list[Latch] = []
        self._closed = False  # written without the lock, and only once
        # The last that a broker did not accept. Written without the lock, by the I/O thread as well.
        self._refused: Token | None = None
        # All below is guarded by the lock; `close` forgets the token without it.
        self._token: Token | None = None
        self._fetched_at = 0.0  # monotonic
        self._failure = ""  # of the last fetch; "" where it succeeded
        self._failed_at = 0.0  # monotonic
        self._failed = 0  # in a row
        self._fetches = 0  # that have ended
        self._wanted = False  # a fetch, now
        self._fetching_since: float | None = None  # monotonic
        self._generation = 0  # of the thread that fetches; a stuck one has an older number
        self._running = False  # somebody of this generation fetches, or waits until the next fetch is due
        self._stuck = 0  # of older generations, and not back yet
        self._replacements = Replacements()

    def token(self) -> Token:
        """One that is good, by what is known. Blocks.

        Raises:
            AuthenticationError: there is none, and none came in time.
        """
        deadline = time.monotonic() + self._patience
        with self._lock:
            known = self._token
            if known is not None and self._is_good_locked(known):
                return known
            if self._failure and time.monotonic() < self._failed_at + self._pause_locked():
                raise _error(self._failure)
            # A fetch that is under way serves as well.
            seen = self._fetches
            here, no_thread = self._want_locked()
        self._ring()
        if no_thread is not None:
            tell(logger, logging.DEBUG, Event.NO_THREAD, "No thread could be started: %s", no_thread)
        if here is not None:
            self._fetch_once(here)
            self._leave(here)
        while True:
            with self._listening() as latch:
                with self._lock:
                    if self._closed or self._fetches != seen:
                        return self._fetched_locked()
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise _error(self._late_locked())
                latch.wait(left)

    def _fetched_locked(self) -> Token:
        token = self._token
        if self._closed:
            raise _error("the client is closed")
        # The next fetch may have failed already, before this thread went on: the token is good nevertheless.
        if token is None or (self._failure and not self._is_good_locked(token)):
            raise _error(self._failure)
        return token

    def refused(self, token: Token) -> None:
        """A broker did not accept it. Does not wait for the lock."""
        if token is self._token:
            self._refused = token

    def close(self) -> None:
        """Stop. Does not wait for the provider."""
        self._closed = True
        self._forget_if_closed()
        self._ring()
        self._source.stop()

    def _forget_if_closed(self) -> None:
        """Called by `close`, and by the thread that stores a token: it may have looked at `_closed` before."""
        if self._closed:
            self._token = self._refused = None

    @contextmanager
    def _listening(self) -> Iterator[Latch]:
        """What opens at the next change. The caller looks afterwards whether it is there already."""
        latch = Latch()
        self._latches.append(latch)
        try:
            yield latch
        finally:
            self._latches.remove(latch)

    def _ring(self) -> None:
        """Something has changed that others may wait for."""
        for latch in self._latches.copy():
            latch.set()

    def _is_good_locked(self, token: Token) -> bool:
        if token.expires_at is None or token.has_expired(self._wall()):
            return False
        return token is not self._refused or time.monotonic() - self._fetched_at < self._quite_new_seconds

    def _pause_locked(self) -> float:
        doublings = min(self._failed - 1, 32)  # a float has a limit, the number has none
        return min(FIRST_PAUSE * 2.0**doublings, LONGEST_PAUSE)

    def _want_locked(self) -> tuple[int | None, RuntimeError | None]:
        """Have a token fetched; `_ring` follows.

        Returns the generation under which the caller has to do it, where no thread can be started; and why none can.
        """
        self._wanted = True
        now = time.monotonic()
        stuck = self._fetching_since is not None and now - self._fetching_since > self._stuck_seconds
        if self._closed or (self._running and not stuck):
            return None, None
        if stuck and not self._replacements.allow(self._stuck + 1, now):
            return None, None
        generation = self._generation + 1
        # Under the lock: the thread waits there until it is known to be the one that fetches.
        failure = self._try_start_locked(generation)
        if stuck and failure is not None:
            return None, failure  # it would hang here as well
        self._stuck += self._running
        self._running = True
        self._generation = generation
        self._fetching_since = None if failure is None else now
        return None if failure is None else generation, failure

    def _try_start_locked(self, generation: int) -> RuntimeError | None:
        """Start a thread; why that cannot be done, where it cannot."""
        name = f"penstock-token-{generation}"
        thread = threading.Thread(target=self._run, args=(generation,), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the program ends, or there are too many threads
            return error
        return None

    def _leave(self, generation: int) -> None:
        """The thread that fetched will not do so again."""
        try:
            self._source.leave()
        finally:
            with self._lock:
                if generation == self._generation:
                    self._running = False
                else:
                    self._stuck -= 1

    def _late_locked(self) -> str:
        trouble = self._source.trouble
        since = self._fetching_since
        waited = self._patience if since is None else max(self._patience, time.monotonic() - since)
        text = f"{self._source.name} has not given a token within {waited:.1f} s"
        return f"{text}: {trouble}" if trouble else f"{text}, and goes on; it must not wait for long"

    def _run(self, generation: int) -> None:
        try:
            wait: float | None = 0.0
            while self._wait_for_turn(generation, wait):
                wait = self._fetch_once(generation)
        finally:
            self._leave(generation)

    def _wait_for_turn(self, generation: int, seconds: float | None) -> bool:
        """Until a fetch is due; False when this thread has to end."""
        due = None if seconds is None else time.monotonic() + seconds
        # Others count on this thread: a finalizer that runs here must not wait for what needs a token.
        with serving(_IDLE):
            while True:
                with self._listening() as latch:
                    with self._lock:
                        if self._closed or generation != self._generation:
                            return False
                        left = None if due is None else due - time.monotonic()
                        if self._wanted or (left is not None and left <= 0):
                            self._wanted = False
                            self._fetching_since = time.monotonic()
                            return True
                    # At most an hour: expiries are of the wall clock, which may jump, and waits have a limit.
                    latch.wait(3600.0 if left is None else min(left, 3600.0))

    def _fetch_once(self, generation: int) -> float | None:
        token: Token | None = None
        failure = ""
        try:
            token = self._source.fetch()
        except BadTokenError as error:
            failure = f"{self._source.name} gave no token that can be used: {error}"
        except NoTokenError as error:
            failure = str(error)
        except BaseException as error:  # noqa: BLE001  # code of the user's: this thread goes on, whatever it raises
            failure = f"{self._source.name} failed: {told(error)}"
        with self._lock:
            if generation != self._generation or self._closed:
                return None
            before, self._failure = self._failure, failure
            if token is not None:
                self._token = token
                self._fetched_at = time.monotonic()
                self._refused = None
                self._failed = 0
            else:
                self._failed_at = time.monotonic()
                self._failed += 1
            kept = self._token
            self._fetching_since = None
            self._wanted = False
            self._fetches += 1
        self._forget_if_closed()
        self._ring()
        self._tell(before, failure, kept)
        if token is None:
            return RETRY_SECONDS
        return self._plan(token, self._settings, self._wall(), self._random_fraction())

    def _tell(self, before: str, failure: str, kept: Token | None) -> None:
        if not failure:
            if before:
                text = "There is a token for %s again"
                tell(logger, logging.INFO, Event.TOKEN_RECOVERED, text, _MECHANISM, of=self._events, each=())
            return
        if before:
            self._tell_failed(logging.DEBUG, "Still no new token for %s: %s", _MECHANISM, failure)
        elif kept is not None and not kept.has_expired(self._wall()):
            left = "" if kept.expires_at is None else f" for {kept.expires_at - self._wall():.0f} s"
            text = "No new token for %s; the old one is good%s: %s"
            self._tell_failed(logging.WARNING, text, _MECHANISM, left, failure)
        else:
            # Not at a higher level: each authentication that needs one fails, and that is logged there.
            self._tell_failed(logging.INFO, "No token for %s: %s", _MECHANISM, failure)

    def _tell_failed(self, level: int, text: str, *args: str) -> None:
        tell(logger, level, Event.TOKEN_FAILED, text, *args, of=self._events, each=(), mechanism=_MECHANISM)


def _error(text: str) -> AuthenticationError:
    return AuthenticationError(f"there is no token: {text}", mechanism=_MECHANISM)
