# SPDX-License-Identifier: Apache-2.0
"""The refresher of the token: when it fetches, who waits, and what is told."""

from __future__ import annotations

import logging
import threading
import time

import pytest
from fix_patience import wait_until
from security.oauth.tokens import Scripted

from penstock._locks import inside
from penstock.errors import AuthenticationError
from penstock.security.aside import FIRST_PAUSE
from penstock.security.oauth import refresh
from penstock.security.oauth.refresh import RETRY_SECONDS, TokenRefresher, seconds_to_refresh
from penstock.security.oauth.settings import OAuthSettings
from penstock.security.oauth.token import BadTokenError, NoTokenError, Token

DEFAULTS = OAuthSettings()


def good(value: str = "t", seconds: float = 3600.0) -> Token:
    return Token(value, time.time() + seconds)


@pytest.fixture
def refreshers():
    made = []

    def make(give, patience=60.0, settings=DEFAULTS, **more):
        source = give if isinstance(give, Scripted) else Scripted(give)
        refresher = TokenRefresher(source, settings, patience, **more)
        made.append((refresher, source))
        return refresher, source

    yield make
    for refresher, _ in made:
        refresher.close()


# ---- when


@pytest.mark.parametrize(
    ("lifetime", "age", "random_fraction", "expected"),
    [
        (3600, 0, 0.0, 2880),  # 80 %
        (3600, 0, 1.0, 3060),  # 85 %
        (3600, 600, 0.0, 2280),  # counted from the beginning
        (1000, 0, 0.0, 700),  # not later than the buffer before the end
        (3600, 3200, 0.0, 60),  # never sooner than the shortest period, as far as that and the buffer fit
        (300, 0, 0.0, 240),  # too short for period and buffer: a share of what is left
        (10, 0, 0.0, 8),
        (-5, 0, 0.0, RETRY_SECONDS),
        (0.01, 0, 0.0, 0.5),
    ],
)
def test_when_the_next_token_is_fetched(lifetime, age, random_fraction, expected):
    now = 1_000_000.0
    token = Token("t", now - age + lifetime, now - age)
    assert seconds_to_refresh(token, DEFAULTS, now, random_fraction) == pytest.approx(expected)


def test_of_an_unknown_expiry_nothing_follows():
    assert seconds_to_refresh(Token("t"), DEFAULTS, 0.0, 0.0) is None


# ---- fetching


def test_the_first_token_is_fetched_when_it_is_needed_and_kept(refreshers):
    refresher, source = refreshers(lambda: good("one"))
    assert source.calls == 0
    assert [refresher.token().value for _ in range(5)] == ["one"] * 5
    assert source.calls == 1


def test_it_is_fetched_on_another_thread(refreshers):
    names = []

    def give():
        names.append((threading.current_thread().name, threading.current_thread().daemon))
        return good()

    refresher, _ = refreshers(give)
    refresher.token()
    assert names == [("penstock-token-1", True)]


def test_all_who_wait_share_one_fetch(refreshers):
    release = threading.Event()

    def give():
        release.wait(60)
        return good()

    refresher, source = refreshers(give)
    got = []
    waiting = [threading.Thread(target=lambda: got.append(refresher.token().value)) for _ in range(5)]
    for thread in waiting:
        thread.start()
    wait_until(lambda: source.calls == 1)
    time.sleep(0.02)
    release.set()
    for thread in waiting:
        thread.join(60)
    assert got == ["t"] * 5
    assert source.calls == 1


def test_the_next_one_is_there_before_the_old_one_expires(refreshers):
    numbers = iter(range(100))
    refresher, source = refreshers(lambda: good(f"t{next(numbers)}"), plan=lambda *_: 0.02)
    assert refresher.token().value == "t0"
    wait_until(lambda: source.calls >= 3)
    assert refresher.token().value != "t0"


def test_an_expired_token_is_replaced_before_it_is_used(refreshers):
    tokens = [good("old", -1), good("new")]
    refresher, source = refreshers(lambda: tokens.pop(0))
    assert refresher.token().value == "old"  # it is all there is: the broker decides
    assert refresher.token().value == "new"
    assert source.calls == 2


def test_a_token_without_expiry_is_fetched_for_each_authentication(refreshers):
    numbers = iter(range(100))
    refresher, _ = refreshers(lambda: Token(f"t{next(numbers)}"))
    assert [refresher.token().value for _ in range(3)] == ["t0", "t1", "t2"]


def test_a_token_that_was_refused_is_fetched_anew(refreshers):
    numbers = iter(range(100))
    refresher, _ = refreshers(lambda: good(f"t{next(numbers)}"), quite_new_seconds=0.0)
    first = refresher.token()
    refresher.refused(first)
    second = refresher.token()
    assert (first.value, second.value) == ("t0", "t1")
    refresher.refused(first)  # a token that was replaced meanwhile
    assert refresher.token() is second


