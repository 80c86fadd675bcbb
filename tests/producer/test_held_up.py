# SPDX-License-Identifier: Apache-2.0
"""What flush and close say of records that they did not wait for: what is in the way."""

from __future__ import annotations

import logging

import pytest
from fix_patience import SOON, wait_until, why_it_waited

from penstock import Delivery, Producer
from penstock.errors import KafkaTimeoutError, NetworkError, NotEnoughReplicasError, ProducerClosedError
from penstock.testing import Code, FakeKafka, Fault

pytestmark = pytest.mark.slow


def away(kafka: FakeKafka, producer: Producer, caplog: pytest.LogCaptureFixture) -> Delivery:
    """A record for a broker that is gone; the producer has noticed."""
    producer.send("t", b"v").result(SOON)
    with caplog.at_level(logging.WARNING):
        kafka.stop_broker(0)
        delivery = producer.send("t", b"v")
        wait_until(lambda: "connection refused" in caplog.text)
    return delivery


def test_a_flush_whose_time_is_up_and_a_close_that_gives_up_say_what_is_in_the_way(caplog):
    with FakeKafka(topics={"t": 1}) as kafka, Producer(kafka.client_options()) as producer:
        delivery = away(kafka, producer, caplog)
        with pytest.raises(KafkaTimeoutError) as caught:
            producer.flush(0.01)
        text = str(caught.value)
        assert text.startswith(
            "flush() waited 0.01 s, and 1 record has no outcome yet: still on the way. The last trouble: "
        )
        assert "connection refused" in text
        assert isinstance(caught.value.__cause__, NetworkError)
        caplog.clear()
        producer.close(0.01)
    error = delivery.exception(SOON)
    assert isinstance(error, ProducerClosedError)
    assert "before the record was acknowledged. The last trouble: cannot connect" in str(error)
    assert isinstance(error.__cause__, NetworkError)
    (line,) = [line for line in caplog.messages if "gave up 1 record" in line]
    assert "the others were not. The last trouble: cannot connect" in line


def test_a_flush_whose_time_is_up_names_what_a_broker_has_answered():
    with (
        FakeKafka(topics={"t": 1}) as kafka,
        Producer(kafka.client_options(), retry_backoff_ms=10_000) as producer,
    ):
        kafka.add_fault(Fault(api="Produce", error=Code.NOT_ENOUGH_REPLICAS))
        producer.send("t", b"v")
        error = why_it_waited(producer, lambda: producer.flush(0.1))
        assert "NOT_ENOUGH_REPLICAS" in str(error)
        assert isinstance(error.__cause__, NotEnoughReplicasError)
        producer.close(0)
