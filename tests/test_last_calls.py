# SPDX-License-Identifier: Apache-2.0
"""Calls that end objects of the application: each once, in order, whatever Ctrl-C interrupts."""

from __future__ import annotations

import dis
import itertools
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from penstock._last_calls import LastCall, LastCalls


class Named:
    """Something to be closed."""

    def __init__(self, name: str, made: list[str], error: BaseException | None = None) -> None:
        self.name = name
        self.made = made
        self.error = error

    def close(self) -> None:
        self.made.append(self.name)
        if self.error is not None:
            raise self.error


def calls_to(made: list[str], errors: dict[str, BaseException], told: list[Any] | None = None) -> LastCalls:
    report: Callable[[Exception], object] = [].append if told is None else told.append
    return LastCalls([LastCall(Named(name, made, errors.get(name)).close, report) for name in "abc"])


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_an_error_of_one_is_told_and_keeps_no_other_from_being_made(name: str) -> None:
    made: list[str] = []
    told: list[Any] = []
    error = ValueError("planted")
    calls = calls_to(made, {name: error}, told)
    calls.make()
    calls.make()
    assert made == ["a", "b", "c"]
    assert told == [error]
    assert calls.left == 0


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_ctrl_c_in_one_keeps_no_other_from_being_made(name: str) -> None:
    made: list[str] = []
    calls = calls_to(made, {name: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        calls.make()
    calls.make()
    assert made == ["a", "b", "c"]


def interrupt_at(number: int, call: Callable[[], object]) -> bool:
    """Call something, with Ctrl-C at that place where the interpreter looks for it; whether there are so many places.

    It looks after calls and at the beginning of functions: of those of the module, and of the stack that it uses.
    """
    files = {LastCalls.make.__code__.co_filename, ExitStack.callback.__code__.co_filename}
    places = 0

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal places
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lasti in places_of(frame.f_code):
            places += 1
            if places == number:
                sys.settrace(before)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks for such a frame when tracing begins
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def places_of(code: Any) -> set[int]:
    """The instructions before which Ctrl-C is raised."""
    known = list(dis.get_instructions(code))
    return {
        after.offset
        for place, after in itertools.pairwise(known)
        if place.opname.startswith(("CALL", "RESUME"))
    }


def test_what_ctrl_c_leaves_is_made_by_the_next_call() -> None:
    number = 0
    interrupted = True
    while interrupted:
        number += 1
        made: list[str] = []
        calls = calls_to(made, {})
        interrupted = interrupt_at(number, calls.make)
        calls.make()
        assert made == ["a", "b", "c"], number
    assert number > 10
