# SPDX-License-Identifier: Apache-2.0
"""The seed that finds each planted bug, written by `python -m simulation --bugs --note`.

A change of what the producer does, or of the simulator, may move a bug to another seed; then they are written anew.
"""

from __future__ import annotations

SEEDS: dict[str, int] = {}
