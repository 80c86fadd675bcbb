# SPDX-License-Identifier: Apache-2.0
"""From a call of the application to records in the accumulator."""
