# SPDX-License-Identifier: Apache-2.0
"""The fake answers as Kafka does, in every dialogue."""

from __future__ import annotations

import pytest
from testing.conformance.cases import Case, Same
from testing.conformance.every_case import CASES


@pytest.mark.broker
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_fake_answers_as_kafka_does(same: Same, case: Case) -> None:
    same(case)
