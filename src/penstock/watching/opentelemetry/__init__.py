# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry: the caller's context in the headers of records, spans, and metrics.

    from penstock.watching.opentelemetry import OpenTelemetry

    producer = Producer(bootstrap_servers="...", tracing=OpenTelemetry("calls"))

In a properties file: tracing=penstock.watching.opentelemetry:propagation (or :calls, or :requests)
"""

from penstock.watching.opentelemetry.tracing import Level, OpenTelemetry

__all__ = ["Level", "OpenTelemetry", "calls", "propagation", "requests"]

propagation = OpenTelemetry(Level.PROPAGATION)
calls = OpenTelemetry(Level.CALLS)
requests = OpenTelemetry(Level.REQUESTS)
