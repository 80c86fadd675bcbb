# SPDX-License-Identifier: Apache-2.0
"""What watching costs: viewers ask as the page and as Prometheus do, and a run that nobody looked at is no figure."""

from __future__ import annotations

import re
from importlib import resources
from types import SimpleNamespace
from typing import Any

import pytest
from fix_bench import some_results

from bench.bars import BARS
from bench.budget import Plan
from bench.figures import judge
from bench.model import BenchError, Results
from bench.studies import Context, watching
from bench.studies.watching import AGAIN, BARE, CASE, PAGE, PROMETHEUS, Cost, Watching
from bench.viewer import KINDS, Viewer
from penstock import Producer
from penstock.testing import FakeKafka
from penstock.watching import glass_box

CPU = {BARE: 1.0, AGAIN: 1.02, PAGE: 1.04, PROMETHEUS: 1.03}  # seconds for a million records


def cost(who: str = BARE, records: int = 1_000_000) -> Cost:
    return Cost(records, started=10.0, ended=13.0, cpu_seconds=CPU[who], looking_seconds=0.03)


def page_script() -> str:
    return (
        resources.files("penstock.watching.glass_box").joinpath("page", "page.js").read_text(encoding="utf-8")
    )


class Stage:
    """Stands for broker and processes: every program sends a million records, and is looked at twice a second."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.arrived = 0
        self.lost = 0

    def watched_run(self, who: str, settings: object, seconds: float) -> tuple[Cost, list[float]]:
        self.order.append(who)
        self.arrived += cost().records + 1 - self.lost
        return cost(who), [] if who in (BARE, AGAIN) else [9.9, 10.5, 11.0, 11.5, 12.0, 12.5, 13.1]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage()
    monkeypatch.setattr(watching, "_watched_run", stage.watched_run)
    monkeypatch.setattr(watching, "create_topic", lambda *_: None)
    monkeypatch.setattr(watching, "delete_topics", lambda *_: None)
    monkeypatch.setattr(watching, "count_records", lambda *_: stage.arrived)
    return stage


def study(told: list[str]) -> Results:
    results = some_results()
    cluster: Any = SimpleNamespace(bootstrap_servers="127.0.0.1:9")
    nowhere: Any = None
    Watching().run(Context(Plan([], []), cluster, results, told.append, nowhere))
    return results


def test_nine_turns_have_everybody_once_and_begin_with_another(stage: Stage) -> None:
    study([])
    assert stage.order.pop(0) == BARE  # not counted
    turns = [stage.order[at : at + 4] for at in range(0, 36, 4)]
    assert all(sorted(turn) == sorted(CASE.contenders) for turn in turns)
    assert [turn[0] for turn in turns[:4]] == list(CASE.contenders)
    assert len(stage.order) == 36


def test_the_watched_programs_are_compared_with_the_bare_one(stage: Stage) -> None:
    told: list[str] = []
    results = study(told)
    bars = {bar.ours[1]: judge(results, bar) for bar in BARS if bar.ours[0] == CASE.name}
    assert {who: verdict.word for who, verdict in bars.items()} == {PAGE: "passes", PROMETHEUS: "falls short"}
    assert "bare against bare, which is noise: 1.020x the CPU per record (1.020-1.020)" in told[-3]
    assert "page against bare: 1.040x" in told[-2]
    assert "6.0 ms of CPU for a look" in told[-2]
    assert results.notes == [line.strip() for line in told[-3:]]


def test_a_program_that_loses_a_record_is_no_figure(stage: Stage) -> None:
    stage.lost = 1
    with pytest.raises(BenchError, match="1,000,000 of 1,000,001 records arrived"):
        study([])


@pytest.mark.parametrize(("who", "least"), [(PAGE, 4), (PROMETHEUS, 2)])
def test_too_few_looks_are_a_failure_and_looks_outside_the_clock_are_none(who: str, least: int) -> None:
    answered = [9.9, *(10.5 for _ in range(least)), 13.1]
    assert watching.check_looks(who, cost(), answered) == least
    with pytest.raises(BenchError, match=f"{least - 1} good answers, at least {least} were expected"):
        watching.check_looks(who, cost(), answered[:1] + answered[2:])
    assert watching.check_looks(BARE, cost(), []) == 0


# ------------------------------------------------------------------------------------------------ who looks


def test_the_viewer_asks_what_the_script_of_the_page_asks() -> None:
    script, kind = page_script(), KINDS[PAGE]
    assert re.findall(r"const PERIOD = (\d+);", script) == [str(int(1000 * kind.period))]
    assert re.findall(r"show\(await ask\(\"(\S+)\"\)\)", script) == [kind.path.removeprefix("/")]
    ((name, value),) = re.findall(r"const headers = \{ \"(\S+)\": \"(\S+)\" \};", script)
    assert kind.headers[name] == value
    assert "setTimeout(look, PERIOD)" in script  # after the answer
    assert kind.rests


def test_an_answer_that_tells_nothing_of_a_producer_does_not_count(kafka: FakeKafka) -> None:
    with Producer(bootstrap_servers=kafka.bootstrap_servers, glass_box="127.0.0.1:0"):  # without a partition
        (url,) = glass_box.urls()
        for kind in KINDS.values():
            viewer = Viewer(kind, url)
            viewer.open()
            viewer.look()
            viewer.close()
            assert viewer.answered == []


@pytest.mark.slow
@pytest.mark.parametrize("who", [BARE, PAGE, PROMETHEUS])
def test_the_programs_send_and_look_for_real(kafka: FakeKafka, who: str) -> None:
    kafka.create_topic("bench-watching", 6)
    found, answered = watching._watched_run(who, {"bootstrap.servers": kafka.bootstrap_servers}, 0.1)
    assert len(kafka.records("bench-watching")) == found.records + 1
    assert 0 <= found.looking_seconds < found.cpu_seconds
    assert bool(answered) == (who in KINDS)  # at least the look before the clock started
