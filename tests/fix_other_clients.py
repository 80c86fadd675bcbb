# SPDX-License-Identifier: Apache-2.0
"""Other Kafka clients for Python, which tests hold against ours."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    # It reads its schemas by a function that Python 3.11 calls deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka as kafka_python

__all__ = ["kafka_python"]
