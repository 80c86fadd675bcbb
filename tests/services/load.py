# SPDX-License-Identifier: Apache-2.0
"""Requests at a fixed rate, on as many connections as need be up to a limit, and what was answered to each."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

NO_ANSWER = 0  # as a status: the connection ended before, or could not be opened
_TICK_SECONDS = 0.005
# Requests without an answer, at most. A client that asks faster than a busy machine can answer would run out of
# descriptors.
_MOST_OPEN = 1000


@dataclass
class Outcome:
    """What became of all requests.

    Attributes:
        statuses: by request number; NO_ANSWER where there was none.
        seconds: how long each took that was answered.
        most_late: seconds by which a request was sent after it was due, at most.
        took: seconds until the last request was sent.
    """

    statuses: dict[int, int] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    most_late: float = 0.0
    took: float = 0.0

    def with_status(self, *wanted: int) -> list[int]:
        return [number for number, status in self.statuses.items() if status in wanted]


class Load:
    """Sends request 0, 1, 2, ... to a server on this machine.

    Args:
        make: the path and the body of a request, by its number.
    """

    def __init__(self, port: int, make: Callable[[int], tuple[str, object]]) -> None:
        self._port = port
        self._make = make
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._opened: list[asyncio.StreamWriter] = []
        self._open = 0
        self._marks: dict[int, asyncio.Event] = {}
        self.outcome = Outcome()

    async def run(self, rate: int, count: int) -> Outcome:
        """Send so many requests, one after another as they are due, and wait for all answers."""
        began = time.monotonic()
        sent = 0
        async with asyncio.TaskGroup() as group:
            while sent < count:
                passed = time.monotonic() - began
                while sent <= passed * rate and sent < count and self._open < _MOST_OPEN:
                    self.outcome.most_late = max(self.outcome.most_late, passed - sent / rate)
                    self._open += 1
                    group.create_task(self._ask(sent))
                    sent += 1
                    if sent in self._marks:
                        self._marks[sent].set()
                await asyncio.sleep(_TICK_SECONDS)
            self.outcome.took = time.monotonic() - began
        for writer in self._opened:
            writer.close()
            with suppress(OSError):  # the server was first
                await writer.wait_closed()
        return self.outcome

    def mark(self, count: int) -> asyncio.Event:
        """What is set when so many requests were sent. To be asked for before `run`."""
        return self._marks.setdefault(count, asyncio.Event())

    async def _ask(self, number: int) -> None:
        try:
            await self._ask_and_note(number)
        finally:
            self._open -= 1

    async def _ask_and_note(self, number: int) -> None:
        path, body = self._make(number)
        text = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(text)}\r\n\r\n"
        )
        started = time.monotonic()
        try:
            connection = self._take_idle() or await self._connect()
            status, stays = await _exchange(*connection, head.encode() + text)
        except (OSError, asyncio.IncompleteReadError):
            self.outcome.statuses[number] = NO_ANSWER
            return
        self.outcome.statuses[number] = status
        self.outcome.seconds[number] = time.monotonic() - started
        if stays:
            self._idle.append(connection)

    def _take_idle(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """A connection that the server has not closed: it does so with those that were not used for some seconds."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and reader.exception() is None:
                return reader, writer
        return None

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection = await asyncio.open_connection("127.0.0.1", self._port)
        self._opened.append(connection[1])
        return connection


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[int, bool]:
    """The status of the answer, and whether the connection stays open."""
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").lower()
    length, stays = 0, True
    for line in head.split("\r\n")[1:]:
        name, _, value = line.partition(":")
        if name == "content-length":
            length = int(value)
        elif name == "connection" and value.strip() == "close":
            stays = False
    await reader.readexactly(length)
    return int(head.split(" ", 2)[1]), stays
