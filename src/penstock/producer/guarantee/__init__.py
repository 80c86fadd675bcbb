# SPDX-License-Identifier: Apache-2.0
"""Order without gaps and duplicates: sequence numbers, and what every batch asks before it leaves."""
