# SPDX-License-Identifier: Apache-2.0
"""The I/O thread from its first turn to its end, in virtual time: what it waits for, how long, and what it logs."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest
from network.fakes import api_versions_body
from producer.fakes_sender import Rig
from producer.fakes_txn import GateRig, opened

from penstock.errors import ProducerClosedError
from penstock.producer.io._sender_cy import AFTER_UNEXPECTED
from penstock.protocol.messages import (
    API_VERSIONS,
    END_TXN,
    GET_TELEMETRY_SUBSCRIPTIONS,
    PUSH_TELEMETRY,
    TXN_OFFSET_COMMIT,
)
from penstock.types import ProducerRecord

WITHOUT_COORDINATOR = "no answer of the transaction coordinator"
LIMIT = 5.0  # request.timeout.ms, in seconds


def close(rig: Rig) -> float:
    """Close without force, and wait for the end; how many seconds it took."""
    started = rig.clock.now()
    rig.parts.io_thread.initiate_close()
    rig.run_to_end()
    return rig.clock.now() - started


def with_limit() -> GateRig:
    """A producer in a transaction with a record that was acknowledged."""
    rig = opened(request_timeout_ms=round(LIMIT * 1000), delivery_timeout_ms=60_000)
    rig.acknowledge_all()
    rig.deliver(rig.send("t", b"a", partition=0))
    return rig


# ------------------------------------------------------------------------------------------------------- turns


def test_turns_that_fail_again_and_again_are_not_a_busy_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.know("t")
    gate = rig.parts.send_path.gate
    before_turn = gate.before_turn
    at: list[float] = []

    def fail(*args: Any) -> Any:
        if len(at) == 20:
            return before_turn(*args)
        at.append(rig.clock.now())
        raise RuntimeError("bad turn")

    monkeypatch.setattr(gate, "before_turn", fail)
    rig.acknowledge_all()
    delivery = rig.send("t", b"a")
    close(rig)
    assert delivery.result(0).offset == 0
    waits = [after - before for before, after in itertools.pairwise(at)]
    assert waits[2:] == pytest.approx([AFTER_UNEXPECTED] * 17)  # a wake-up may have ended the first waits


# --------------------------------------------------------------------------------------- the coordinator at the end


def test_a_close_ends_without_a_coordinator_that_does_not_confirm_the_abort(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = with_limit()
    rig.hold(END_TXN)
    assert close(rig) == pytest.approx(LIMIT, abs=0.1)
    assert rig.asked(END_TXN)
    assert caplog.text.count(WITHOUT_COORDINATOR) == 1
    assert rig.network.closed


@pytest.mark.parametrize("call", ["commit", "offsets"])
def test_where_the_coordinator_answers_no_call_it_is_asked_for_no_abort_either(
    caplog: pytest.LogCaptureFixture, call: str
) -> None:
    """The limit is over once, and not once more for the abort."""
    rig = with_limit()
    api = END_TXN if call == "commit" else TXN_OFFSET_COMMIT
    rig.hold(api, END_TXN)
    ticket = rig.manager.commit() if call == "commit" else rig.offsets_ticket({("t", 0): 5})
    rig.run_until(lambda: rig.held(api))
    assert close(rig) == pytest.approx(LIMIT, abs=0.1)
    assert False not in [body["committed"] for body in rig.asked(END_TXN)]
    with pytest.raises(ProducerClosedError, match="before the coordinator answered"):
        ticket.result  # noqa: B018
    assert caplog.text.count(WITHOUT_COORDINATOR) == 1


def test_a_call_that_is_under_way_gets_its_answer_before_the_close_aborts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The coordinator may take the whole limit for each of the two."""
    rig = with_limit()
    rig.hold(TXN_OFFSET_COMMIT, END_TXN)
    ticket = rig.offsets_ticket({("t", 0): 5})
    rig.run_until(lambda: rig.held(TXN_OFFSET_COMMIT))
    rig.network.after(0.8 * LIMIT, rig.answer_held, TXN_OFFSET_COMMIT)
    rig.network.after(1.6 * LIMIT, rig.answer_held, END_TXN)
    assert close(rig) == pytest.approx(1.6 * LIMIT, abs=0.1)
    assert ticket.result is None
    assert [body["committed"] for body in rig.asked(END_TXN)] == [False]
    assert rig.names()[-2:] == ["TxnOffsetCommit", "EndTxn"]
    assert WITHOUT_COORDINATOR not in caplog.text


