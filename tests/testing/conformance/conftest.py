# SPDX-License-Identifier: Apache-2.0
"""Holds the dialogues of the cases with both clusters, compares, and shows what each of them said."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from testing.conformance.answers import Normaliser, brief, differences, whole
from testing.conformance.cases import Case, Same
from testing.conformance.raw import Names, Raw

from penstock.devbroker import KAFKA_VERSION, DevCluster
from penstock.protocol.messages import FIND_COORDINATOR
from penstock.protocol.schema import ApiSchema
from penstock.testing import ClusterSettings, FakeKafka

_SIDE_WIDTH = 64
_TOPICS_AT_ONCE = 40
# As many as the development broker has: a description of a transaction names the partition of a group.
_COORDINATOR_SLOTS = 4


def fresh_names() -> Names:
    stem = uuid.uuid4().hex[:10]
    return Names(f"t-{stem}", f"x-{stem}", f"g-{stem}", int(time.time() * 1000))


@pytest.fixture(scope="session")
def kafka_address(dev_cluster: DevCluster) -> str:
    """A real broker, whose coordinators have been called for: they are made when they are first needed."""
    address = dev_cluster.bootstrap_servers.split(",")[0]
    names = fresh_names()
    raw = Raw(address, names)
    for key_type, key in ((1, names.transactional_id), (0, names.group)):
        raw.call(FIND_COORDINATOR, {"coordinator_keys": [key], "key_type": key_type})
    # The first id of all is 0, which other answers have where they know of none.
    raw.init(transactional_id=None)
    raw.close()
    return address


@pytest.fixture(scope="session")
def fake_address() -> Iterator[str]:
    settings = ClusterSettings(coordinator_slots=_COORDINATOR_SLOTS)
    with FakeKafka(release="4.3", settings=settings) as running:
        yield running.bootstrap_servers


class Answered(NamedTuple):
    """An answer, made comparable."""

    api: ApiSchema
    version: int
    answer: Any


class Said(NamedTuple):
    """What both answered to what a case is about."""

    case: Case
    ours: list[Any]
    real: list[Any]


_SAID = pytest.StashKey[list[Said]]()


class TopicPool:
    """Topics made ahead on both clusters, many at a time: one by one they would take most of the run."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._ready: list[str] = []

    def take(self) -> str:
        """The name of a topic that nobody has used."""
        if not self._ready:
            self._ready = [fresh_names().topic for _ in range(_TOPICS_AT_ONCE)]
            for address in self._addresses:
                raw = Raw(address, fresh_names())
                raw.make_topics(self._ready)
                raw.close()
        return self._ready.pop()


@pytest.fixture(scope="session")
def topic_pool(kafka_address: str, fake_address: str) -> TopicPool:
    return TopicPool((kafka_address, fake_address))


@pytest.fixture
def same(
    kafka_address: str, fake_address: str, topic_pool: TopicPool, request: pytest.FixtureRequest
) -> Same:
    """Give a function that holds a dialogue with both, and compares all that they answered."""
    said = request.config.stash.setdefault(_SAID, [])

    def run(case: Case) -> None:
        names = fresh_names()
        if case.needs_topic:
            names = replace(names, topic=topic_pool.take())
        real = hold(case, Raw(kafka_address, names))
        ours = hold(case, Raw(fake_address, names))
        said.append(Said(case, about(case, ours), about(case, real)))
        assert [call[:2] for call in ours] == [call[:2] for call in real], (
            "the dialogue itself went otherwise"
        )
        found = [
            f"{api.name} v{version} {line}"
            for (api, version, answer), (_, _, our_answer) in zip(real, ours, strict=True)
            for line in differences(answer, our_answer)
        ]
        if case.difference is None:
            assert not found, "\n" + "\n".join(found)
        else:
            assert found, f"no difference, although one is on the list: {case.difference}"

    return run


def hold(case: Case, raw: Raw) -> list[Answered]:
    """Hold the dialogue of a case; all answers, made comparable."""
    try:
        if case.needs_topic:
            raw.use_topic(raw.names.topic)
        case.scenario(raw, case.version)
    finally:
        raw.close()
    answers = Normaliser(raw.names.now_ms).answers(raw.calls)
    return [Answered(call.api, call.version, answer) for call, answer in zip(raw.calls, answers, strict=True)]


def about(case: Case, answers: list[Answered]) -> list[Any]:
    """The answers that the case is about."""
    found = [answer for api, version, answer in answers if (api, version) == (case.api, case.version)]
    assert found, "the case does not ask what it is about"
    return found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what both answered, a line for each case; with -v all of it."""
    said = config.stash.get(_SAID, [])
    if not said:
        return
    terminalreporter.section(f"the fake and Apache Kafka {KAFKA_VERSION}, asked the same")
    for case, ours, real in sorted(
        said, key=lambda row: (row.case.api.name, row.case.version, row.case.name)
    ):
        if config.get_verbosity() > 0:
            shown = ["; ".join(map(whole, side)) for side in (ours, real)]
        else:
            shown = [
                _cut("; ".join(brief(case.api.response, each) for each in side)) for side in (ours, real)
            ]
        note = f" | differs: {case.difference}" if case.difference else ""
        terminalreporter.line(f"{case}: fake {shown[0]} | kafka {shown[1]}{note}")


def _cut(text: str) -> str:
    return text if len(text) <= _SIDE_WIDTH else text[: _SIDE_WIDTH - 3] + "..."
