# SPDX-License-Identifier: Apache-2.0
"""The work of the I/O thread: draining, requests, answers, metrics."""
