# SPDX-License-Identifier: Apache-2.0
"""The suite itself, without a broker: there are enough cases, and the comparison sees what it must see."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from testing.conformance.answers import Normaliser, brief, differences, whole
from testing.conformance.cases import DELIBERATE
from testing.conformance.every_case import CASES
from testing.conformance.raw import PATIENCE, Call, error_codes
from testing.wire import Producer, batch

from penstock.protocol.messages import (
    API_BY_KEY,
    API_VERSIONS,
    END_TXN,
    FETCH,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from penstock.protocol.schema import ApiSchema
from penstock.testing import Code
from penstock.testing.apis import HANDLERS
from penstock.testing.apis.cluster import TELEMETRY

FEWEST = 5
NOW_MS = 1_900_000_000_000


# A real broker offers telemetry only with a receiver, which is not there: tests/watching/on_kafka.py has one.
@pytest.mark.parametrize(
    "api",
    [API_BY_KEY[key] for key in HANDLERS if API_BY_KEY[key] not in TELEMETRY],
    ids=lambda api: api.name,
)
def test_every_api_has_cases_in_its_lowest_and_highest_version(api: ApiSchema) -> None:
    own = [case for case in CASES if case.api is api]
    assert len(own) >= FEWEST
    versions = {case.version for case in own}
    highest = {
        API_VERSIONS: 4,  # nobody answers version 5; the case is that it is refused
        TXN_OFFSET_COMMIT: 5,  # no release has 6 yet
    }.get(api, api.max_version)
    lowest = 3 if api is PRODUCE else api.min_version  # Kafka 4 closes the connection at Produce 0 to 2
    assert {lowest, highest} <= versions


def test_every_case_is_known_by_its_name() -> None:
    assert [name for name, count in Counter(map(str, CASES)).items() if count > 1] == []


def test_every_deliberate_difference_belongs_to_a_case() -> None:
    assert set(DELIBERATE) <= {(case.api.name, case.name) for case in CASES}


def normalised(api: ApiSchema, version: int, *answers: dict[str, Any]) -> list[Any]:
    defaults = api.response.defaults()
    return Normaliser(NOW_MS).answers([Call(api, version, {}, defaults | answer) for answer in answers])


def init(producer_id: int, epoch: int = 0, **fields: Any) -> dict[str, Any]:
    return {"producer_id": producer_id, "producer_epoch": epoch} | fields


def test_ids_may_differ_but_not_which_of_them_are_the_same() -> None:
    real = normalised(INIT_PRODUCER_ID, 5, init(4000), init(4000), init(4001))
    assert real == normalised(INIT_PRODUCER_ID, 5, init(7), init(7), init(9))
    assert real != normalised(INIT_PRODUCER_ID, 5, init(7), init(8), init(9))
    assert real != normalised(INIT_PRODUCER_ID, 5, init(7), init(7), init(-1))


@pytest.mark.parametrize("fields", [{"error_code": 90}, {"throttle_time_ms": 5}, {"producer_epoch": 1}])
def test_every_other_field_is_compared(fields: dict[str, int]) -> None:
    (real,), (ours,) = (
        normalised(INIT_PRODUCER_ID, 5, init(1)),
        normalised(INIT_PRODUCER_ID, 5, init(1) | fields),
    )
    (line,) = differences(real, ours)
    assert next(iter(fields)) in line


def test_lists_of_other_lengths_differ() -> None:
    row = {"error_code": 0, "partition_index": 0}
    assert list(differences({"rows": [row]}, {"rows": [row, row]}))


def test_fields_of_other_versions_are_left_out() -> None:
    (answer,) = normalised(END_TXN, 4, {"producer_id": 5})
    assert answer == {"throttle_time_ms": 0, "error_code": 0}


def test_hosts_and_nodes_are_numbered() -> None:
    rows = [{"node_id": 3, "host": "a", "port": 1, "rack": None}]
    (answer,) = normalised(METADATA, 1, {"brokers": rows, "controller_id": 3})
    (broker,) = answer["brokers"]
    assert (broker["node_id"], answer["controller_id"], broker["host"]) == ("node 1", "node 1", "host 1")


def fetched(data: bytes) -> list[Any]:
    row = FETCH.response.fields[3].type.element.fields[2].type.element.defaults()  # type: ignore[union-attr]
    topic = {"topic": "t", "topic_id": bytes(16), "partitions": [row | {"records": data}]}
    return normalised(FETCH, 12, {"responses": [topic]})


def test_batches_are_compared_to_the_record() -> None:
    real = fetched(batch(2, Producer(5, 0), timestamp=NOW_MS))
    assert real == fetched(batch(2, Producer(8, 0), timestamp=NOW_MS + 1000))
    for other in (
        batch(2, Producer(5, 1), timestamp=NOW_MS),
        batch(2, Producer(5, 0), 1, timestamp=NOW_MS),
        batch(2, Producer(5, 0), timestamp=1000),
        batch([b"v0", b"other"], Producer(5, 0), timestamp=NOW_MS),
        batch(2, Producer(5, 0), timestamp=NOW_MS, transactional=True),
        batch(2, timestamp=NOW_MS),
    ):
        assert list(differences(real, fetched(other)))


def test_error_codes_are_found_wherever_they_are() -> None:
    answer = {
        "error_code": 0,
        "rows": [{"partition_error_code": Code.NOT_COORDINATOR, "of": {"error_code": 3}}],
    }
    assert error_codes(answer) == {Code.NOT_COORDINATOR, Code.UNKNOWN_TOPIC_OR_PARTITION}
    assert error_codes(answer) <= PATIENCE


def test_an_answer_in_one_line() -> None:
    (answer,) = normalised(INIT_PRODUCER_ID, 5, init(4000, 3, error_code=51))
    assert brief(INIT_PRODUCER_ID.response, answer) == "51 producer_id=producer 1 producer_epoch=3"
    assert whole(answer) == "{throttle_time_ms=0 error_code=51 producer_id=producer 1 producer_epoch=3}"
