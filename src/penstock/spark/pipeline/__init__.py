# SPDX-License-Identifier: Apache-2.0
"""Pipelines on Spark that a file describes: `penstock run`."""
