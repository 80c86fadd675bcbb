# SPDX-License-Identifier: Apache-2.0
"""Producers against three real brokers, while brokers, connections and producers are broken on purpose.

`make chaos` runs it; `python -m chaos --help`, with `tests` on the path, has all options. From the bottom: `proxy` (TCP
between clients and brokers), `cluster` (brokers behind proxies), `journal` (what a producer notes of its records),
`worker` (a producer in a process of its own), `workers` (starts and kills those), `faults` and `schedule` (what is
broken, and when), `check` (reads the log back with another client), `run` (all together), `report`.
"""
