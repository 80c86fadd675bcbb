# SPDX-License-Identifier: Apache-2.0
"""How well each topic compresses, learned from the batches sent so far.

A batch is closed by its size on the wire, which is only known once it is compressed. The estimate is cautious: it
follows a worse result at once and beyond, and a better one in small steps, because a batch that turns out too large
costs a split and one that turns out small costs little.
"""

from __future__ import annotations

from collections.abc import Container

INITIAL_RATIO = 1.0
STEP_WORSE = 0.05
STEP_BETTER = 0.005


class CompressionRatioEstimator:
    """Expected compressed size as a fraction of the raw one, per topic and codec; one for each producer.

    The I/O thread writes and application threads read. Each entry is one float behind one dictionary operation, so a
    reader sees the old value or the new one, and no lock is needed.
    """

    __slots__ = ("_ratios",)

    def __init__(self) -> None:
        self._ratios: dict[tuple[str, int], float] = {}  # written by the I/O thread alone

    def estimate(self, topic: str, codec_id: int) -> float:
        """The ratio to expect of the next batch; 1.0 for a topic not seen yet."""
        return self._ratios.get((topic, codec_id), INITIAL_RATIO)

    def observe(self, topic: str, codec_id: int, ratio: float) -> float:
        """Learn from a batch that was just compressed; the new estimate.

        Args:
            topic: the batch's topic.
            codec_id: the number of its codec.
            ratio: compressed size of the records section divided by its raw size.
        """
        expected = self.estimate(topic, codec_id)
        if ratio > expected:
            learned = max(expected + STEP_WORSE, ratio)
        elif ratio < expected:
            learned = max(expected - STEP_BETTER, ratio)
        else:
            learned = expected
        self._ratios[topic, codec_id] = learned
        return learned

    def reset(self, topic: str, codec_id: int, ratio: float = INITIAL_RATIO) -> None:
        """Forget what was learned and expect `ratio`: after a batch proved too large and was split."""
        self._ratios[topic, codec_id] = ratio

    def keep_topics(self, kept: Container[str]) -> None:
        """Forget what was learned of other topics: it is learned anew when they are used again."""
        for key in [key for key in self._ratios if key[0] not in kept]:
            del self._ratios[key]
