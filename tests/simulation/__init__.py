# SPDX-License-Identifier: Apache-2.0
"""The simulator: a whole producer and a whole cluster in one process, in virtual time, driven by one random seed.

`python -m simulation --seeds 1000` runs a thousand of them (`make simulate`), `--seed 7` replays one and prints its
trace. See `run.py` for what one seed is, `checks.py` for what must hold after it, `bugs.py` for the mistakes planted
to see whether it would find them.
"""