# --------------------------------------------------------------------------------------------------- the last push


def subscribed(**options: Any) -> Rig:
    """A producer whose metrics are asked for; pushes get no answer."""
    rig = Rig(enable_metrics_push=True, **options)
    telemetry = {"GetTelemetrySubscriptions": (0, 0), "PushTelemetry": (0, 0)}
    rules = rig.brokers[0].rules
    rules[API_VERSIONS.key] = lambda _: api_versions_body(**telemetry)
    rules[GET_TELEMETRY_SUBSCRIPTIONS.key] = lambda _: {
        "throttle_time_ms": 0, "error_code": 0, "client_instance_id": bytes(15) + b"\1", "subscription_id": 1,
        "accepted_compression_types": [], "push_interval_ms": 60_000, "telemetry_max_bytes": 1_000_000,
        "delta_temporality": True, "requested_metrics": ["*"],
    }  # fmt: skip
    rig.know("t")
    telemetry_watch = rig.parts.telemetry
    assert telemetry_watch is not None
    rig.run_until(lambda: telemetry_watch.instance_id().done)
    return rig


def test_the_last_push_has_a_second() -> None:
    rig = subscribed()
    assert close(rig) == pytest.approx(1.0)
    assert [push.body["terminating"] for push in rig.seen(PUSH_TELEMETRY)] == [True]


def test_a_forced_close_ends_the_last_push() -> None:
    rig = subscribed()
    rig.network.after(0.25, rig.parts.io_thread.force_close)
    assert close(rig) == pytest.approx(0.25)
    assert len(rig.seen(PUSH_TELEMETRY)) == 1


def test_a_forced_close_pushes_nothing() -> None:
    rig = subscribed()
    rig.parts.io_thread.force_close()
    rig.run_to_end()
    assert rig.seen(PUSH_TELEMETRY) == []


# ------------------------------------------------------------------------------------------------------ the log


@pytest.mark.parametrize("logged", [False, True])
def test_records_that_are_given_up_are_logged_unless_another_thread_has_done_it(
    caplog: pytest.LogCaptureFixture, logged: bool
) -> None:
    rig = Rig(linger_ms=1000)
    rig.know("t")
    delivery = rig.send("t", b"a")
    rig.parts.io_thread.losses_logged = logged
    rig.parts.io_thread.force_close()
    rig.run_to_end()
    assert isinstance(delivery.exception(0), ProducerClosedError)
    assert caplog.text.count("gave up 1 record") == (0 if logged else 1)


def test_what_fails_at_the_end_is_logged_together_before_the_thread_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Records that could not be appended, in the middle of the last steps: they are counted until the very last one."""
    caplog.set_level(logging.WARNING)
    rig = Rig()
    for topic in ("nowhere", "neither"):  # as a finalizer sends
        later = rig.later(ProducerRecord(topic, b"v"))
        rig.parts.accumulator.deferred.put_aside(later, None, rig.config.max_block_ms / 1000)
    rig.parts.io_thread.force_close()
    rig.run_to_end()
    (line,) = [line for line in caplog.messages if "did not ask for the outcome" in line]
    # Which is freed first, and so counted first, is the garbage collector's choice.
    assert line.startswith(
        (
            "2 records for topics 'nowhere', 'neither' failed",
            "2 records for topics 'neither', 'nowhere' failed",
        )
    )
