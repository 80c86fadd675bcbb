# SPDX-License-Identifier: Apache-2.0
"""Watching producers: what a metric reporter gets, and a folder for each system that collects metrics."""

from penstock._metrics import HistogramMetric, MetricValue
from penstock._reporting import MetricReporter, MetricsSource

__all__ = ["HistogramMetric", "MetricReporter", "MetricValue", "MetricsSource"]
