# SPDX-License-Identifier: Apache-2.0
"""The producer: from send() to an acknowledged record."""