def test_a_token_that_was_refused_while_it_is_new_is_kept(refreshers):
    refresher, source = refreshers(good, quite_new_seconds=3600.0)
    refresher.refused(refresher.token())
    refresher.token()
    assert source.calls == 1


# ---- failing


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RuntimeError("client_secret=hunter2 is wrong"), "the scripted source failed: RuntimeError"),
        (BadTokenError("the token is empty"), "gave no token that can be used: the token is empty"),
        (NoTokenError("the OIDC provider at x: it answered 401"), "it answered 401"),
        (SystemExit(3), "SystemExit"),
        (KeyError(), "KeyError"),
    ],
)
def test_a_provider_that_raises(refreshers, error, text):
    def give():
        raise error

    refresher, source = refreshers(give)
    with pytest.raises(AuthenticationError, match="there is no token: ") as caught:
        refresher.token()
    assert text in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert caught.value.mechanism == "OAUTHBEARER"
    assert caught.value.__cause__ is None
    assert source.calls == 1


def test_it_works_again_when_the_provider_does(refreshers, monkeypatch):
    monkeypatch.setattr(refresh, "FIRST_PAUSE", 0.0)
    broken = [RuntimeError("down"), RuntimeError("down")]

    def give():
        if broken:
            raise broken.pop()
        return good()

    refresher, _ = refreshers(give)
    for _ in range(2):
        with pytest.raises(AuthenticationError, match="RuntimeError"):
            refresher.token()
    assert refresher.token().value == "t"


def test_a_provider_that_fails_is_not_asked_again_at_once(refreshers, monkeypatch):
    now = 0.0
    monkeypatch.setattr(refresh.time, "monotonic", lambda: now)

    def give():
        if now < 20:
            raise NoTokenError(f"it answered 401 at {now}")
        return good()

    refresher, source = refreshers(give)
    asked_at: list[float] = []
    while now < 20:
        with pytest.raises(AuthenticationError) as caught:
            refresher.token()
        if source.calls > len(asked_at):
            asked_at.append(now)
        assert f"401 at {asked_at[-1]}" in str(caught.value), (
            "the latest failure is told, also without a fetch"
        )
        now += 0.25
    assert asked_at == [0, 0.5, 1.5, 3.5, 7.5, 12.5, 17.5]
    now = 22.5
    assert refresher.token().value == "t"
    assert refresher._failed == 0


def test_the_old_token_serves_while_the_provider_is_down(refreshers):
    answers = [good("old")]

    def give():
        if answers:
            return answers.pop()
        raise RuntimeError("down")

    refresher, source = refreshers(give, plan=lambda *_: 0.01)
    assert refresher.token().value == "old"
    wait_until(lambda: source.calls >= 2)
    assert refresher.token().value == "old"


def test_a_provider_that_hangs(refreshers):
    release = threading.Event()
    refresher, source = refreshers(lambda: (release.wait(60), good())[1], patience=0.05)
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(AuthenticationError, match=r"has not given a token within \d+\.\d s"):
            refresher.token()
    assert time.monotonic() - began < 30
    wait_until(lambda: source.calls == 1)
    release.set()
    wait_until(lambda: refresher._token is not None)
    assert refresher.token().value == "t"


def test_what_stands_in_the_way_is_told_while_it_lasts(refreshers):
    release = threading.Event()
    source = Scripted(lambda: (release.wait(60), good())[1])
    source.trouble = "it answered 503"
    refresher, _ = refreshers(source, patience=0.05)
    with pytest.raises(AuthenticationError, match="it answered 503"):
        refresher.token()
    release.set()


def test_a_provider_that_is_stuck_is_asked_again_on_another_thread(refreshers):
    stuck = threading.Event()
    first = threading.Event()

    def give():
        if not first.is_set():
            first.set()
            stuck.wait(60)
            return good("late")
        return good("new")

    refresher, source = refreshers(give, patience=0.05, stuck_seconds=0.01)
    with pytest.raises(AuthenticationError):
        refresher.token()
    wait_until(first.is_set)
    time.sleep(0.02)  # until it counts as stuck
    refresher._patience = 60.0
    assert refresher.token().value == "new"
    stuck.set()
    wait_until(lambda: source.left == 1)
    assert refresher.token().value == "new"  # what came late does not count


def test_threads_that_are_stuck_have_a_limit(refreshers):
    release = threading.Event()
    refresher, source = refreshers(lambda: (release.wait(60), good())[1], patience=0.005, stuck_seconds=0.0)
    for _ in range(20):
        with pytest.raises(AuthenticationError):
            refresher.token()
    assert source.calls <= 6
    release.set()


