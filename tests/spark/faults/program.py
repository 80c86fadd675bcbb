# SPDX-License-Identifier: Apache-2.0
"""A plain program of a user: starts Spark, runs one job, and looks after no signal.

Run as `python -m spark.faults.program MASTER SETTINGS JOB`, the last two as JSON.
"""

from __future__ import annotations

import json
import sys

from spark.faults.server import run, session

if __name__ == "__main__":
    run(session(sys.argv[1], json.loads(sys.argv[2])), json.loads(sys.argv[3]))
