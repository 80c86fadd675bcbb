# SPDX-License-Identifier: Apache-2.0
"""The log of decisions: its topic, its records, and what they say together."""
