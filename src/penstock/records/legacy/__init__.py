# SPDX-License-Identifier: Apache-2.0
"""Message sets, the formats before Kafka 0.11 (magic 0 and 1): `_sets_cy` writes them, `reader` reads them."""
