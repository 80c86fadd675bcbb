# SPDX-License-Identifier: Apache-2.0
"""The exactly-once sink in the simulator: drivers, tasks, zombies and brokers, in virtual time, driven by one seed.

`python -m simulation --sink --seeds 300` runs many (`make simulate SINK=1`), `--sink --seed 7` replays one. `actors.py`
lets blocking code of many simulated processes take turns, `spark.py` is a model of what Spark does around the sink,
`ledger.py` knows what must be visible, `bugs.py` plants the mistakes that the protocol's rules are there for.
"""
