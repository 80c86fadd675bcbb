# SPDX-License-Identifier: Apache-2.0
"""What is to happen at which step of the sink: rules that a test writes and that the hook, in Spark's processes, reads.

A rule names a step and, for steps of a task, the task; when the step is reached there, its actions are carried out in
order, once. Processes and the test meet through marks: files in the same folder.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Where rules and marks are, in the environment of every process of the job.
FOLDER_VARIABLE = "PENSTOCK_TEST_FAULTS"
WAIT_SECONDS = 300.0

_RULES = "rules.json"


@dataclass(frozen=True)
class Rule:
    """At this step, if everything named fits, do this.

    Attributes:
        step: name of a member of penstock.sink.hooks.Step.
        do: actions: "kill self", "kill jvm" (the Java process above, then this one), "freeze jvm", "thaw jvm",
            "raise", "touch NAME", "await NAME", "pause SECONDS", "without decisions" (the driver's commit ends the
            tasks' transactions and writes nothing down).
        batch: the batch's number.
        partition: the task's, in its stage.
        attempt: of the task.
        times: how often it happens; None for always.
    """

    step: str
    do: tuple[str, ...]
    batch: int | None = None
    partition: int | None = None
    attempt: int | None = None
    times: int | None = 1

    def fits(self, step: str, place: Mapping[str, Any]) -> bool:
        wanted = {"batch": self.batch, "partition": self.partition, "attempt": self.attempt}
        return self.step == step and all(
            value is None or place.get(name) == value for name, value in wanted.items()
        )


class Marks:
    """The folder in which the test and Spark's processes meet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @classmethod
    def of_this_process(cls) -> Marks:
        return cls(Path(os.environ[FOLDER_VARIABLE]))

    # ---- rules

    def begin(self, *rules: Rule) -> None:
        """Forget everything of the scenario before, and take these rules."""
        for path in self.folder.iterdir():
            path.unlink()
        text = json.dumps([dataclasses.asdict(rule) for rule in rules])
        draft = self.folder / "draft"
        draft.write_text(text)
        draft.rename(self.folder / _RULES)  # a process that reads right now must not see half of it

    def rules(self) -> list[Rule]:
        try:
            rows = json.loads((self.folder / _RULES).read_text())
        except FileNotFoundError:
            return []
        return [Rule(**(row | {"do": tuple(row["do"])})) for row in rows]

    def claim(self, number: int, times: int | None) -> bool:
        """Whether the rule of this number may fire once more; only one process is told so each time."""
        if times is None:
            return True
        return any(self._make(f"fired-{number}-{count}") for count in range(times))

    # ---- marks

    def touch(self, name: str) -> None:
        self._make(name)

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def wait(self, name: str, seconds: float = WAIT_SECONDS) -> None:
        wait_until(lambda: self.has(name), f"the mark {name!r}", seconds)

    def fired(self, number: int = 0) -> int:
        """How often a rule has fired."""
        return len(list(self.folder.glob(f"fired-{number}-*")))

    def _make(self, name: str) -> bool:
        try:
            (self.folder / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def killed_mark(java: int) -> str:
    """The mark that a Java process was killed: it is made first, for a process takes a while to be gone."""
    return f"killed-{java}"


def wait_until(
    condition: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS, pause: float = 0.02
) -> None:
    """Wait for it.

    Raises:
        TimeoutError: it did not come.
    """
    deadline = time.monotonic() + seconds
    never = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        never.wait(pause)