def test_threads_that_were_stuck_and_came_back_do_not_count(refreshers):
    hanging: list[threading.Event] = []

    def give():
        hanging.append(threading.Event())
        hanging[-1].wait(60)
        raise RuntimeError("at last")

    refresher, source = refreshers(give, patience=0.005, stuck_seconds=0.0)
    for number in range(1, 20):
        with pytest.raises(AuthenticationError):
            refresher.token()
        wait_until(lambda number=number: len(hanging) == number)
        if number > 2:
            hanging[number - 3].set()
            wait_until(lambda number=number: source.left == number - 2)
    for event in hanging:
        event.set()


def test_a_provider_that_hung_as_often_as_may_be_is_asked_again_after_a_while(refreshers, monkeypatch):
    release = threading.Event()
    state = {"hangs": True}
    hung = []

    def give():
        if state["hangs"]:
            hung.append(1)
            release.wait(60)
        return good("after all")

    refresher, source = refreshers(give, patience=0.005, stuck_seconds=0.0)
    for _ in range(20):
        with pytest.raises(AuthenticationError):
            refresher.token()
    wait_until(lambda: len(hung) == refresher._generation)  # all that were started hang
    before = source.calls
    state["hangs"] = False
    with pytest.raises(AuthenticationError):
        refresher.token()
    assert source.calls == before
    later = time.monotonic() + FIRST_PAUSE
    monkeypatch.setattr(refresh.time, "monotonic", lambda: later)
    refresher._patience = 60.0
    assert refresher.token().value == "after all"
    monkeypatch.undo()
    release.set()


def test_without_a_thread_the_caller_fetches_the_token_and_the_next_thread_is_tried(refreshers, monkeypatch):
    where = []

    def give():
        where.append(threading.current_thread().name)
        return Token("t")  # good for one authentication

    def refuse(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    refresher, source = refreshers(give)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(2):
            assert refresher.token().value == "t"
        assert where == [threading.current_thread().name] * 2
        assert source.left == 2
    assert refresher.token().value == "t"
    assert where[2] == "penstock-token-3"


def test_without_a_thread_a_provider_that_fails_is_told(refreshers, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    def give():
        raise RuntimeError("down")

    refresher, _ = refreshers(give)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(AuthenticationError, match=r"RuntimeError \(raised in give"):
        refresher.token()
    monkeypatch.undo()


def test_a_failure_is_told_once_and_so_is_its_end(refreshers, caplog, monkeypatch):
    monkeypatch.setattr(refresh, "FIRST_PAUSE", 0.0)
    caplog.set_level(logging.DEBUG, "penstock.security")
    state = {"broken": True}

    def give():
        if state["broken"]:
            raise RuntimeError("down")
        return good()

    refresher, _ = refreshers(give)
    for _ in range(5):
        with pytest.raises(AuthenticationError):
            refresher.token()
    state["broken"] = False
    refresher.token()
    wait_until(lambda: any("again" in record.getMessage() for record in caplog.records))
    levels = [record.levelname for record in caplog.records]
    assert levels.count("WARNING") == 0, "whoever needed the token tells"
    assert levels.count("INFO") == 2
    assert "raised in give" in caplog.text


# ---- ending


def test_close_releases_those_who_wait(refreshers):
    release = threading.Event()
    refresher, source = refreshers(lambda: (release.wait(60), good())[1])
    seen = []

    def wait():
        try:
            refresher.token()
        except AuthenticationError as error:
            seen.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: source.calls == 1)
    refresher.close()
    thread.join(60)
    assert "the client is closed" in seen[0]
    assert source.stopped == 1
    release.set()
    wait_until(lambda: source.left == 1)


def test_close_ends_the_thread_and_no_other_starts(refreshers):
    refresher, source = refreshers(good)
    refresher.token()
    refresher.close()
    wait_until(lambda: source.left == 1)
    with pytest.raises(AuthenticationError, match="closed"):
        refresher.token()
    assert source.calls == 1


def test_close_takes_no_lock_and_no_token_is_kept_that_comes_meanwhile(refreshers, monkeypatch):
    """A finalizer of a client that was forgotten calls it, on whatever thread."""
    refresher, _ = refreshers(good)
    refresher.token()
    with refresher._lock:
        refresher.close()
    late, _ = refreshers(good)
    monotonic = time.monotonic

    def close_under_the_lock() -> float:
        if inside() and late._fetching_since is not None:
            late.close()
        return monotonic()

    monkeypatch.setattr(refresh.time, "monotonic", close_under_the_lock)
    with pytest.raises(AuthenticationError, match="the client is closed"):
        late.token()
    wait_until(lambda: not late._running)
    assert refresher._token is None
    assert late._token is None


def test_nothing_is_logged_under_the_lock(refreshers, monkeypatch):
    told: list[bool] = []

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    refresher, _ = refreshers(good)
    monkeypatch.setattr(refresh, "tell", lambda *args, **fields: told.append(inside()))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert refresher.token().value == "t"
    assert told == [False]
