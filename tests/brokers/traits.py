# SPDX-License-Identifier: Apache-2.0
"""What a release can do, as Kafka's documentation has it: what the matrix expects. No broker is asked."""

from __future__ import annotations

from dataclasses import dataclass

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True)
class Traits:
    """What to expect of a release of Kafka.

    Attributes:
        version: such as ``0.10.2.2``.
    """

    version: str

    @property
    def number(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.version.split("."))

    @property
    def family(self) -> str:
        """What an error must say of it at least: 0.10 of 0.10.2.2, 2.8 of 2.8.2."""
        return ".".join(self.version.split(".")[:2])

    @property
    def magic(self) -> int:
        """Of the records that it stores by default."""
        return 2 if self.number >= (0, 11) else 1 if self.number >= (0, 10) else 0

    @property
    def has_api_versions(self) -> bool:
        return self.number >= (0, 10)

    @property
    def has_timestamps(self) -> bool:
        return self.magic >= 1

    @property
    def has_headers(self) -> bool:
        return self.magic >= 2

    @property
    def has_idempotence(self) -> bool:
        """And transactions: both came with magic 2."""
        return self.magic >= 2

    @property
    def codecs(self) -> tuple[str, ...]:
        return CODECS if self.number >= (2, 1) else CODECS[:-1]
