# SPDX-License-Identifier: Apache-2.0
"""Metrics for Prometheus, with the names that JMX exporters give those of the Java client.

    from penstock.watching.prometheus import collector

    start_http_server(8000)  # of prometheus_client
    producer = Producer(bootstrap_servers="...", metric_reporters=[collector])

In a properties file: metric.reporters=penstock.watching.prometheus:collector
"""

from penstock.watching.prometheus.collector import ProducerCollector

__all__ = ["ProducerCollector", "collector"]

collector = ProducerCollector()
