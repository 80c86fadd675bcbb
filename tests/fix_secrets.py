# SPDX-License-Identifier: Apache-2.0
"""Searches all that the tests of security say for the secrets that they use; a test that shows one fails.

Searched are every log record, at DEBUG level and whatever level the test has set; what was printed, also by a process
that the test has run, and also where the test has taken it; and every error of this package that was made, with its
causes. Secrets are found where they are made: passwords, tokens, private keys.

Tests of security are those of some folders, and all others in whose file an option or a class of security is named. To
search the whole suite would take much longer, and find nothing: other tests have no secrets.
"""

from __future__ import annotations

import base64
import logging
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, quote_plus

import pytest

from penstock.config.kinds import Password
from penstock.errors import KafkaError

# What is searched in any case, below `tests`.
WATCHED: Final = ("security", "testing/security")
# A test with one of these words in its file has to do with security: of the command line, Spark, the sink or whatever.
NAMES: Final = re.compile(
    r"sasl[._]|security[._]protocol|ssl[._](?:key|trust)|proxy[._]url|FakeSecurity|\bPassword\(|\$\{(?:env|file):"
)
# Shorter ones are found in any text.
SHORTEST: Final = 6
# Secrets of tests that are words of our own texts.
WORDS: Final = frozenset({"secret", "password"})
_MOST_ERRORS: Final = 500
_MOST_CHAIN: Final = 20
_LONG: Final = 80
_HIDDEN: Final = "[a secret]"
_HERE: Final = Path(__file__).parent


