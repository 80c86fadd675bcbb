# SPDX-License-Identifier: Apache-2.0
"""Who misspells an argument is told which one was meant."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.testing import ClusterSettings, Code, Fault, MockAsyncProducer, MockProducer


@pytest.mark.parametrize(
    ("make", "wrong", "text"),
    [
        (
            ClusterSettings,
            "autocreate_topics",
            "; did you mean 'auto_create_topics'? There are auto_create_topics, ",
        ),
        (ClusterSettings, "nonsense", ". There are auto_create_topics, "),
        (Fault, "errors", "; did you mean 'error'? There are api, broker, "),
        (Fault, "throttle", "; did you mean 'throttle_ms'?"),
    ],
)
def test_a_misspelt_argument_is_explained(make: Callable[..., Any], wrong: str, text: str) -> None:
    with pytest.raises(TypeError) as caught:
        make(**{wrong: 1})
    assert f"there is no argument {wrong!r}{text}" in str(caught.value)


@pytest.mark.parametrize("make", [MockProducer, MockAsyncProducer])
@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("autocomplete", "auto_complete"),
        ("Auto_Complete", "auto_complete"),
        ("topic", "topics"),
        ("ack", "acks"),
    ],
)
def test_an_argument_of_a_mock_is_meant_where_it_is_no_option(
    make: Callable[..., Any], wrong: str, meant: str
) -> None:
    with pytest.raises(ConfigError, match=f"unknown option '{wrong}'; did you mean '{meant}'") as caught:
        make(**{wrong: False})
    assert caught.value.option == wrong


def test_a_dataclass_whose_names_are_checked_is_one_as_before() -> None:
    settings = ClusterSettings(False, default_partitions=2)
    assert dataclasses.replace(settings, auto_create_topics=True) == ClusterSettings(default_partitions=2)
    assert next(iter(inspect.signature(ClusterSettings).parameters)) == "auto_create_topics"
    fault = Fault(api="Produce", error=Code.INVALID_RECORD)
    assert dataclasses.replace(fault, times=2) == Fault(api="Produce", error=87, times=2)
    with pytest.raises(TypeError, match="positional"):
        Fault("Produce")  # type: ignore[misc]
