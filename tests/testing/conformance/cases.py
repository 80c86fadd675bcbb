# SPDX-License-Identifier: Apache-2.0
"""Cases: small dialogues in raw requests that are held with the fake and with Kafka, each filed under one API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType

from testing.conformance.raw import Raw

from penstock.protocol.schema import ApiSchema

Scenario = Callable[[Raw, int], None]

# Where Kafka answers otherwise, and the fake is to stay as it is. Such a case must differ, or it has no place here.
DELIBERATE = {
    (
        "Produce",
        "unknown bit",
    ): "Kafka ignores attributes it does not know; a producer that sets them is wrong",
    ("Produce", "largest timestamp"): "Kafka repairs the batch; a producer that needs it is wrong",
    ("Produce", "broker's time"): "Kafka takes the bit off; a producer that sets it is wrong",
    ("Produce", "codec 6"): "Kafka fails with UNKNOWN_SERVER_ERROR, the fake says what is wrong",
}
# Cannot be asked: to null records Kafka never answers at all, and the connection stays busy; the fake refuses them.
UNANSWERED = {"null"}


@dataclass(frozen=True)
class Case:
    """One dialogue, in one version of the API it is about."""

    api: ApiSchema
    version: int
    name: str
    scenario: Scenario
    needs_topic: bool

    def __str__(self) -> str:
        return f"{self.api.name} v{self.version} {self.name}"

    @property
    def difference(self) -> str | None:
        """Why the answers are to differ, if they are."""
        return DELIBERATE.get((self.api.name, self.name))


Same = Callable[[Case], None]  # holds the dialogue with both, and compares


class Cases:
    """The cases of one API.

    Args:
        needs_topic: a topic of two partitions is there before the dialogue begins.
    """

    def __init__(self, api: ApiSchema, *, needs_topic: bool = True) -> None:
        self.api = api
        self._needs_topic = needs_topic
        self._cases: list[Case] = []

    def __iter__(self) -> Iterator[Case]:
        return iter(self._cases)

    def __len__(self) -> int:
        return len(self._cases)

    def add(self, name: str, scenario: Scenario, *versions: int) -> None:
        """File a dialogue, once for each version; without any, for the highest."""
        for version in versions or (self.api.max_version,):
            self._cases.append(Case(self.api, version, name, scenario, self._needs_topic))

    def case(self, name: str, *versions: int) -> Callable[[Scenario], Scenario]:
        """File the decorated dialogue."""

        def file(scenario: Scenario) -> Scenario:
            self.add(name, scenario, *versions)
            return scenario

        return file


def cases_of(module: ModuleType) -> list[Case]:
    """The cases that a module has filed."""
    return [case for value in vars(module).values() if isinstance(value, Cases) for case in value]
