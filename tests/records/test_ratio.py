# SPDX-License-Identifier: Apache-2.0
"""The estimate of compression ratios: quick to get worse, slow to get better."""

from __future__ import annotations

import pytest

from penstock.records.ratio import CompressionRatioEstimator

LZ4, ZSTD = 3, 4


@pytest.fixture
def ratios():
    return CompressionRatioEstimator()


def test_a_new_topic_is_expected_not_to_compress(ratios):
    assert ratios.estimate("orders", ZSTD) == 1.0


@pytest.mark.parametrize(
    ("expected", "observed", "learned"),
    [
        (1.0, 0.4, 0.995),  # better: one small step
        (1.0, 0.997, 0.997),  # better by less than a step: what was seen
        (0.5, 0.52, 0.55),  # worse: at least one large step
        (0.5, 0.9, 0.9),  # much worse: what was seen
        (0.5, 0.5, 0.5),
        (1.0, 1.02, 1.05),  # data that grows
        (0.5, 0.501, 0.55),
    ],
)
def test_one_observation(ratios, expected, observed, learned):
    ratios.reset("orders", ZSTD, expected)
    assert ratios.observe("orders", ZSTD, observed) == pytest.approx(learned, abs=1e-12)
    assert ratios.estimate("orders", ZSTD) == pytest.approx(learned, abs=1e-12)


def test_good_results_are_approached_in_steps_and_not_passed(ratios):
    for _ in range(60):
        ratios.observe("orders", ZSTD, 0.75)
    assert ratios.estimate("orders", ZSTD) == 0.75
    for _ in range(10):
        ratios.observe("orders", ZSTD, 0.25)
    assert ratios.estimate("orders", ZSTD) == pytest.approx(0.70)


def test_topics_codecs_and_producers_are_apart(ratios):
    ratios.observe("orders", ZSTD, 0.5)
    assert ratios.estimate("orders", LZ4) == 1.0
    assert ratios.estimate("payments", ZSTD) == 1.0
    assert CompressionRatioEstimator().estimate("orders", ZSTD) == 1.0


def test_reset_forgets(ratios):
    ratios.observe("orders", ZSTD, 0.5)
    ratios.reset("orders", ZSTD)
    assert ratios.estimate("orders", ZSTD) == 1.0
    ratios.reset("orders", ZSTD, 1.3)
    assert ratios.estimate("orders", ZSTD) == 1.3
