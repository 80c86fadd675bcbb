# SPDX-License-Identifier: Apache-2.0
"""The steps are told to a hook, and nothing happens unless one is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.sink import hooks
from penstock.sink.hooks import HOOK_VARIABLE, Step, current_hook, reached

CALLS: list[tuple[Step, Mapping[str, Any]]] = []


def note(step: Step, facts: Mapping[str, Any]) -> None:
    CALLS.append((step, facts))


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "_hooks", {})
    monkeypatch.delenv(HOOK_VARIABLE, raising=False)
    CALLS.clear()


def test_without_a_hook_nothing_happens() -> None:
    reached(Step.PREPARED, anything=1)
    assert current_hook() is None


def test_a_hook_gets_step_and_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOOK_VARIABLE, f"{__name__}:note")
    reached(Step.AFTER_DECISION, batch_id=3)
    monkeypatch.delenv(HOOK_VARIABLE)  # read once
    reached(Step.AFTER_DONE)
    assert [step for step, _ in CALLS] == [Step.AFTER_DECISION, Step.AFTER_DONE]
    assert CALLS[0][1] == {"batch_id": 3}


@pytest.mark.parametrize("wrong", ["nowhere", "no.such.module:f", "os:no_such_function"])
def test_a_hook_that_does_not_exist_is_told(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv(HOOK_VARIABLE, wrong)
    with pytest.raises(ConfigError, match=HOOK_VARIABLE):
        reached(Step.PREPARED)
