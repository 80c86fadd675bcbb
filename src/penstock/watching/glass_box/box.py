# SPDX-License-Identifier: Apache-2.0
"""The pages of this process, and the producers on each.

A page belongs to the process, because its port does, and a producer asks for it by its address: producers with the same
address are on the same page. What the environment asks for is one page until the process ends; a page that only options
ask for ends with the last of its producers. A forked child has no page until it makes a producer of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock._events import Event, tell
from penstock._locks import new_lock
from penstock._version import __version__
from penstock.config.environment import GLASS_BOX, TOKEN, from_environment
from penstock.watching.glass_box import address as addresses
from penstock.watching.glass_box.address import BadAddress
from penstock.watching.glass_box.events import Events
from penstock.watching.glass_box.server import PageServer
from penstock.watching.glass_box.view import ProducerView

if TYPE_CHECKING:
    from penstock._ticket import Ticket
    from penstock.producer.assembly import ProducerParts

log = logging.getLogger("penstock.watching")

_numbers = itertools.count(1)


class GlassBox:
    """One page, and the producers that it shows.

    Args:
        address: where it is.
        token: what viewers must know; None: nothing.
        events: keeps what happens.
        lasting: it stays when its last producer is gone.

    Raises:
        BadAddress: it cannot be there.
    """

    def __init__(self, address: str, token: str | None, events: Events, *, lasting: bool) -> None:
        place = addresses.parse_address(address)
        addresses.check_token(place, token)
        self.lasting = lasting
        self.token = token
        self._views: dict[int, ProducerView] = {}  # copies of it are atomic
        self._events = events
        self._server = PageServer(place, token, self._answer)
        self.url = self._server.url
        self._process = os.getpid()
        self._note: Path | None = None
        self._not_noted: OSError | None = None
        try:
            self._note = addresses.write_note(self.url, token)
        except OSError as error:
            self._not_noted = error

    def announce(self) -> None:
        """Hear what is logged, and write to the log where the page is. Nobody holds a lock: the log has its own."""
        logging.getLogger("penstock").addHandler(self._events)
        if self._not_noted is not None:
            text, why = "`penstock top` cannot list the page at %s: %s", self._not_noted
            tell(log, logging.WARNING, Event.PAGE_NOT_LISTED, text, self.url, why, url=self.url, error=why)
        text = "what the producers of this process do can be seen at %s"
        tell(log, logging.INFO, Event.PAGE_STARTED, text, self.url, url=self.url)

    def add(self, parts: ProducerParts, thread: threading.Thread) -> int:
        """Show a producer; the number by which it is forgotten."""
        view = ProducerView(next(_numbers), parts, thread, self._events)
        self._views[view.number] = view
        return view.number

    def forget(self, number: int) -> bool:
        """A producer has ended; whether the page has ended with it."""
        view = self._views.pop(number, None)
        if view is not None:
            self._events.add("quiet", f"{view.client_id}: closed")
        if self._views or self.lasting:
            return False
        self.close()
        return True

    def close(self) -> None:
        """Show nothing any more; `remove_log_handler` follows."""
        self._server.close()
        if self._note is not None and self._process == os.getpid():
            with contextlib.suppress(OSError):
                self._note.unlink()

    def remove_log_handler(self) -> None:
        """Get no more messages of the log. The caller holds no lock."""
        logging.getLogger("penstock").removeHandler(self._events)

    def abandon(self) -> None:
        """This is the copy of a forked child."""
        self.remove_log_handler()
        self._server.abandon()

    # ---- what viewers ask; on their threads

    def _answer(self, path: str, given: Mapping[str, str]) -> Any:
        if path == "follow":
            return {"followed": self._follow(given), **self._state()}
        if path != "state":
            raise KeyError(path)
        return self._state()

    def _follow(self, given: Mapping[str, str]) -> int | None:
        """The number of what is followed; the state beside it may be a little older."""
        view = self._views[_number(given.get("producer", ""))]
        topic = given.get("topic")
        if topic is not None:
            return view.follower.start(topic, given.get("key"))
        view.follower.stop()
        return None

    def _state(self) -> dict[str, Any]:
        return {
            "at_ms": int(time.time() * 1000),
            "process": {
                "pid": os.getpid(),
                "program": addresses.program_name(),
                "version": __version__,
            },
            "producers": [view.state() for view in list(self._views.values())],
            "events": self._events.latest(),
        }


def _number(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("producer must be a number, as the state has it")
    return int(text)


# ---------------------------------------------------------------------------------------------- of the process


class _Process:
    """The pages of this process, by the addresses that were asked for."""

    def __init__(self) -> None:
        # While it is held nothing is logged, nor is the log changed: a handler, or who configures logging, may make a
        # producer, which comes here.
        self.lock: Any = new_lock()
        self.boxes: dict[str, GlassBox] = {}
        # Why pages could not be, by address and token; what was said before is said at DEBUG.
        self.refused: dict[tuple[str, str | None], str] = {}

    def forked(self) -> None:
        for box in self.boxes.values():
            box.abandon()
        self.lock = new_lock()
        self.boxes = {}
        self.refused = {}

    def close(self) -> None:
        boxes, self.boxes = self.boxes, {}
        for box in boxes.values():
            box.close()
            box.remove_log_handler()


_process = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.forked)
atexit.register(_process.close)


def show(option: str | None, parts: ProducerParts, thread: threading.Thread, ended: Ticket[None]) -> None:
    """Show a producer on the page that its option, or the environment, asks for; a page that cannot be is a warning.

    Args:
        option: the address; without it the environment counts.
        parts: the producer.
        thread: its I/O thread.
        ended: granted when that has ended.
    """
    address = option if option is not None else from_environment(GLASS_BOX)
    if address is None:
        return
    password = parts.config.glass_box_token
    token = password.value if password is not None else from_environment(TOKEN)
    process = _process
    to_say: list[Callable[[], None]] = []
    events = Events()  # for a new page; a handler takes a lock of the log when it is made
    with process.lock:
        box = _box(process, address, token, events, to_say, lasting=option is None)
        number = None if box is None else box.add(parts, thread)

    def forget(_: Ticket[None]) -> None:
        if box is None or number is None:
            return
        with process.lock:
            has_ended = box.forget(number)
            if has_ended:
                process.boxes.pop(address, None)
        if has_ended:
            box.remove_log_handler()

    if number is not None:
        ended.on_done(forget)
    for say in to_say:
        say()


def _box(
    process: _Process,
    address: str,
    token: str | None,
    events: Events,
    to_say: list[Callable[[], None]],
    *,
    lasting: bool,
) -> GlassBox | None:
    box = process.boxes.get(address)
    if box is not None:
        box.lasting = box.lasting or lasting
        if box.token != token:
            to_say.append(partial(_tell_of_the_token, box.url))
        return box
    why = process.refused.get((address, token))
    if why is not None:
        to_say.append(partial(_tell_of_the_failure, logging.DEBUG, why))
        return None
    try:
        box = process.boxes[address] = GlassBox(address, token, events, lasting=lasting)
    except BadAddress as error:
        process.refused[address, token] = str(error)
        to_say.append(partial(_tell_of_the_failure, logging.WARNING, str(error)))
        return None
    to_say.append(box.announce)
    return box


def _tell_of_the_failure(level: int, why: str) -> None:
    text = "the live page of this process (glass.box) cannot be shown: %s"
    tell(log, level, Event.PAGE_FAILED, text, why, option="glass.box", error=BadAddress.__name__)


def _tell_of_the_token(url: str) -> None:
    text = "the page at %s has the token of the producer that was made first"
    tell(log, logging.WARNING, Event.OPTION_WITHOUT_EFFECT, text, url, option="glass.box.token", url=url)


def urls() -> list[str]:
    """The pages of this process."""
    return [box.url for box in list(_process.boxes.values())]
