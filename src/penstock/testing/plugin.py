# SPDX-License-Identifier: Apache-2.0
"""What the pytest fixtures `kafka` and `real_kafka` do; the fixtures themselves are in `pytest_penstock`.

pytest loads the fixtures at the start of every run, and this module, with all that it needs, for the first test that
asks for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from penstock.devbroker import DevBrokerError, DevCluster
from penstock.devbroker.machine import find_java

if TYPE_CHECKING:
    from penstock.testing.server import FakeKafka

MARKER = "kafka"


def fake_kafka(request: pytest.FixtureRequest) -> FakeKafka:
    """A fake cluster that is not started yet, made with what the test asks for."""
    # Here and not above: a test that asks for a real broker has no use for the fake one.
    from penstock.testing.refused import Refused
    from penstock.testing.server import FakeKafka

    options = fake_kafka_options(request)
    try:
        return FakeKafka(**options)
    except (TypeError, ValueError, Refused) as error:
        _refuse(f"the fixture '{MARKER}' cannot be made with {_shown(options)}: {error}")


def fake_kafka_options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The arguments of FakeKafka for a test: of the markers on module, class and function, then of the parameter.

    Each overrides the ones before it, argument by argument.
    """
    options: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers(MARKER))):
        if marker.args:
            _refuse(f"@pytest.mark.{MARKER} takes named arguments only, not {marker.args!r}")
        options |= marker.kwargs
    parameter = getattr(request, "param", None)
    if parameter is None:
        return options
    if not isinstance(parameter, Mapping):
        _refuse(
            f"a parameter of the fixture '{MARKER}' is a dict such as {{'brokers': 3}}, not {parameter!r}"
        )
    return options | dict(parameter)


def real_kafka_or_skip(session: pytest.Session) -> DevCluster:
    """A real cluster that is not started yet; skips the test where no Java can run it.

    It has secured listeners when a test of the run that uses it is marked with a `security`. Only Java is a reason to
    skip. That Kafka cannot be fetched or does not start is a failure, and is told as one.
    """
    try:
        find_java()
    except DevBrokerError as error:
        pytest.skip(f"real_kafka: {error}")
    return DevCluster(security="all" if any(map(_wants_secured_broker, session.items)) else None)


def _wants_secured_broker(item: pytest.Item) -> bool:
    is_real = "real_kafka" in getattr(item, "fixturenames", ())
    return is_real and any("security" in marker.kwargs for marker in item.iter_markers(MARKER))


def _shown(options: Mapping[str, Any]) -> str:
    return f"{MARKER}({', '.join(f'{name}={value!r}' for name, value in options.items())})"


def _refuse(reason: str) -> NoReturn:
    pytest.fail(reason, pytrace=False)