class Watch:
    """What was said, and which secrets there are. Any thread adds to both.

    Args:
        known: secrets from the beginning.

    Attributes:
        is_watching: a test runs that is searched.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._lasting: set[str] = set()
        self._secrets: set[str] = set()
        self._said: list[str] = []
        # The first and the last: fuzzing makes thousands of one kind.
        self._first_errors: list[BaseException] = []
        self._last_errors: deque[BaseException] = deque(maxlen=_MOST_ERRORS)
        self.is_watching = False
        self._lock = threading.Lock()
        for secret in known:
            self.learn(secret)

    def learn(self, secret: str) -> None:
        """A secret was made. One that is older than the test stays one for all tests."""
        parts = secret.splitlines() if "PRIVATE KEY" in secret else [secret]
        found = {part for part in map(str.strip, parts) if len(part) >= SHORTEST and "-----" not in part}
        with self._lock:
            (self._secrets if self.is_watching else self._lasting).update(found - WORDS)

    def say(self, text: str) -> None:
        """Something was logged or printed."""
        if self.is_watching:
            with self._lock:
                self._said.append(text)

    def note_error(self, error: BaseException) -> None:
        """An error was made."""
        if self.is_watching:
            with self._lock:
                (self._first_errors if len(self._first_errors) < _MOST_ERRORS else self._last_errors).append(
                    error
                )

    def begin(self) -> None:
        """Begin a test: forget the secrets and texts of the one before."""
        self._forget()
        self.is_watching = True

    def end(self) -> list[str]:
        """The test has ended; the texts that show a secret, with the secret hidden."""
        self.is_watching = False
        with self._lock:
            errors = [*self._first_errors, *self._last_errors]
            said = [*self._said, *(text for error in errors for text in texts_of(error))]
            secrets = self._secrets | self._lasting
        self._forget()
        return list(findings(said, secrets))

    def _forget(self) -> None:
        with self._lock:
            self._secrets, self._said, self._first_errors = set(), [], []
            self._last_errors.clear()


def texts_of(error: BaseException) -> Iterator[str]:
    """All that an error and those behind it show."""
    left: BaseException | None = error
    for _ in range(_MOST_CHAIN):
        if left is None:
            return
        yield f"{type(left).__name__}: {left} {left!r} {getattr(left, '__notes__', '')}"
        left = left.__cause__ or (None if left.__suppress_context__ else left.__context__)


def forms_of(secret: str) -> set[str]:
    """A secret, and how it may be written."""
    data = secret.encode("utf-8", "surrogatepass")
    plain = {secret, repr(secret)[1:-1], repr(data)[2:-1]}
    encoded = {
        base64.b64encode(data).decode().rstrip("="),
        base64.urlsafe_b64encode(data).decode().rstrip("="),
    }
    escaped = {quote(data, safe=""), quote_plus(data)}
    return {form for form in plain | encoded | escaped if len(form) >= SHORTEST}


def findings(said: Iterable[str], secrets: Iterable[str]) -> Iterator[str]:
    """The places that show a secret, hidden."""
    forms = sorted({form for secret in secrets for form in forms_of(secret)}, key=len, reverse=True)
    if not forms:
        return
    for text in dict.fromkeys(said):
        hidden = text
        for form in forms:
            hidden = hidden.replace(form, _HIDDEN)
        at = hidden.find(_HIDDEN)
        if hidden != text:
            yield hidden[max(0, at - _LONG) :][: 2 * _LONG]


# ------------------------------------------------------------------------------------------ pytest


@cache
def is_watched(path: Path) -> bool:
    """Whether the tests of a file are searched."""
    if _HERE not in path.parents:
        return False
    place = path.relative_to(_HERE).as_posix()
    if place.startswith(tuple(f"{each}/" for each in WATCHED)):
        return True
    return NAMES.search(path.read_text(encoding="utf-8")) is not None


class SecretSearch:
    """The plugin. Learns of secrets and errors where they are made, and of log records before anybody filters them.

    Args:
        watch: what is said is told to it.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._patch = pytest.MonkeyPatch()

    def install(self) -> None:
        """Put it between the code under test and what it uses."""
        from penstock.security.oauth.token import Token
        from penstock.security.tls.material import Identity

        self._hear_logs()
        self._learn_from(Password, "__init__", lambda _, arguments: arguments[0])
        self._learn_from(Token, "__init__", lambda made, _: made.value)
        self._learn_from(Identity, "__new__", lambda _, arguments: arguments[0])
        self._learn_of_passwords_that_are_read_again()
        self._note_errors()
        self._hear_what_tests_take()

    def uninstall(self) -> None:
        """Undo all patches."""
        self._patch.undo()

    def _hear_logs(self) -> None:
        watch = self._watch
        is_enabled, call_handlers = logging.Logger.isEnabledFor, logging.Logger.callHandlers

        def enabled(logger: logging.Logger, level: int) -> bool:
            # Only the logger itself is told so: others ask in order to change the level.
            logs = watch.is_watching and sys._getframe(1).f_globals is vars(logging)
            return (logs and logger.name.startswith("penstock")) or is_enabled(logger, level)

        def handle(logger: logging.Logger, record: logging.LogRecord) -> None:
            watch.say(record.getMessage())
            error = record.exc_info[1] if record.exc_info else None
            if error is not None:
                watch.note_error(error)
            if is_enabled(logger, record.levelno):  # what the test itself wants to see
                call_handlers(logger, record)

        self._patch.setattr(logging.Logger, "isEnabledFor", enabled)
        self._patch.setattr(logging.Logger, "callHandlers", handle)

    def _learn_from(self, kind: Any, method: str, secret_of: Callable[[Any, list[Any]], Any]) -> None:
        make, watch = getattr(kind, method), self._watch

        def made(self: Any, *args: Any, **named: Any) -> Any:
            result = make(self, *args, **named)
            secret = secret_of(self, [*args, *named.values()])
            if isinstance(secret, str):
                watch.learn(secret)
            return result

        self._patch.setattr(kind, method, made)

    def _learn_of_passwords_that_are_read_again(self) -> None:
        read, watch = Password.value.fget, self._watch  # type: ignore[attr-defined]

        def value(self: Password) -> str:
            found: str = read(self)
            watch.learn(found)
            return found

        self._patch.setattr(Password, "value", property(value))

    def _note_errors(self) -> None:
        watch = self._watch

        def init(error: KafkaError, *args: Any) -> None:
            super(KafkaError, error).__init__(*args)
            watch.note_error(error)

        self._patch.setattr(KafkaError, "__init__", init)

    def _hear_what_tests_take(self) -> None:
        watch = self._watch
        take, end = pytest.CaptureFixture.readouterr, subprocess.CompletedProcess.__init__

        def taken(capture: pytest.CaptureFixture[Any]) -> Any:
            found = take(capture)
            for text in found:
                watch.say(str(text))
            return found

        def ended(process: subprocess.CompletedProcess[Any], *args: Any, **named: Any) -> None:
            end(process, *args, **named)
            for text in (process.stdout, process.stderr):
                if text:
                    watch.say(text if isinstance(text, str) else text.decode(errors="replace"))

        self._patch.setattr(pytest.CaptureFixture, "readouterr", taken)
        self._patch.setattr(subprocess.CompletedProcess, "__init__", ended)

    # ---- hooks

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if not is_watched(item.path):
            return (yield)  # all other tests run without it
        self.install()
        self._watch.begin()
        try:
            return (yield)
        finally:
            self._watch.end()
            self.uninstall()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "teardown" and is_watched(item.path):
            for _, text in report.sections:
                self._watch.say(text)
            shown = self._watch.end()
            if shown:
                report.outcome = "failed"
                report.longrepr = "\n".join(["a secret is shown:", *shown[:20]])
        return report


def pytest_configure(config: pytest.Config) -> None:
    from penstock.devbroker.security import USERS

    config.pluginmanager.register(SecretSearch(Watch(USERS.values())), "secret-search")
