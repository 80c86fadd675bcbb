# SPDX-License-Identifier: Apache-2.0
"""A service of the examples as a real process: started as its text says, asked by HTTP, ended by a signal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple, Self

FOLDER = Path(__file__).parents[2] / "examples" / "services"
START_SECONDS = 60.0
ANSWER_SECONDS = 60.0


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: Any


class Service:
    """One running service; what it prints is kept in a file.

    Args:
        command: a module that is run by this Python, and its arguments.
        environment: variables besides those of this process.
        ready: a pattern of the line that says it is ready; its group, if there is one, is the port.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path, ready: str) -> None:
        self._log = log
        self._ready = re.compile(ready)
        self.port = 0
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=FOLDER,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        try:
            self._wait_until_ready()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    def output(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def post(self, path: str, body: object) -> Answer:
        """One request on a connection of its own."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_SECONDS)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            return Answer(answer.status, dict(answer.getheaders()), json.loads(text) if text else None)
        finally:
            connection.close()

    def stop(self, seconds: float, code: int = 0) -> float:
        """Send SIGTERM and wait; how long it took.

        The process must end by itself, and well: with `code`. uvicorn, when it has ended all, raises the signal again.
        """
        started = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        try:
            found = self._process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"it did not end within {seconds} s:\n{self.output()}") from error
        took = time.monotonic() - started
        assert found == code, f"it ended with {found}:\n{self.output()}"
        return took

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while (found := self._ready.search(self.output())) is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"it is not ready:\n{self.output()}")
            time.sleep(0.05)
        if found.re.groups:
            self.port = int(found[1])

    def _kill(self) -> None:
        """Nothing of it is left, workers included."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
